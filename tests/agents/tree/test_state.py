from __future__ import annotations

from callagent.agents.tree import SharedState, State
from callagent.agents.tree.runtime import LiveConversation, LiveState


def test_the_worker_is_told_what_it_did_not_do_itself() -> None:
    state = State({"a": 1})
    state.sent()
    state.take({"b": 2})
    state.apply({"b": 2, "c": 3})
    assert state.unsent() == {"set": {"c": 3}, "removed": []}
    state.sent()
    state.apply({}, ["a", "nothing"])
    assert state.unsent() == {"set": {}, "removed": ["a"]}
    state.unknown()
    assert state.unsent()["set"] == {"b": 2, "c": 3}


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
    shared.take("ada", {"app:x": 1, "user:y": 2, "z": 3, "temp:t": 4}, [])
    assert shared.initial("ada") == {"app:x": 1, "user:y": 2}
    assert shared.initial("bob") == {"app:x": 1}
    shared.take("", {"user:y": 5}, [])
    assert shared.initial("") == {"app:x": 1}


def test_live_state_tells_writes_nested_changes_and_removals() -> None:
    live = LiveConversation()
    live.take_state({"set": {"same": 1, "list": [1], "gone": 2, "untouched": 3}})
    live.state["same"] = 1
    live.state["list"].append(2)
    del live.state["gone"]
    live.state.update(new="n")
    assert live.take_changes() == ({"same": 1, "list": [1, 2], "new": "n"}, ["gone"])
    assert live.take_changes() == ({}, [])


def test_an_object_stays_when_the_core_repeats_its_view() -> None:
    live = LiveConversation()
    kept = {1, 2}
    live.state["set"] = kept
    changed, _ = live.take_changes()
    assert changed == {"set": [1, 2]}
    live.take_state({"set": changed})
    assert live.state["set"] is kept


def test_a_replacement_gets_the_objects_back() -> None:
    live = LiveConversation()
    live.state["a"], live.state["lock"] = {1}, (lambda: None)
    changes = live.checkpoint()
    assert set(changes) == {"a"}
    assert live.checkpoint() == {}
    other = LiveConversation()
    other.restore({key: data for key, data in changes.items() if data is not None})
    assert other.state == {"a": {1}}


def test_live_state_reads_like_a_dict() -> None:
    state = LiveState({"a": 1})
    assert (state.setdefault("a", 2), state.setdefault("b", 3), state.get("c")) == (1, 3, None)
    assert state.to_dict() == {"a": 1, "b": 3}
    assert state.has_delta()
