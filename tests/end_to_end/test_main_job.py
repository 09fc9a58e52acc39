"""A softphone calls the example agent: recognised, served while a function is slow, barged in on, transferred."""

from __future__ import annotations

import re
import wave
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.baresip import BARESIP, baresip
from tests.end_to_end.server_process import ServerProcess, serve

CALLERS = Path(__file__).parent / "callers"
RATE = 8000

# Seconds into the call at which the caller says what. The greeting takes three; the question for the number six. The
# answer of the look-up begins about five seconds after the number's last digit and is long enough to be cut.
LINES = ((5.0, "c10"), (16.0, "c23"), (26.5, "c08"))
CALL_SECONDS = 45.0

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(BARESIP is None, reason="baresip is not installed"),
]


def microphone(path: Path) -> Path:
    """One WAV file with the caller's lines at their times."""
    audio = bytearray(int(CALL_SECONDS * RATE) * 2)
    for at, name in LINES:
        with wave.open(str(CALLERS / f"{name}_hibari_heart.wav")) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
            words = file.readframes(file.getnframes())
        start = int(at * RATE) * 2
        audio[start : start + len(words)] = words
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(bytes(audio))
    return path


def play(server: ServerProcess, folder: Path, number: int) -> tuple[dict[str, Any], str]:
    """One call; its record, and what the phone's own recording says."""
    from callagent.speech.local.recognizer import transcribe_wav

    folder.mkdir()
    with baresip(folder / "caller", microphone(folder / "microphone.wav")) as caller:
        caller.command("dial", f"sip:agent@{server.sip}")
        caller.wait_for("CALL_ESTABLISHED")
        caller.wait_for("CALL_CLOSED", 60)
        record = server.wait_for_records(number)[-1]
        return record, transcribe_wav(caller.heard()[0])


def check(record: dict[str, Any], heard: str) -> None:
    turns = {turn["number"]: turn for turn in record["turns"]}
    said = " ".join(turn["user_input"].lower() for turn in turns.values())
    assert "status of my order" in said
    assert record["state"]["tracking_number"] == "84276"
    look_up = next(
        one for turn in turns.values() for one in turn["functions"] if one["name"] == "tracking_number_given"
    )
    assert look_up["duration_ms"] >= 3000
    assert look_up["error"] is None
    fillers = [one["text"] for turn in turns.values() for one in turn["spoken"] if one["kind"] == "filler"]
    assert "One moment, I am looking for your parcel." in fillers
    assert sum(turn["barge_in"] for turn in turns.values()) == 1
    assert record["handoff"]
    assert record["handoff_destination"] == "support"
    assert record["transfers"][0]["method"] == "refer"
    assert record["transfers"][0]["status"] == "succeeded"
    assert record["end_reason"] == "handoff"
    assert record["end_function"] == "done"
    assert {"name": "OUTCOME", "value": "transferred"} in record["metrics"]
    words = re.sub(r"[^a-z ]", "", heard.lower())
    for expected in ("harbour parcel", "tracking number", "one moment", "put you through"):
        assert expected in words or expected.replace("harbour", "harbor") in words, words


def repeat(folder: Path, times: int) -> None:
    with baresip(folder / "person", CALLERS / "c01_hibari_heart.wav") as person:
        config = folder / "callagent.toml"
        config.write_text(f'[[targets]]\nname = "support"\nuri = "sip:user@127.0.0.1:{person.sip_port}"\n')
        with serve(folder, "--config", str(config)) as server:
            for number in range(1, times + 1):
                record, heard = play(server, folder / f"call{number}", number)
                check(record, heard)
                assert any(event.get("type") == "CALL_ESTABLISHED" for event in person.events), "nobody was called"


@pytest.mark.end_to_end
def test_a_softphone_holds_the_whole_conversation(tmp_path: Path) -> None:
    repeat(tmp_path, 1)


@pytest.mark.acceptance("calls")
def test_five_calls_in_a_row(tmp_path: Path) -> None:
    repeat(tmp_path, 5)
