"""A card number keyed in by the caller reaches the project's function and nothing else that is kept or asked."""

from __future__ import annotations

import asyncio
import audioop
import json
import wave
from pathlib import Path

import pytest

from callagent.phone.handset import read_wav
from tests.end_to_end.scripted import WORDS, scripts, talker
from tests.end_to_end.server_process import serve

pytestmark = pytest.mark.end_to_end
TILL = Path(__file__).parents[1] / "projects" / "till"
CARD = "4929135724680135"
NAME = "[secure digits 1]"


async def test_a_card_reaches_the_function_and_no_text_log_record_model_or_recording(tmp_path: Path) -> None:
    call = {"calls": [{"name": "pay", "arguments": {"card": NAME}}]}
    asked = {"last_user": r"^\[secure digits 1\]$"}
    # What the function gives back is in the request after it: the name, where it gave the card.
    thought = [{**call, "expect": asked}, call, {"text": "Thank you."}]
    settings = scripts(tmp_path, ["goodbye"], thought)
    recordings = tmp_path / "recordings"
    settings["RECORDS__RECORDINGS"] = str(recordings)
    with serve(tmp_path, "--log-level", "debug", project=TILL, **settings) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
            # A telephone's keys are heard on the line, too.
            loud = asyncio.create_task(caller.microphone.speak(read_wav(WORDS)))
            await caller.line.send_digits(CARD)
            await loud
            await caller.listen(2, 30)
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    turn = record["turns"][1]
    assert (turn["user_input"], turn["user_input_dtmf"]) == ("", "[hidden]")
    functions = [one for one in turn["functions"] if one["name"] == "pay"]
    assert [one["error"] is None for one in functions] == [False, True]
    assert functions[1]["result"]["content"] == f"Paid with {NAME}, of 16 digits, ending 35."
    assert functions[0]["arguments"] == {"card": NAME}
    assert record["state"]["card"] == record["state"]["spoken"] == NAME
    assert {"name": "CARD", "value": NAME} in record["metrics"]
    assert record["turns"][1]["agent_response"] == "Thank you."
    assert {one["digit"] for one in record["digits"]} == {"•"}
    (recording,) = recordings.glob("*.wav")
    with wave.open(str(recording)) as file:
        both = file.readframes(file.getnframes())
    caller, agent = audioop.tomono(both, 2, 1, 0), audioop.tomono(both, 2, 0, 1)
    assert (audioop.max(caller, 2), audioop.max(agent, 2) > 1000) == (0, True)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wav" for path in kept)
    grouped = " ".join(CARD[at : at + 4] for at in range(0, 16, 4))
    for path in kept:
        data = path.read_bytes()
        for form in (CARD, grouped, " ".join(CARD), json.dumps(list(CARD))):
            assert form.encode() not in data, f"{path.name} holds the card as {form!r}"
