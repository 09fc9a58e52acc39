"""`end_session` as BYE, REFER and INVITE, and the folder of an app's recordings."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import Handoff, HangUp
from callagent.agents.cx import check_cx_app, read_cx_app
from callagent.agents.cx.engine.telephony import read_session_end, read_uui, recording_folder
from callagent.call_info import CallInfo
from tests.agents.cx.support import driven, write_app

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


INFO = CallInfo("call-1", "inbound", None, None, "sip", datetime(2026, 3, 2, tzinfo=UTC))
NAME = "projects/p1/locations/eu/apps/a-1"


@pytest.mark.parametrize(
    ("app", "config", "place"),
    [
        ({}, None, ""),
        ({}, {"gcsBucket": "gs://b"}, "local/local/Little_App/2026-03-02/call-1"),
        ({"name": NAME}, {"gcsBucket": "gs://b"}, "p1/eu/a-1/2026-03-02/call-1"),
        ({"name": NAME}, {"gcsPathPrefix": "x/${app}-$session/"}, "x/a-1-call-1"),
        ({"displayName": "../../etc"}, {"gcsPathPrefix": "$app/$date"}, "_.._etc/2026-03-02"),
        ({}, {"gcsPathPrefix": "/../.././a b/\u00e9\\c/$other"}, "a_b/__c/_other"),
        ({}, {"gcsPathPrefix": "a/" * 100}, "/".join("a" * 12)),
    ],
)
def test_placeholders_are_filled_in_and_lead_nowhere_else(
    app: dict[str, Any], config: dict[str, Any] | None, place: str, tmp_path: Path
) -> None:
    logging = {} if config is None else {"loggingSettings": {"audioRecordingConfig": config}}
    assert recording_folder(read_cx_app(write_app(tmp_path, app={**app, **logging})), INFO) == place


async def test_the_call_is_told_before_it_is_answered(tmp_path: Path) -> None:
    logging = {"audioRecordingConfig": {"gcsBucket": "gs://b", "gcsPathPrefix": "$app/$session"}}
    path = write_app(tmp_path, app={"loggingSettings": logging})
    (warning,) = check_cx_app(path).warnings
    assert (warning.rule, "the bucket is not written to" in warning.message) == ("CX016", True)
    async with driven(path) as agent:
        assert agent.agent.record().recording.startswith("Little_App/")
