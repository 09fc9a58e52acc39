"""What outside programs send to calls, and what a handoff leaves for who takes the call over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import Handoff
from callagent.agents.flows import ExternalExchange, FlowSettings
from callagent.agents.flows.external_events import LIFETIME_SECONDS, MAX_ENTRIES, MAX_PER_CALL, TooManyEvents
from tests.agents.flows.support import driven, function, functions, of, words, write_project


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_event_reaches_its_call_for_an_hour():
    clock, seen = Clock(), list[Any]()
    external = ExternalExchange(clock)
    identifier = external.expect("call-1", seen.append, send_to_llm=True)
    other = external.expect("call-2", seen.append, send_to_llm=False)
    assert len(identifier) >= 30
    assert identifier != other
    clock.now += LIFETIME_SECONDS - 1
    assert external.deliver(identifier, {"paid": True}, "application/json")
    assert seen == [
        {
            "ext_event_id": identifier,
            "send_to_llm": True,
            "created_at": clock.now,
            "data": {"paid": True},
            "content_type": "application/json",
        }
    ]
    assert not external.deliver("guessed", {}, "")
    clock.now += 2
    assert not external.deliver(identifier, {}, "")
    external.forget_call("call-2")
    assert not external.deliver(other, {}, "")


def test_identifiers_are_bounded():
    external = ExternalExchange(Clock())
    first = external.expect("call-0", lambda event: None, send_to_llm=False)
    for _ in range(MAX_PER_CALL):
        external.expect("call-1", lambda event: None, send_to_llm=False)
    with pytest.raises(TooManyEvents):
        external.expect("call-1", lambda event: None, send_to_llm=False)
    for number in range(MAX_ENTRIES + 10):
        external.store_handoff(f"call-{number}", f"s{number}", {})
    assert len(external._handoffs) <= MAX_ENTRIES
    assert len(external._shared) == len(external._handoffs)
    assert external.deliver(first, None, "")


def test_the_data_of_a_handoff_is_found_by_either_identifier_for_an_hour():
    clock = Clock()
    external = ExternalExchange(clock)
    external.store_handoff("call-1", "abc", {"name": "Ada"})
    entry = {"id": "call-1", "shared_id": "abc", "data": {"name": "Ada"}}
    assert external.get_handoff(call_id="call-1") == external.get_handoff(shared_id="abc") == entry
    assert external.get_handoff(call_id="call-2") is external.get_handoff(shared_id="") is None
    clock.now += LIFETIME_SECONDS + 1
    assert external.get_handoff(shared_id="abc") is None


PAY = """
    conv.state.event = conv.generate_external_event(send_to_llm=True)
    return "Waiting."
"""
PAID = """
    conv.state.paid = conv.generic_external_events[-1]["data"]["paid"]
    conv.state.number = conv.caller_number
    return conv.call_handoff("desk", reason="PAID", utterance="One moment.")
"""
FILES = {
    "agent_settings/rules.txt": "{{fn:pay}} {{fn:paid}}",
    "agent_settings/experimental_config.json": json.dumps(
        {"handoff_api": {"state_keys": ["paid", "number", "missing"], "aliases": {"number": "phone"}}}
    ),
    "config/handoffs.yaml": "handoffs: [{name: desk, is_default: true, sip_config: {method: refer}}]\n",
    "functions/pay.py": function("pay", PAY),
    "functions/paid.py": function("paid", PAID),
}


async def test_a_function_waits_for_an_event_that_the_model_hears_of(tmp_path: Path):
    external = ExternalExchange()
    script = [
        {"calls": [{"name": "pay", "arguments": {}}]},
        {"text": "Please pay."},
        {
            "calls": [{"name": "paid", "arguments": {}}],
            "expect": {"system": r'event from outside arrived: \{"paid": 12'},
        },
    ]
    settings = FlowSettings(external=external)
    async with driven(write_project(tmp_path, FILES), *script, settings=settings) as agent:
        await agent.start()
        actions = await agent.says("I want to pay")
        assert functions(actions) == ["pay"]
        identifier = agent.agent.record().state["event"]
        for _ in range(MAX_PER_CALL + 5):
            assert external.deliver(identifier, {"paid": 12}, "application/json")
        actions = await agent.says("done")
        assert (
            sum("event from outside" in str(message["content"]) for message in agent.model.messages()) == MAX_PER_CALL
        )
        assert words(actions) == ["One moment."]
        # The number of the target is the server's to know.
        assert [(each.destination, each.method, each.number) for each in of(Handoff, actions)] == [
            ("desk", "refer", None)
        ]
        found = external.get_handoff(call_id="call-1")
        assert found == {
            "id": "call-1",
            "shared_id": None,
            "data": {"paid": 12, "phone": "+4930555", "missing": None},
        }
    assert not external.deliver(identifier, {"paid": 12}, "application/json")
