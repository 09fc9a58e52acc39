"""Whole conversations of a small surgery through `callagent chat --json`: words, steps, functions, metrics, the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agents.flows.example_projects.support import Chat, Trace, call, calls, chat, text
from tests.agents.flows.support import flow_config, function, step, write_project

__all__ = ["chat"]
ADA = "+15550001111"
MONDAY, SUNDAY = "2026-03-02T15:00:00", "2026-03-01T15:00:00"

START = """
    conv.state.patient = None
    conv.state.tries = 0
    if conv.clock.now().weekday() >= 5:
        conv.write_metric("OUT_OF_HOURS", write_once=True)
        conv.state.closed = True
        return {"utterance": "The surgery is closed. I can take bookings only."}
    conv.state.closed = False
"""
IDENTIFY = """
    conv.state.tries += 1
    if conv.entities.birth.value == "1985-03-15":
        conv.state.patient = {"name": "Ada", "booked": True}
        conv.write_metric("IDENTIFIED", True)
        flow.goto_step("Which")
        return
    conv.write_metric("NOT_IDENTIFIED", conv.state.tries)
    if conv.state.tries > 1:
        return conv.call_handoff("desk", reason="NOT_IDENTIFIED", utterance="I am putting you through to the desk.")
    flow.goto_step("Birth")
    return {"content": "The date does not match. Ask once more.", "end_turn": False}
"""
BOOK = """
    conv.write_metric("BOOKED", day)
    conv.send_sms_template(conv.caller_number, "confirmation")
    conv.state.day = day
    return {"utterance": f"Booked for {day}.", "transition": {"exit_flow": True}}
