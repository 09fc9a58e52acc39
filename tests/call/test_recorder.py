from __future__ import annotations

from datetime import UTC, datetime

from callagent.agents import ModelAnswered, StepEntered
from callagent.call.recorder import Recorder
from callagent.call_info import CallInfo
from callagent.turns import TurnTimings

INFO = CallInfo("1", "inbound", "+15550100", "42", "sip", datetime(2026, 3, 2, tzinfo=UTC))
SAVED = {"name": "save_entities", "arguments": {"pin": "1234"}}


def recorder() -> Recorder:
    return Recorder(INFO, "ferry", "sandbox", began=100.0)


def test_a_request_to_the_model_is_kept_with_its_place_its_tokens_and_its_calls() -> None:
    kept = recorder()
    kept.agent_event(StepEntered("Booking", "Confirm"), 101.0)
    kept.agent_event(ModelAnswered(101.0, 101.2, 101.5, 40, 3, None, [SAVED]), 101.5)
    (request,) = kept.record.turns[0].requests
    assert (request.flow, request.step, request.requested_at, request.duration_ms) == ("Booking", "Confirm", 1.0, 500.0)
    assert (request.input_tokens, request.output_tokens, request.calls, request.error) == (40, 3, [SAVED], None)


def test_of_hidden_key_presses_the_models_arguments_are_not_kept() -> None:
    kept = recorder()
    kept.begin_turn(TurnTimings(), "", "1234", hidden=True, now=101.0)
    kept.agent_event(ModelAnswered(101.0, None, 101.5, calls=[SAVED]), 101.5)
    assert kept.record.turns[1].requests[0].calls == [{"name": "save_entities"}]
