"""Training rows of each kind of project, from files and from records."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from callagent.commands.export_training import _export, export_training
from callagent.config import Config
from callagent.config.sections import RecordSettings
from callagent.errors import UserError
from callagent.models.functiongemma import TrainingRow

PROJECTS = Path(__file__).parents[1] / "projects"
SAVED = {"name": "save_entities", "arguments": {"party": 2}}


def request(flow: str | None, step: str | None, *calls: dict[str, Any], error: str | None = None) -> dict[str, Any]:
    return {"flow": flow, "step": step, "calls": list(calls), "error": error}


def function(name: str, result: Any = None, error: str | None = None, **added: Any) -> dict[str, Any]:
    return {"name": name, "result": result, "error": error, "state_changes": {"added": added, "updated": {}}}


def turn(said: str, *requests: dict[str, Any], functions: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"user_input": said, "functions": list(functions), "requests": list(requests)}


async def rows_of(project: str, name: str, *turns: dict[str, Any]) -> list[TrainingRow]:
    """Those from the call."""
    record = {"id": "1", "project_id": name, "started_at": "2026-03-02T09:30:00.000Z", "turns": list(turns)}
    others = {**record, "id": "2", "project_id": "another"}
    numbers = {"from_number": "+15550100", "to_number": "42"}
    export = await _export(Config(), PROJECTS / project, [record | numbers, others | numbers])
    assert export.calls == 1
    return [row for row in export.rows if row.source == "call 1"]


def completion(inside: str) -> str:
    return f"<start_function_call>call:{inside}<end_function_call><start_function_response>"


async def test_flow_project_has_its_example_queries_and_functions() -> None:
    export = await _export(Config(), PROJECTS / "ferry", [])
    rows = {row.utterance: row for row in export.rows}
    assert rows["Can I bring my dog?"].completion == completion("dog_noted{}")
    assert rows["Can I bring my dog?"].source == "topics/dogs.yaml"
    assert rows["The caller confirms."].completion == completion("confirmed{}")
    assert "declaration:rejected{" in rows["The caller confirms."].prompt


async def test_requests_of_a_turn_follow_one_another_as_the_call_went() -> None:
    wanted = {"name": "booking_wanted", "arguments": {}}
    rows = await rows_of(
        "ferry",
        "Island Ferry",
        turn(
            "two of us",
            request(None, None, wanted),
            request("Booking", "Collect details", SAVED),
            request("Booking", "Collect details"),
            functions=(function("booking_wanted", "In the flow."),),
        ),
        turn("nothing"),
    )
    assert [row.completion for row in rows] == [
        completion("booking_wanted{}"),
        completion("save_entities{party:2}"),
        "<end_of_turn>",
    ]
    assert "response:booking_wanted{value:<escape>In the flow.<escape>}" in rows[1].prompt
    assert "Today is Monday 2026-03-02." in rows[1].prompt
    assert "party (numeric, not collected yet)" in rows[1].prompt
    assert "party (numeric, collected: 2)" in rows[2].prompt


@pytest.mark.parametrize(
    "left",
    [
        turn("call me at [phone number]", request(None, None)),
        turn("a person", request(None, None, {"name": "person_wanted", "arguments": {"reason": "[email]"}})),
        turn("a person", request(None, None, {"name": "person_wanted", "arguments": {}})),
        turn("hello", request(None, None, error="ProviderTimeout: late")),
        turn("hello", request("Gone", "Gone")),
        turn("bye", request(None, None, {"name": "sink", "arguments": {}})),
        turn(
            "book",
            request(None, None, {"name": "booking_wanted", "arguments": {}}),
            functions=(function("booking_wanted", error="it broke"),),
        ),
        {"user_input": "from an older version", "functions": []},
        turn("", request(None, None)),
    ],
)
async def test_what_went_wrong_or_is_redacted_is_no_example(left: dict[str, Any]) -> None:
    assert await rows_of("ferry", "Island Ferry", left) == []


async def test_agent_tree() -> None:
    arguments = {"part": "chain", "colour": "red", "count": 2, "to": {"street": "Mill Lane"}}
    order = {"name": "order_part", "arguments": arguments}
    rows = await rows_of("adk_desk", "adk_desk", turn("a red chain", request("desk", "repairs", order)))
    (row,) = rows
    assert "You plan repairs." in row.prompt
    assert "declaration:order_part{" in row.prompt
    assert "part:<escape>chain<escape>" in row.completion
    # An argument's own class is declared in full.
    assert "street:{description:<escape><escape>,type:<escape>STRING<escape>}" in row.prompt


async def test_cx_app() -> None:
    moved = {"name": "transfer_to_agent", "arguments": {"agent_name": "billing"}}
    rows = await rows_of("cx_desk", "City Utilities", turn("my bill", request("front_desk", "front_desk", moved)))
    (row,) = rows
    assert row.completion == completion("transfer_to_agent{agent_name:<escape>billing<escape>}")
    instruction = (PROJECTS / "cx_desk" / "agents" / "front_desk" / "instruction.txt").read_text()
    assert instruction.split()[0] in row.prompt


def test_two_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(records=RecordSettings(path=str(tmp_path / "none.db")))
    options = argparse.Namespace(project=PROJECTS / "ferry", output=tmp_path / "out")
    assert export_training(config, options) == 0
    sizes = []
    for name in ("train", "held_out"):
        rows = [json.loads(line) for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()]
        assert all(row.keys() == {"prompt", "completion", "source"} for row in rows)
        sizes.append(len(rows))
    assert min(sizes) > 0
    assert f"{sizes[0]} rows in" in capsys.readouterr().out


def test_project_without_anything_to_learn_is_told_so(tmp_path: Path) -> None:
    config = Config(records=RecordSettings(path=str(tmp_path / "none.db")))
    options = argparse.Namespace(project=PROJECTS / "cx_desk", output=tmp_path / "out")
    with pytest.raises(UserError, match="nothing to train on"):
        export_training(config, options)
