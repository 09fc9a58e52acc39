from __future__ import annotations

from typing import Any

import pytest

from callagent.agents.tree import SharedState, State
from callagent.agents.tree.conversation import Change, merge_changes


def test_the_worker_is_told_what_it_did_not_do_itself() -> None:
    state = State({"a": 1})
    state.mark_sent()
    state.apply_worker_changes({"b": 2})
    state.apply({"b": 2, "c": 3})
    assert state.unsent_changes() == {"set": {"c": 3}, "removed": []}
    state.mark_sent()
    state.apply({}, ["a", "nothing"])
    assert state.unsent_changes() == {"set": {}, "removed": ["a"]}
    state.mark_unknown()
    assert state.unsent_changes()["set"] == {"b": 2, "c": 3}


def test_the_state_does_not_change_with_what_it_was_given() -> None:
    given: dict[str, list[int]] = {"a": [1]}
    state = State()
    state.apply(given)
    given["a"].append(2)
    assert state.values == {"a": [1]}


def test_temporary_keys_are_dropped() -> None:
    state = State({"temp:a": 1, "b": 2})
    state.drop_temporary()
    assert state.values == {"b": 2}


def test_app_keys_are_everybodys_and_user_keys_the_callers() -> None:
    shared = SharedState()
    shared.keep_changes("ada", {"app:x": 1, "user:y": 2, "z": 3, "temp:t": 4}, [])
    assert shared.initial_values("ada") == {"app:x": 1, "user:y": 2}
    assert shared.initial_values("bob") == {"app:x": 1}
    shared.keep_changes("", {"user:y": 5}, [])
    assert shared.initial_values("") == {"app:x": 1}


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
