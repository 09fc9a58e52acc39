"""Project functions that loop, exit or oversleep, in several calls at once: the calls go on, on time and on record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.scripted import MILL, Talker, scripts, talker
from tests.end_to_end.server_process import serve

CALLS = 4
FUNCTIONS = ("weigh", "grind_for_ever", "break_down", "oversleep", "weigh")
ANSWERS = ("It is noted.", "It went on for too long.", "Something broke.", "It never came back.", "It is noted again.")
SLOW = ("grind_for_ever", "oversleep")
FILLER = "The stones are turning."
LIMITS = {"LIMITS__SLOW_FUNCTION_SECONDS": "2"}

pytestmark = pytest.mark.end_to_end


def thoughts() -> list[dict[str, Any]]:
    pairs = zip(FUNCTIONS, ANSWERS, strict=True)
    return [entry for name, answer in pairs for entry in ({"calls": [{"name": name}]}, {"text": answer})]


async def converse(address: str, number: int) -> Talker:
    async with talker(address, f"+1555010{number}") as caller:
        await caller.listen(1)
        expected = 1
        for name in FUNCTIONS:
            expected += 2 if name in SLOW else 1
            await caller.say()
            await caller.listen(expected)
        assert len(caller.earpiece.utterances) == expected
    return caller


async def test_the_calls_go_on_with_fillers_answers_and_state(tmp_path: Path) -> None:
    with serve(tmp_path, project=MILL, **scripts(tmp_path, ["go"] * len(FUNCTIONS), thoughts()), **LIMITS) as server:
        callers = await asyncio.gather(*(converse(server.sip, number) for number in range(CALLS)))
        records = await asyncio.to_thread(server.wait_for_records, CALLS)
    for record in records:
        check(record)
    for caller in callers:
        statistics = caller.line.media.statistics()
        assert (statistics.packets_lost, statistics.packets_late) == (0, 0)
    assert "Traceback" not in server.errors.read_text()


def check(record: dict[str, Any]) -> None:
    turns = record["turns"][1:]
    runs = [one for turn in turns for one in turn["functions"]]
    assert [one["name"] for one in runs] == list(FUNCTIONS)
    assert [bool(one["error"]) for one in runs] == [False, True, True, True, False]
    assert "2" in runs[1]["error"], "the deadline is named"
    for run in (runs[1], runs[3]):
        assert 2000 <= run["duration_ms"] < 4000
    for turn, answer in zip(turns, ANSWERS, strict=True):
        assert turn["agent_response"].endswith(answer)
    fillers = [[one["text"] for one in turn["spoken"] if one["kind"] == "filler"] for turn in turns]
    assert fillers[1] == fillers[3] == [FILLER]
    # What a killed function had changed is gone with it; what was there before it is not.
    assert record["state"]["sacks"] == 2
    assert record["metrics"] == [{"name": "ENDED", "value": 2}]
    assert (record["end_reason"], record["end_function"]) == ("caller_hangup", "done")
    assert not record["errors"]
