"""Test cases in `test_suite/`: simulated conversations and the expectations of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from callagent.agents.flows.format.project import Project
from callagent.agents.kernel import Findings, Reader, clean_name, read_yaml
from callagent.errors import ProjectError

FOLDER = "test_suite"
VALUE_TYPES = ("string", "integer", "number", "boolean")
CHANNELS = ("voice", "webchat")
_TRUE = ("true", "1", "yes")


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A function that must be called with these arguments, or, if `asserted` is False, must not be called with them."""

    name: str
    arguments: Mapping[str, object]
    asserted: bool = True

    def matches(self, name: str, arguments: Mapping[str, object]) -> bool:
        return name == self.name and all(_is_equal(arguments.get(key), value) for key, value in self.arguments.items())


@dataclass(frozen=True, slots=True)
class MockedAnswer:
    """An API operation's response in a test, given `repeat` times; -1: to all further requests."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: int = 1


ApiMocks = Mapping[str, Mapping[str, tuple[MockedAnswer, ...]]]
"""Integration -> operation -> answers in order."""


@dataclass(frozen=True, slots=True)
class TestCase:
    # pytest must not collect this class for its name.
    __test__ = False
    name: str
    file: str
    scenario: str
    channel: str = "voice"
    language: str | None = None
    variant: str | None = None
    tags: tuple[str, ...] = ()
    at: datetime | None = None
    """Pins the clock of the conversation."""
    caller_number: str | None = None
    sip_headers: Mapping[str, str] = field(default_factory=dict)
    integration_attributes: Mapping[str, object] = field(default_factory=dict)
    api_mocks: ApiMocks = field(default_factory=dict)
    prompt_assertions: tuple[str, ...] = ()
    function_calls: tuple[ExpectedCall, ...] = ()


def load_test_cases(project: Project) -> tuple[TestCase, ...]:
    """Read the project's test suite, ordered by file. Raises `ProjectError`, which lists all errors."""
    findings = Findings()
    cases = read_test_cases(project.path, project, findings)
    if errors := findings.report().errors:
        raise ProjectError("The test suite cannot be run:\n" + "\n".join(f"  {error}" for error in errors))
    return cases


def read_test_cases(root: Path, project: Project, findings: Findings) -> tuple[TestCase, ...]:
    cases = []
    for path in sorted((root / FOLDER).glob("*.yaml")):
        document = read_yaml(root, f"{FOLDER}/{path.name}", findings)
        if document is not None:
            cases.append(_read_test_case(document.root(), path.stem, project))
    return tuple(cases)


def _read_test_case(root: Reader, stem: str, project: Project) -> TestCase:
    name = root.text("name") or stem
    if clean_name(name) != stem:
        root.warning(f"The file of test '{name}' should be called {clean_name(name)}.yaml.", "name")
    language, variant, channel = root.text("language"), root.text("variant"), root.text("channel") or "voice"
    if language and language not in project.languages.all:
        root.error(f"Language '{language}' is not configured. Add it to agent_settings/languages.yaml.", "language")
    if variant and variant not in project.variants.attributes:
        known = ", ".join(project.variants.attributes) or "none"
        root.error(f"There is no variant '{variant}'. The project has: {known}.", "variant")
    if channel not in CHANNELS:
        root.error(f"'channel' should be one of {', '.join(CHANNELS)}, not '{channel}'.", "channel")
    if "caller_number" in root and not isinstance(root.raw("caller_number"), str):
        root.error("'caller_number' should be str. Put it in quotes.", "caller_number")
    return TestCase(
        name=name,
        file=root.document.file,
        scenario=root.required_text("scenario"),
        channel=channel,
        language=language or None,
        variant=variant or None,
        tags=root.texts("tags"),
        at=_read_instant(root),
        caller_number=str(root.raw("caller_number")) if "caller_number" in root else None,
        sip_headers={key: str(root.map("sip_headers").raw(key)) for key in root.map("sip_headers").names()},
        integration_attributes=_read_attributes(root),
        api_mocks=_read_mocks(root),
        prompt_assertions=root.texts("prompt_assertions"),
        function_calls=tuple(_read_expected_call(each) for each in root.maps("function_call_assertions")),
    )


