"""Tests of single tools, and goldens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import (
    CxProject,
    cx_runtime,
    load_cx_app,
    read_goldens,
    read_tool_tests,
    run_goldens,
    run_tool_tests,
)
from callagent.agents.cx.evaluations import Expectation
from callagent.errors import ProjectError
from callagent.testing.in_process import InProcessPool
from tests.agents.cx.support import DESK
from tests.agents.flows.support import scripted

TOOL_TESTS = """
tests:
  - name: good
    tool: read_meter
    args: {number: "12"}
    expectations:
      response:
        - {path: $.result.reading.value, operator: greater_than, value: 400}
        - {path: $.reading.unit, operator: equals, value: m3}
        - {path: "$.result.history[2]", operator: equals, value: 417}
        - {path: $.result.history, operator: length_equals, value: 3}
      variables:
        - {path: $.meter, operator: equals, value: "12"}
  - name: bad
    tool: read_meter
    args: {number: ""}
    expectations:
      response:
        - {path: $.result.agent_action, operator: is_not_null}
        - {path: $.result.error, operator: contains, value: nothing}
  - {name: none, tool: nobody}
"""
GOLDENS = """
common_session_parameters: {meter: "5"}
conversations:
  - conversation: reads
    turns:
      - {user: "<event>welcome</event>", agent: "City utilities, hello!"}
      - user: Read my meter.
        agent: It stands at 417.
        tool_calls:
          - action: read_meter
            args:
              number: "5"
              kind: {$matchType: ignore}
    tags: [P0]
  - conversation: reads another
    turns:
      - user: Read my meter.
        agent: No.
        tool_calls:
          - {action: read_meter, args: {number: {$matchType: regexp, $matchValue: "^6"}}}
"""


@asynccontextmanager
async def project(*entries: Mapping[str, Any]) -> AsyncIterator[CxProject]:
    loaded = load_cx_app(DESK, scripted(*entries), InProcessPool(cx_runtime(DESK)))
    yield loaded
    await loaded.close()


async def test_tools_are_run_and_their_results_compared(tmp_path: Path) -> None:
    (tmp_path / "tests.yaml").write_text(TOOL_TESTS)
    async with project() as loaded:
        good, bad, none = await run_tool_tests(loaded, read_tool_tests(tmp_path / "tests.yaml"))
    assert good.passed, good.failures
    assert bad.failures == ("$.result.error is 'number is required'; expected: contains 'nothing'",)
    assert none.failures == ("the app has no tool 'nobody'",)


async def test_goldens_are_played_and_their_tool_calls_compared(tmp_path: Path) -> None:
    (tmp_path / "goldens.yaml").write_text(GOLDENS)
    call = {"calls": [{"name": "read_meter", "arguments": {"number": "5", "kind": "gas"}}]}
    entries: list[dict[str, Any]] = [call, {"text": "417."}, call, {"text": "417."}]
    goldens = read_goldens(tmp_path / "goldens.yaml")
    assert goldens[0].tags == ("P0",)
    async with project(*entries) as loaded:
        reads, another = await run_goldens(loaded, goldens)
    assert reads.passed, reads.failures
    (failure,) = another.failures
    assert failure.startswith("turn 1: read_meter(")
    assert "was not called; called: read_meter(" in failure


async def test_a_judge_compares_the_words(tmp_path: Path) -> None:
    (tmp_path / "goldens.yaml").write_text(GOLDENS)
    asked: list[tuple[str, str]] = []

    async def judge(expected: str, said: str) -> bool:
        asked.append((expected, said))
        return False

    call = {"calls": [{"name": "read_meter", "arguments": {"number": "5"}}]}
    async with project(call, {"text": "Four hundred."}) as loaded:
        (result,) = await run_goldens(loaded, read_goldens(tmp_path / "goldens.yaml")[:1], judge)
    assert asked == [("It stands at 417.", "Four hundred.")]
    assert result.failures[0].startswith("turn 2: said 'Four hundred.'")


@pytest.mark.parametrize(
    ("operator", "value", "holds"),
    [("equals", 3, True), ("less_than", 4, True), ("greater_than", "x", False), ("length_equals", 1, False),
     ("contains", 3, False), ("is_null", None, False), ("length_less_than", 2, False)],
)  # fmt: skip
def test_operators(operator: str, value: Any, holds: bool) -> None:
    assert (Expectation("$.a", operator, value).failure({"a": 3}) == "") is holds


@pytest.mark.parametrize(
    "text", ["x: 1", "tests: [{}]", "tests: [{tool: a, expectations: {response: [{path: a}]}}]", "["]
)
def test_bad_files_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ProjectError, match=r"bad\.yaml"):
        read_tool_tests(tmp_path / "bad.yaml")
