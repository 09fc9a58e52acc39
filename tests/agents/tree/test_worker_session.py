from __future__ import annotations

from callagent.agents.tree import LiveConversation, LiveState


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