def _read_instant(root: Reader) -> datetime | None:
    raw = root.raw("simulated_at")
    try:
        # YAML has already read a time without quotes.
        instant = raw if isinstance(raw, datetime) else datetime.fromisoformat(str(raw)) if raw else None
    except ValueError:
        root.error(f"'simulated_at' should be a time such as 2026-03-02T09:30:00, not '{raw}'.", "simulated_at")
        return None
    return instant.replace(tzinfo=UTC) if instant is not None and instant.tzinfo is None else instant


def _read_attributes(root: Reader) -> dict[str, object]:
    section = root.map("integration_attributes")
    found = {key: section.raw(key) for key in section.names()}
    for key, value in found.items():
        # YAML makes a date of 2026-03-02, but integration attributes are JSON, which has no dates.
        if value is not None and not isinstance(value, str | int | float | bool | list | dict):
            section.error(f"'{key}' is read as a {type(value).__name__}. Put it in quotes.", key)
    return found


def _read_mocks(root: Reader) -> dict[str, dict[str, tuple[MockedAnswer, ...]]]:
    integrations = root.map("api_mocks")
    return {
        integration: {
            operation: _read_answers(integrations.map(integration), operation)
            for operation in integrations.map(integration).names()
        }
        for integration in integrations.names()
    }


def _read_answers(integration: Reader, operation: str) -> tuple[MockedAnswer, ...]:
    rules = integration.maps(operation)
    found = []
    for number, rule in enumerate(rules, 1):
        answer, repeat = rule.map("respond"), int(rule.number("repeat", 1) or 0)
        # Answers after an endless one would never be used.
        if repeat == -1 and number < len(rules):
            rule.error("'repeat: -1' answers for ever: it can only be the last.", "repeat")
        elif repeat < -1 or repeat == 0:
            rule.error("'repeat' should be at least 1, or -1 for ever.", "repeat")
        headers = answer.map("headers")
        found.append(
            MockedAnswer(
                status=int(answer.number("status", 200) or 200),
                body=answer.raw("body"),
                headers={key: str(headers.raw(key)) for key in headers.names()},
                repeat=repeat,
            )
        )
    return tuple(found)


def _read_expected_call(reader: Reader) -> ExpectedCall:
    arguments = {}
    for argument in reader.maps("arguments"):
        name, kind = argument.required_text("parameter_name"), argument.text("value_type") or "string"
        if kind not in VALUE_TYPES:
            argument.error(f"'value_type' should be one of {', '.join(VALUE_TYPES)}, not '{kind}'.", "value_type")
            continue
        try:
            arguments[name] = _convert_value(argument.raw("expected_value"), kind)
        except (TypeError, ValueError):
            message = f"'expected_value' of '{name}' is no {kind}. Change the value or its 'value_type'."
            argument.error(message, "expected_value")
    return ExpectedCall(reader.required_text("name"), arguments, reader.flag("is_asserted", True))


def _convert_value(value: object, kind: str) -> object:
    match kind:
        case "integer" if isinstance(value, int | float | str):
            return int(value)
        case "number" if isinstance(value, int | float | str):
            return float(value)
        case "integer" | "number":
            raise TypeError(f"{value!r} is no number")
        case "boolean":
            return value if isinstance(value, bool) else str(value).strip().lower() in _TRUE
        case _:
            return "" if value is None else str(value)


def _is_equal(given: object, expected: object) -> bool:
    """Return whether a model wrote the expected value; a number and its text count as equal."""
    # In Python True == 1, but 1 is not the expected answer to a question for a Boolean value.
    if isinstance(expected, bool) or isinstance(given, bool):
        return given is expected or str(given).lower() == str(expected).lower()
    if isinstance(expected, int | float):
        try:
            return isinstance(given, int | float | str) and float(given) == expected
        except ValueError:
            return False
    return given is not None and str(given) == str(expected)
