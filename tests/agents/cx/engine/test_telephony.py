"""`end_session` as BYE, REFER and INVITE."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callagent.agents import Handoff, HangUp
from callagent.agents.cx.engine.telephony import read_session_end, read_uui

GATEWAY = {"PHONE_GATEWAY_TRANSFER": {"phoneNumber": "+4930123", "useOriginatingTrunk": True}}


def test_a_session_that_ends_without_escalation_hangs_up() -> None:
    assert read_session_end({"reason": "done"}, GATEWAY) == ("", HangUp())


@pytest.mark.parametrize("refer", [True, "true"])
def test_sip_refer_and_a_number_is_a_refer(refer: Any) -> None:
    variables = {**GATEWAY, "LIVE_AGENT_HANDOFF": {"sip-refer": refer, "x-headers": {"X-A": 1}}}
    _, ending = read_session_end({"reason": "person", "session_escalated": True}, variables)
    assert ending == Handoff("+4930123", "person", "refer", "+4930123", {"X-A": "1"})


def test_a_number_alone_is_a_second_leg() -> None:
    _, ending = read_session_end({"reason": "person", "session_escalated": True}, GATEWAY)
    assert ending == Handoff("+4930123", "person", "invite", "+4930123")


def test_a_handoff_without_a_number_is_a_bye_with_headers() -> None:
    handoff = {"uui-headers": [{"key": "k1", "value": "v1"}, {"k2": "v2"}]}
    arguments = {"session_escalated": "true", "params": json.dumps({"LIVE_AGENT_HANDOFF": handoff})}
    _, ending = read_session_end(arguments, {})
    assert isinstance(ending, Handoff)
    assert (ending.destination, ending.method) == ("live_agent", "bye")
    value = ending.headers["User-to-User"]
    assert value == "6b313d76313b6b323d7632;encoding=hex;purpose=Goog-Session-Param"
    assert read_uui(value) == [{"k1": "v1"}, {"k2": "v2"}]


def test_a_deflection_to_a_sip_address() -> None:
    partner = {"type": "action", "action": "deflection", "sip_uri": "sip:desk@example.org", "sip_refer": True,
               "sip_parameters": {"X-Case": "7"}}  # fmt: skip
    params = {"LIVE_AGENT_HANDOFF": {"PARTNER": partner}, "ESCALATION_MESSAGE": "One moment."}
    message, ending = read_session_end({"params": params}, {})
    assert message == "One moment."
    assert ending == Handoff(
        "sip:desk@example.org", "sip:desk@example.org", "refer", "sip:desk@example.org", {"X-Case": "7"}
    )


def test_a_strange_header_tells_nothing() -> None:
    assert read_uui("not hex") == []