"""
SURGERY = {
    "project.yaml": "project_name: Surgery\nproject_id: surgery\naccount_id: tests\n",
    "agent_settings/persona.txt": "You answer for a surgery.",
    "agent_settings/rules.txt": "Closed: $closed. {{fn:book}} {{fn:cancel}}",
    "voice/configuration.yaml": "greeting: {welcome_message: 'Surgery, hello.', language_code: en-US}\n",
    "voice/response_control/phrase_filtering.yaml": """\
        phrase_filtering:
          - {name: goodbye, regular_expressions: ['[Gg]oodbye'], say_phrase: true, function: leave}
        """,
    "config/entities.yaml": "entities: [{name: birth, description: date of birth, entity_type: date, config: {}}]\n",
    "config/handoffs.yaml": """\
        handoffs:
          - name: desk
            is_default: true
            sip_config: {method: refer, phone_number: "+15550009999"}
            sip_headers: [{key: X-Tries, value: $tries}]
        """,
    "config/sms_templates.yaml": """\
        sms_templates:
          - name: confirmation
            text: See you on $day.
            env_phone_numbers: {sandbox: "+15550000001", pre_release: "", live: "+15550000002"}
        """,
    "functions/start_function.py": function("start_function", START),
    "functions/end_function.py": function("end_function", "conv.write_metric('LAST_STEP', conv.current_step)"),
    "functions/book.py": function("book", 'conv.goto_flow("Booking")'),
    "functions/cancel.py": function("cancel", 'conv.goto_flow("Cancelling")'),
    "functions/leave.py": function(
        "leave", 'conv.write_metric("SAID_GOODBYE")\nreturn {"utterance": "", "hangup": True}'
    ),
    "flows/booking/flow_config.yaml": flow_config("Booking", "Day"),
    "flows/booking/steps/day.yaml": step("Day", "Which day? {{ft:day_given}}"),
    "flows/booking/functions/day_given.py": function(
        "day_given",
        BOOK,
        ", day: str",
        flow=True,
        decorators='@func_description("The day.")\n@func_parameter("day", "a weekday")\n'
        '@func_latency_control(0, 0, [("Let me write that down.", 1)])\n',
    ),
    "flows/cancelling/flow_config.yaml": flow_config("Cancelling", "entry"),
    "flows/cancelling/function_steps/entry.py": function(
        "entry",
        'flow.goto_step("Birth" if conv.caller_number else "Which")',
        flow=True,
        decorators="\n",
    ),
    "flows/cancelling/function_steps/identify.py": function("identify", IDENTIFY, flow=True, decorators="\n"),
    "flows/cancelling/steps/birth.yaml": """\
        step_type: default_step
        name: Birth
        prompt: Ask for {{entity:birth}}.
        extracted_entities: [birth]
        conditions:
          - name: Given
            condition_type: step_condition
            description: The date is known.
            child_step: identify
            required_entities: [birth]
        """,
    "flows/cancelling/steps/which.yaml": step("Which", "The patient is $patient. Which visit? {{ft:cancelled}}"),
    "flows/cancelling/functions/cancelled.py": function(
        "cancelled",
        'conv.write_metric("CANCELLED", conv.state.patient["name"])\nconv.exit_flow()\nreturn "Cancelled: say so."',
        flow=True,
    ),
}


def play(chat: Chat, folder: Path, says: list[str], script: list[dict[str, Any]], *options: str) -> Trace:
    root = write_project(folder / "surgery", SURGERY)
    trace = chat.play(root, says, script, "--caller", ADA, *options)
    assert trace.errors == []
    assert trace.record["end_function"] == "done"
    return trace


def born(date: str) -> dict[str, Any]:
    return calls(call("save_entities", birth=date), call("condition_given"))


def test_a_booking_with_its_text_message(chat: Chat, tmp_path: Path):
    script = [call("book"), text("Which day suits you?"), call("day_given", day="Friday"), text("Anything else?")]
    trace = play(chat, tmp_path, ["a visit please", "friday", "no"], script, "--env", "live", "--at", MONDAY)
    assert [turn["agent"] for turn in trace.turns] == [
        ["Surgery, hello."],
        ["Which day suits you?"],
        ["Booked for Friday."],
        ["Anything else?"],
    ]
    assert trace.steps == [(None, None), ("Booking", "Day"), (None, None), (None, None)]
    assert [trace.functions(turn) for turn in range(4)] == [["start_function"], ["book"], ["day_given"], []]
    assert trace.turns[2]["fillers"] == ["Let me write that down."]
    assert trace.metric("BOOKED") == ["Friday"]
    (message,) = trace.record["messages"]
    assert (message["to"], message["from"], message["text"]) == (ADA, "+15550000002", "See you on Friday.")
    transitions = [each["transition"] for turn in trace.record["turns"] for each in turn["functions"]]
    assert transitions[1] == {"goto_flow": "Booking", "goto_step": None, "exit_flow": False}
    assert transitions[2] == {"goto_flow": None, "goto_step": None, "exit_flow": True}
    assert trace.metric("LAST_STEP") == [None]
    assert trace.ended is None


def test_a_verified_patient_cancels(chat: Chat, tmp_path: Path):
    script = [
        call("cancel"),
        text("When were you born?"),
        born("1985-03-15"),
        {"text": "Which visit, Ada?", "expect": {"system": "The patient is .*Ada", "tools": ["cancelled"]}},
        call("cancelled"),
        {"text": "It is cancelled.", "expect": {"tools": ["book", "cancel"]}},
    ]
    trace = play(chat, tmp_path, ["cancel my visit", "15 march 85", "the one on friday"], script, "--at", MONDAY)
    assert trace.steps == [(None, None), ("Cancelling", "Birth"), ("Cancelling", "Which"), (None, None)]
    assert [trace.functions(turn) for turn in (1, 2, 3)] == [["cancel", "entry"], ["identify"], ["cancelled"]]
    assert trace.turns[3]["agent"] == ["It is cancelled."]
    assert (trace.metric("IDENTIFIED"), trace.metric("CANCELLED")) == ([True], ["Ada"])
    assert trace.record["entities"] == {"birth": "1985-03-15"}


def test_an_identity_check_that_fails_hands_the_call_off(chat: Chat, tmp_path: Path):
    script = [call("cancel"), text("When were you born?"), born("1990-01-01"), text("Again?"), born("1991-01-01")]
    trace = play(chat, tmp_path, ["cancel", "1 january 90", "1 january 91"], script, "--at", MONDAY)
    assert trace.steps[2] == ("Cancelling", "Birth")
    assert trace.turns[2]["agent"] == ["Again?"]
    assert trace.turns[3]["agent"] == ["I am putting you through to the desk."]
    assert trace.metric("NOT_IDENTIFIED") == [1, 2]
    assert (trace.metric("HANDOFF_TO"), trace.metric("HANDOFF_REASON")) == (["desk"], ["NOT_IDENTIFIED"])
    assert trace.ended["handoff"] == {
        "destination": "desk",
        "reason": "NOT_IDENTIFIED",
        "method": "refer",
        "number": "+15550009999",
        "headers": {"X-Tries": "2"},
    }
    assert trace.metric("LAST_STEP") == ["identify"]


@pytest.mark.parametrize(
    ("at", "greeting", "closed"),
    [(SUNDAY, "The surgery is closed. I can take bookings only.", True), (MONDAY, "Surgery, hello.", False)],
)
def test_a_start_out_of_hours(chat: Chat, tmp_path: Path, at: str, greeting: str, closed: bool):
    script = [{"text": "Yes?", "expect": {"system": f"Closed: {closed}"}}]
    trace = play(chat, tmp_path, ["hello"], script, "--at", at)
    assert trace.turns[0]["agent"] == [greeting]
    assert trace.metric("OUT_OF_HOURS") == ([None] if closed else [])


def test_a_goodbye_filter_hangs_up(chat: Chat, tmp_path: Path):
    script = [text("You are welcome. Goodbye, and take care. One more thing.")]
    trace = play(chat, tmp_path, ["thanks"], script, "--at", MONDAY)
    assert trace.turns[1]["agent"] == ["You are welcome. Goodbye"]
    assert trace.functions(1) == ["leave"]
    assert trace.metric("SAID_GOODBYE") == [None]
    assert trace.ended == {"reason": "agent_hangup", "handoff": None}
