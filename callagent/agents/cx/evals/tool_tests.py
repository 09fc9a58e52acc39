"""Tests of single tools: `tests: [{name, tool, args, variables, expectations: {response, variables}}]`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callagent.agents.cx.project import CxProject
from callagent.errors import ProjectError

_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]")
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Expectation:
    """What should be true of a value at a path."""

    path: str
    """JSON path of names and indices: `$.result.account.balance`."""
    operator: str
    value: Any = None

    def failure(self, data: Any) -> str:
        """Return what is wrong; empty: the expectation is met."""
        found = value_at_path(self.path, data)
        if found is _ABSENT:
            # Only results that are no objects are wrapped in `result`; tests write `$.result` for both.
            found = value_at_path(re.sub(r"^\$\.result\b", "$", self.path), data)
        actual = None if found is _ABSENT else found
        if _holds(self.operator, actual, self.value):
            return ""
        wanted = "" if self.operator in ("is_null", "is_not_null") else f" {self.value!r}"
        return f"{self.path} is {actual!r}; expected: {self.operator}{wanted}"


@dataclass(frozen=True, slots=True)
class ToolTest:
    __test__ = False
    name: str
    tool: str
    arguments: Mapping[str, Any]
    variables: Mapping[str, Any]
    response: tuple[Expectation, ...]
    variables_after: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True)
class ToolTestResult:
    __test__ = False
    name: str
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


OPERATORS = (
    "equals", "contains", "greater_than", "less_than", "length_equals", "length_greater_than", "length_less_than",
    "is_null", "is_not_null",
)  # fmt: skip


def read_tool_tests(path: Path) -> list[ToolTest]:
    """Read the tool tests of a file. Raises `ProjectError` naming the file and the test."""
    data = read_yaml_file(path)
    tests = data.get("tests") if isinstance(data, dict) else None
    if not isinstance(tests, list):
        raise ProjectError(f"{path.name}: 'tests' should be a list")
    return [_test(each, f"{path.name}: test {number}") for number, each in enumerate(tests, 1)]


async def run_tool_tests(project: CxProject, tests: Sequence[ToolTest]) -> list[ToolTestResult]:
    """Run each test in a call of its own; tools run without the agents' callbacks."""
    return [await _run(project, test) for test in tests]


async def _run(project: CxProject, test: ToolTest) -> ToolTestResult:
    async with project.open_for_test(test.variables) as agent:
        answer = await agent.run_tool(test.tool, test.arguments)
        if answer is None:
            return ToolTestResult(test.name, (f"there is no tool '{test.tool}'",))
        failures = [each.failure(answer) for each in test.response]
        failures += [each.failure(agent.conversation.state.values) for each in test.variables_after]
    return ToolTestResult(test.name, tuple(each for each in failures if each))


def value_at_path(path: str, data: Any) -> Any:
    """Return the value at a path, or `_ABSENT`."""
    place, value = 1, data
    while place < len(path):
        found = _STEP.match(path, place)
        if found is None:
            return _ABSENT
        place = found.end()
        name, index = found[1] or found[3], found[2]
        if index is not None:
            inside = isinstance(value, list) and int(index) < len(value)
            value = value[int(index)] if inside else _ABSENT
        else:
            value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is _ABSENT:
            return _ABSENT
    return value


def read_yaml_file(path: Path) -> Any:
    """Return a YAML file's data. Raises `ProjectError`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ProjectError(f"{path.name} cannot be read: {error}") from None


def _test(data: Any, place: str) -> ToolTest:
    if not isinstance(data, dict) or not isinstance(data.get("tool"), str):
        raise ProjectError(f"{place}: 'tool' is missing: it names the tool that is tested")
    given = data.get("expectations") or {}
    return ToolTest(
        name=str(data.get("name") or data["tool"]),
        tool=data["tool"],
        arguments=data.get("args") or {},
        variables=data.get("variables") or {},
        response=tuple(_expectation(each, place) for each in given.get("response") or ()),
        variables_after=tuple(_expectation(each, place) for each in given.get("variables") or ()),
    )


def _expectation(data: Any, place: str) -> Expectation:
    if not isinstance(data, dict) or not str(data.get("path") or "").startswith("$"):
        raise ProjectError(f"{place}: an expectation should have a 'path' that begins with '$'")
    if data.get("operator") not in OPERATORS:
        raise ProjectError(f"{place}: operator {data.get('operator')!r} is not one of {', '.join(OPERATORS)}")
    return Expectation(data["path"], data["operator"], data.get("value"))


def _holds(operator: str, actual: Any, value: Any) -> bool:
    if operator == "is_null":
        return actual is None
    if operator == "is_not_null":
        return actual is not None
    try:
        match operator:
            case "equals":
                return bool(actual == value)
            case "contains":
                return bool(value in actual)
            case "greater_than":
                return bool(actual > value)
            case "less_than":
                return bool(actual < value)
            case "length_equals":
                return bool(len(actual) == value)
            case "length_greater_than":
                return bool(len(actual) > value)
            case _:
                return bool(len(actual) < value)
    except TypeError:
        return False
