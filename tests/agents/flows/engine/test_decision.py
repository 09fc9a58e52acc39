"""Every row of the return protocol."""

from __future__ import annotations

from typing import Any

import pytest

from callagent.agents.flows.engine.decision import BAD_RETURN, Decision, HandoffRequest, Transition, decide


def decision(returned: Any, **effects: Any) -> Decision:
    kinds = {str: "str", dict: "dict", type(None): "none"}
    return decide({"returned": returned, "returned_kind": kinds.get(type(returned), "other"), "effects": effects})


@pytest.mark.parametrize("value", [None, "", {}])
def test_an_empty_result_lets_the_model_go_on(value: Any):
    found = decision(value)
    assert found.asks_model
    assert found.content == ""
    assert not found.skips_other_tool_calls


def test_a_string_is_the_tool_result():
    assert decision("Booked.") == Decision(content="Booked.")


def test_content_alone_is_the_tool_result():
    assert decision({"content": "Booked.", "unknown": 1}) == Decision(content="Booked.")


def test_an_utterance_ends_the_turn():
    found = decision({"utterance": "Hello."})
    assert (found.utterance, found.asks_model, found.skips_other_tool_calls) == ("Hello.", False, True)


def test_an_empty_utterance_ends_the_turn_in_silence():
    found = decision({"utterance": ""})
    assert found.utterance == ""
    assert not found.asks_model


def test_end_turn_false_speaks_and_asks_the_model_at_once():
    assert decision({"utterance": "One moment.", "end_turn": False}).asks_model


def test_content_and_utterance_stand_together():
    found = decision({"utterance": "Hello.", "content": "said hello"})
    assert (found.utterance, found.content, found.asks_model) == ("Hello.", "said hello", False)


def test_digits_are_an_utterance_on_their_own_channel():
    assert decision({"utterance": "12#", "utterance_channel": "DTMF"}).channel == "dtmf"


def test_a_queued_say_is_the_utterance():
    assert decision("x", say="Hello.").utterance == "Hello."


def test_the_returned_utterance_wins_over_a_queued_say():
    assert decision({"utterance": "Mine."}, say="Hello.").utterance == "Mine."


def test_hangup_ends_the_call_with_or_without_words():
    assert decision({"hangup": True}).ends_call
    assert decision({"hangup": True, "utterance": "Bye."}).utterance == "Bye."


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, HandoffRequest(None)),
        ({"type": "office", "reason": "r"}, HandoffRequest("office", "r")),
        ({"refer": {"phone_number": "+1"}, "type": "x"}, HandoffRequest("x", None, "refer", "+1")),
        ({"bye": {"sip_headers": {"X-A": "1"}}}, HandoffRequest(None, None, "bye", None, {"X-A": "1"})),
        ({"bye": {"sip_headers": [{"key": "X-A", "value": 1}]}}, HandoffRequest(None, None, "bye", None, {"X-A": "1"})),
        ({"cxone": {"region": "eu"}}, HandoffRequest(None, None, "bye")),
    ],
)
def test_a_handoff_is_read_in_all_its_forms(value: Any, expected: HandoffRequest):
    found = decision({"handoff": value, "utterance": "Wait."})
    assert found.handoff == expected
    assert found.ends_call


def test_a_handoff_may_bring_its_own_utterance():
    assert decision({"handoff": {"reason": "r", "utterance": "Wait."}}).utterance == "Wait."


def test_a_queued_handoff_is_taken_with_its_route_and_headers():
    queued = {"destination": "office", "reason": None, "utterance": "Wait.", "sip_headers": {"X": "1"}, "route": "+49"}
    found = decision(None, handoff=queued)
    assert found.handoff == HandoffRequest("office", "office", None, "+49", {"X": "1"})
    assert found.utterance == "Wait."


def test_a_transition_in_the_dict_wins_over_queued_ones():
    found = decision({"transition": {"goto_flow": "F", "goto_step": "S"}}, goto_step="T", exit_flow=True)
    assert found.transition == Transition("F", "S")


def test_a_transition_that_is_none_leaves_the_queued_one():
    assert decision({"transition": None}, goto_step="T").transition == Transition(goto_step="T")


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ({"goto_flow": "F", "goto_step": "S"}, Transition(goto_flow="F")),
        ({"goto_flow": "F", "exit_flow": True}, Transition(goto_flow="F")),
        ({"goto_step": "S", "exit_flow": True}, Transition(goto_step="S")),
        ({"exit_flow": True}, Transition(exit_flow=True)),
        ({}, Transition()),
    ],
)
def test_of_queued_transitions_an_explicit_goto_wins(effects: dict[str, Any], expected: Transition):
    assert decision(None, **effects).transition == expected


def test_content_with_a_transition_asks_the_model_in_the_new_step():
    found = decision({"content": "ok", "transition": {"goto_step": "S"}})
    assert found.asks_model
    assert found.skips_other_tool_calls


def test_listen_is_kept_only_as_a_map():
    assert decision({"utterance": "", "listen": {"asr": {"timeout": 20}}}).listen == {"asr": {"timeout": 20}}
    assert decision({"utterance": "", "listen": True}).listen is None


def test_a_variant_in_the_dict_wins_over_the_queued_one():
    assert decision({"variant": "south"}, variant="north").variant == "south"
    assert decision({}, variant="north").variant == "north"


@pytest.mark.parametrize("value", [True, 3, ["x"]])
def test_any_other_type_is_an_error_for_the_model(value: Any):
    found = decision(value)
    assert (found.content, found.unusable, found.asks_model) == (BAD_RETURN, True, True)
