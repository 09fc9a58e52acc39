"""The agent as text: the lines other programs read."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.flows import load_flow_project, project_runtime
from callagent.call_info import EndReason
from callagent.models.scripted import ScriptedModel, ScriptError
from callagent.testing.in_process import InProcessPool
from callagent.testing.text_chat import ChatOptions, run_chat
from callagent.testing.virtual_time import run

FERRY = Path(__file__).parents[1] / "projects" / "ferry"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def chat(messages: Iterable[str], *script: Any, as_json: bool = True) -> tuple[str, EndReason | None]:
    model = ScriptedModel.from_entries(*script)
    project = load_flow_project(FERRY, model, InProcessPool(project_runtime(FERRY)))
    out = io.StringIO()
    options = ChatOptions(caller="+491", headers={"X-Line": "red"}, as_json=as_json)
    try:
        reason = await run_chat(project, messages, options, out)
    finally:
        await project.close()
    return out.getvalue(), reason


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


BOOKING = (
    {"calls": [call("booking_wanted")]},
    {"calls": [call("save_entities", party=2, travel_day="2026-09-01"), call("condition_all_given")]},
    {"text": "Two people. On the first?"},
    {"calls": [call("confirmed")]},
    {"calls": [call("goodbye")]},
)


def test_a_conversation_is_one_json_object_a_turn_and_the_record():
    text, reason = run(chat(["book for two on the first", "yes", "bye", "never said"], *BOOKING))
    start, asked, booked, bye, last = rows(text)
    assert list(start) == ["turn", "user", "agent", "fillers", "flow", "step", "functions", "listen", "ended"]
    assert start["agent"] == ["This call may be recorded.", "Welcome to North Island Ferries. How can I help?"]
    assert (start["turn"], start["user"], start["flow"], start["ended"]) == (0, "", None, None)
    assert asked["agent"] == ["Two people. On the first?"]
    assert (asked["flow"], asked["step"]) == ("Booking", "Confirm")
    assert [f["name"] for f in asked["functions"]] == ["booking_wanted", "entry"]
    assert asked["listen"]["digits"]["end_key"] == "#"
    assert booked["fillers"] == ["Booking for 2."]
    (function,) = booked["functions"]
    assert (function["name"], function["arguments"], function["error"]) == ("confirmed", {}, None)
    assert function["result"] == {"utterance": "Booked for 2."}
    assert bye["ended"] == {"reason": "agent_hangup", "handoff": None}
    assert bye["listen"] is None
    assert reason is EndReason.AGENT_HANGUP
    record = last["record"]
    assert record["state"]["booked"] is True
    assert record["metrics"] == [
        {"name": "CALL_STARTED", "value": "red"},
        {"name": "BOOKED", "value": 2},
        {"name": "OUTCOME", "value": "booked"},
        {"name": "ENDED_IN", "value": "None/None"},
    ]
    assert [turn["user_input"] for turn in record["turns"]] == ["", "book for two on the first", "yes", "bye"]
    assert (record["end_reason"], record["end_function"], record["num_turns"]) == ("agent_hangup", "done", 3)


def test_a_handoff_ends_the_conversation():
    text, reason = run(chat(["a person"], {"calls": [call("person_wanted", reason="r")]}))
    turn = rows(text)[1]
    assert turn["ended"]["reason"] == "handoff"
    assert turn["ended"]["handoff"]["destination"] == "office"
    assert reason is EndReason.HANDOFF
    assert rows(text)[-1]["record"]["handoff_destination"] == "office"


def test_when_the_messages_end_the_caller_hangs_up():
    text, reason = run(chat([]))
    assert reason is None
    assert rows(text)[-1]["record"]["end_reason"] == "caller_hangup"


def test_an_empty_message_is_a_silent_turn():
    text, reason = run(chat(["", "", ""], {"text": "Hello?"}, {"text": "Hello?"}))
    assert reason is EndReason.SILENCE
    assert rows(text)[3]["agent"] == ["I cannot hear you. Goodbye."]
    assert rows(text)[-1]["record"]["num_silences"] == 3


def test_restart_begins_again_and_exit_ends():
    text, _ = run(chat(["/restart", "/exit", "not said"], as_json=True))
    assert ["record" in row for row in rows(text)] == [False, True, False, True]


def test_as_text_only_what_was_said_is_shown():
    text, _ = run(chat(["a person"], {"calls": [call("person_wanted", reason="r")]}, as_json=False))
    assert text.splitlines()[-3:] == ["I am putting you through.", "[handed to office]", "[handoff]"]


def test_a_script_without_an_entry_left_is_an_error_after_the_record():
    with pytest.raises(ScriptError):
        run(chat(["hello"]))


def test_without_messages_they_are_asked_for(monkeypatch: pytest.MonkeyPatch):
    async def typed() -> tuple[str, EndReason | None]:
        model = ScriptedModel.from_entries({"text": "Yes?"})
        project = load_flow_project(FERRY, model, InProcessPool(project_runtime(FERRY)))
        out = io.StringIO()
        reason = await run_chat(project, None, ChatOptions(), out)
        await project.close()
        return out.getvalue(), reason

    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    text, reason = asyncio.run(typed())
    assert text.splitlines()[-2:] == ["> Yes?", "> [caller_hangup]"]
    assert reason is None
