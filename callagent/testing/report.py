"""The results of a test run for people, for programs and for CI."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from callagent.testing.suite import TestResult


def as_text(result: TestResult) -> str:
    lines = [f"{'passed' if result.passed else 'FAILED'}  {result.name}  ({result.seconds:.1f} s)"]
    lines += [f"        {failure}" for failure in result.failures]
    unjudged = sum(one["is_pass"] is None for one in result.prompt_assertion_results)
    if unjudged:
        lines.append(f"        {unjudged} expectations were not judged: there is no model to judge them")
    return "\n".join(lines)


def summary(results: Sequence[TestResult]) -> str:
    failed = sum(not result.passed for result in results)
    return f"{len(results) - failed} passed, {failed} failed"


def as_json(results: Sequence[TestResult]) -> str:
    document = {
        "passed": sum(result.passed for result in results),
        "failed": sum(not result.passed for result in results),
        "tests": [result.to_json() for result in results],
    }
    return json.dumps(document, ensure_ascii=False, indent=2, default=str)


def write_junit(results: Sequence[TestResult], name: str, path: Path) -> None:
    """One `testsuite` with a `testcase` each; the conversation is its `system-out`."""
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(results)),
        failures=str(sum(not result.passed and not result.error for result in results)),
        errors=str(sum(bool(result.error) for result in results)),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=result.name, time=f"{result.seconds:.3f}")
        if result.failures:
            kind = "error" if result.error else "failure"
            complaint = ElementTree.SubElement(case, kind, message=_clean(result.failures[0]))
            complaint.text = _clean("\n".join(result.failures))
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join(_conversation(result)))
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _conversation(result: TestResult) -> Iterator[str]:
    for turn in result.turns:
        if turn["user_input"] is not None:
            yield f"caller: {turn['user_input']}"
        for call in turn["function_calls"]:
            yield f"        {call['name']}({json.dumps(call['arguments'], ensure_ascii=False, default=str)})"
        yield f"agent:  {turn['agent_response']}"


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in text
    )
