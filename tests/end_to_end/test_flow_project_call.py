"""Flow projects answer the telephone: a caller over SIP with an embedded voice; only the language model is a script."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agents.flows.example_projects.support import FOLDER, call, calls, needs_projects, text
from tests.agents.flows.support import FERRY
from tests.end_to_end.server_process import run_command, serve

pytestmark = [pytest.mark.end_to_end, pytest.mark.local]


def phone_call(
    folder: Path, project: Path, script: Sequence[dict[str, Any]], says: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """The record of one call that the agent ends, and what the caller heard, in plain words."""
    answers, lines = folder / "answers.yaml", folder / "caller.yaml"
    answers.write_text(json.dumps(list(script)), encoding="utf-8")
    # Each line when the agent has paused. The last step waits for the agent to hang up.
    lines.write_text(json.dumps([*({"say": line} for line in says), {"stay_silent": 60}]), encoding="utf-8")
    with serve(folder, project=project, MODEL__NAME=f"script:{answers}") as server:
        phone = run_command(["call", f"sip:agent@{server.sip}", "--script", str(lines), "--json"], seconds=240)
        assert phone.returncode == 0, phone.stderr
        (record,) = server.wait_for_records(1)
    events = [json.loads(line) for line in phone.stdout.splitlines()]
    heard = " ".join(event["text"] for event in events if event["event"] == "agent")
    return record, re.sub(r"[^a-z ]", "", heard.lower())


def functions(record: dict[str, Any]) -> list[str]:
    return [function["name"] for turn in record["turns"] for function in turn["functions"]]


def errors(record: dict[str, Any]) -> list[Any]:
    return [*record["errors"], *(f["error"] for turn in record["turns"] for f in turn["functions"] if f["error"])]


def said(record: dict[str, Any]) -> list[str]:
    return [turn["user_input"].lower() for turn in record["turns"] if turn["user_input"]]


@needs_projects
def test_the_restaurant_answers_the_telephone(tmp_path: Path) -> None:
    script = (
        text("Yes, there is parking behind the house."),
        call("start_make_booking", party_size=4, date="-", user_want_to_make_multiple_bookings=False),
        text("For which day, please?"),
        text("Enjoy the rest of your day! Goodbye!"),
    )
    says = ("Is there any parking for my car?", "I would like a table for four people.", "I will call again later.")
    record, heard = phone_call(tmp_path, FOLDER / "restaurant-table-booking", script, says)
    assert errors(record) == []
    assert "Poly Bistro Downtown" in record["turns"][0]["agent_response"]
    assert "parking" in said(record)[0]
    assert "table" in said(record)[1]
    assert functions(record)[:2] == ["start_function", "start_make_booking"]
    # The project's filter on "Goodbye" calls its function `hangup`.
    assert functions(record)[-1] == "hangup"
    assert record["end_reason"] == "agent_hangup"
    metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert metrics["RESTAURANT_NAME"] == "Poly Bistro Downtown"
    assert next(metric["value"] for metric in record["metrics"] if metric["name"] == "QA") == "parking"
    assert record["end_function"] == "done"
    for expected in ("thanks for calling", "parking behind the house", "which day", "goodbye"):
        assert expected in heard, heard


def test_a_small_project_answers_the_telephone(tmp_path: Path) -> None:
    """A flow with a function step, entities, a condition, fillers of a slow function, and the end."""
    script = (
        call("booking_wanted"),
        text("For how many people, and on which day?"),
        calls(call("save_entities", party=4, travel_day="2026-12-24"), call("condition_all_given")),
        text("Four people on Christmas Eve. Is that right?"),
        call("confirmed"),
        call("goodbye"),
    )
    says = (
        "I would like to book a crossing.",
        "We are four people, on the twenty fourth of December.",
        "Yes, that is right.",
        "No thank you, goodbye.",
    )
    record, heard = phone_call(tmp_path, FERRY, script, says)
    assert errors(record) == []
    assert "book" in said(record)[0]
    assert functions(record) == ["start_function", "booking_wanted", "entry", "confirmed", "goodbye"]
    fillers = [one["text"] for turn in record["turns"] for one in turn["spoken"] if one["kind"] == "filler"]
    assert fillers == ["Booking for 4."]
    assert {"name": "BOOKED", "value": 4} in record["metrics"]
    assert {"name": "OUTCOME", "value": "booked"} in record["metrics"]
    assert record["end_reason"] == "agent_hangup"
    assert record["end_function"] == "done"
    for expected in ("welcome to north island", "how many people", "christmas eve", "have a good crossing"):
        assert expected in heard, heard
