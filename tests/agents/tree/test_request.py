from __future__ import annotations

import pytest

from callagent.agents.tree import RunFailed
from callagent.agents.tree.request import fill_in

STATE = {"who": "Ada", "none": None, "list": [1, "a"], "user:x": "U", "app:x": "A", "temp:x": 0}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{who}", "Ada"),
        ("{ who }", "Ada"),
        ("{{who}}", "Ada"),
        ("{{{who}}}", "Ada"),
        ("{none}", ""),
        ("{list}", "[1, 'a']"),
        ("{who?} {missing?}", "Ada "),
        ("{user:x}{app:x}{temp:x}", "UA0"),
        ("{artifact.file?}", ""),
        ("{not valid}", "{not valid}"),
        ("{a.b}", "{a.b}"),
        ("{other:x}", "{other:x}"),
        ("{}", "{}"),
        ("${who}", "${who}"),
        ("\\{who}", "\\{who}"),
        ("no braces", "no braces"),
    ],
)
def test_names_in_braces_are_values_of_the_state(template: str, expected: str) -> None:
    assert fill_in(template, STATE, "agent") == expected


@pytest.mark.parametrize("template", ["{missing}", "{user:missing}", "{artifact.file}"])
def test_what_is_missing_and_not_optional_fails_the_turn(template: str) -> None:
    with pytest.raises(RunFailed, match=r"KeyError: .* not found.* in agent 'agent'"):
        fill_in(template, STATE, "agent")
