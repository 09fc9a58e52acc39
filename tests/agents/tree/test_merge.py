"""Changes of a state by code that ran side by side."""

from __future__ import annotations

from typing import Any

import pytest

from callagent.agents.tree.state import Change, merge_changes

BEFORE = {"form": {"filled": {"a": 1}, "open": ["b"]}, "n": 1}


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ([({"x": 1}, []), ({"y": 2}, [])], {**BEFORE, "x": 1, "y": 2}),
        ([({"n": 2}, []), ({"n": 3}, [])], {**BEFORE, "n": 3}),
        ([({"n": 3}, []), ({"n": 1}, [])], {**BEFORE, "n": 3}),
        ([({}, ["n"]), ({"x": 1}, [])], {"form": BEFORE["form"], "x": 1}),
        ([({"n": 5}, []), ({}, ["n"])], {"form": BEFORE["form"]}),
        ([({}, ["n"]), ({"n": 5}, [])], {**BEFORE, "n": 5}),
        (
            [
                ({"form": {"filled": {"a": 1, "b": 2}, "open": []}}, []),
                ({"form": {"filled": {"a": 1, "c": 3}, "open": ["b"]}}, []),
            ],
            {"form": {"filled": {"a": 1, "b": 2, "c": 3}, "open": []}, "n": 1},
        ),
        (
            [
                ({"form": {"filled": {}, "open": ["b"]}}, []),
                ({"form": {"filled": {"a": 1}, "open": ["b"], "z": 0}}, []),
            ],
            {"form": {"filled": {}, "open": ["b"], "z": 0}, "n": 1},
        ),
        ([({"form": {"filled": 1}}, []), ({"form": "done"}, [])], {"form": "done", "n": 1}),
        ([({"new": {"a": 1}}, []), ({"new": {"b": 2}}, [])], {**BEFORE, "new": {"b": 2}}),
    ],
)
def test_everybodys_changes_hold_in_whatever_order_they_are_applied(
    changes: list[Change], after: dict[str, Any]
) -> None:
    agreed = merge_changes(BEFORE, changes)
    for order in (agreed, agreed[::-1]):
        state = dict(BEFORE)
        for changed, removed in order:
            state.update(changed)
            for key in removed:
                state.pop(key, None)
        assert state == after
