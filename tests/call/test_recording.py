"""What of a call is on its recording: real files, in real time, the calls all at once."""

from __future__ import annotations

import asyncio
import os
import wave
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from callagent.agents import (
    Action,
    AgentRecord,
    ControlRecording,
    DigitSettings,
    HangUp,
    Listen,
    ListenSettings,
    Say,
)
from callagent.call import recording_tap
from callagent.call.recorder import Recorder
from callagent.call.recording_tap import RecordingTap
from callagent.call.state import CallSettings
from callagent.call_info import CallInfo
from callagent.log import get_logger
from callagent.records import CallRecord
from tests.call.test_call import Scene
from tests.fakes import FakeAgent, FakeMedia, says

SECRET = Listen(ListenSettings(digits=DigitSettings(max_digits=4, is_pii=True)))
GREETING = (Say("Hello."), Listen())
GO_ON = (Say("Go on."), Listen())
GOODBYE = (Say("Goodbye."), HangUp())
SPOKEN = (2.0, 5.0)


@dataclass(frozen=True)
class Recorded:
    record: CallRecord
    files: list[Path]

    def speech(self) -> list[bool]:
        """Of the caller's two utterances, which are on it."""
        assert self.record.recording
        with wave.open(self.record.recording) as file:
            caller = memoryview(file.readframes(file.getnframes())).cast("h")[0::2].tolist()
        heard = [round((at + 0.3) * 8000) for at in SPOKEN]
        return [max(map(abs, caller[at : at + 800]), default=0) > 500 for at in heard]


async def recorded(folder: Path, greeting: Sequence[Action], second: Sequence[Action]) -> Recorded:
    scene = Scene(FakeAgent([says(*second), says(*GOODBYE)], greeting), ["one", "two"])
    for at in SPOKEN:
        scene.caller_speaks(at, 0.8)
    record = await scene._play(CallSettings(recordings=folder))
    return Recorded(record, list(folder.iterdir()) if folder.exists() else [])


class Placing(FakeAgent):
    def __init__(self, place: str) -> None:
        super().__init__([says(*GO_ON), says(*GOODBYE)], GREETING)
        self._place = place

    def record(self) -> AgentRecord:
        return replace(super().record(), recording=self._place)


@pytest.mark.parametrize(
    ("place", "kept"), [("app/day", "app/day/c1.wav"), ("../elsewhere", "c1.wav"), ("/tmp/elsewhere", "c1.wav")]
)
def test_a_project_says_where_below_the_folder_its_recordings_are(place: str, kept: str, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    scene = Scene(Placing(place), ["one", "two"])
    for at in SPOKEN:
        scene.caller_speaks(at, 0.8)
    record = asyncio.run(scene._play(CallSettings(recordings=folder)))
    assert record.recording == str(folder / kept)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.wav")] == [f"recordings/{kept}"]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    scenes: dict[str, tuple[Sequence[Action], Sequence[Action]]] = {
        "whole": (GREETING, GO_ON),
        "secret": (GREETING, (Say("Your PIN."), SECRET)),
        "paused": ((ControlRecording("pause"), *GREETING), (ControlRecording("resume"), *GO_ON)),
        "discarded": (GREETING, (ControlRecording("discard"), *GO_ON)),
        "unwanted": ((ControlRecording("discard"), *GREETING), GO_ON),
    }

    async def play() -> list[Recorded]:
        folders = [tmp_path_factory.mktemp(name) for name in scenes]
        return await asyncio.gather(*map(recorded, folders, *zip(*scenes.values(), strict=True)))

    return dict(zip(scenes, asyncio.run(play()), strict=True))


def test_both_utterances_are_recorded(calls: dict[str, Recorded]) -> None:
    assert calls["whole"].speech() == [True, True]
    assert [path.name for path in calls["whole"].files] == ["c1.wav"]


def test_what_is_heard_while_secret_keys_are_taken_is_not(calls: dict[str, Recorded]) -> None:
    assert calls["secret"].speech() == [True, False]


def test_a_paused_recording_goes_on_where_it_was_resumed(calls: dict[str, Recorded]) -> None:
    assert calls["paused"].speech() == [False, True]


@pytest.mark.parametrize("scene", ["discarded", "unwanted"])
def test_a_discarded_recording_leaves_nothing(calls: dict[str, Recorded], scene: str) -> None:
    assert calls[scene].record.recording is None
    assert calls[scene].files == []


async def test_recordings_on_a_disk_that_stalls_hold_up_nothing_but_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_tap, "RECORDING_CLOSE_SECONDS", 0.2)
    tapes, recorders, pipes = [], [], []
    for number in range(50):
        info = CallInfo(f"c{number}", "inbound", "+15550100", "42", "sip", datetime.now(UTC))
        recorders.append(Recorder(info, "p", "live", 0.0))
        pipes.append(tmp_path / f"c{number}.wav")
        # Opening a pipe that nobody reads waits, as a file system that has gone away does.
        os.mkfifo(pipes[-1])
        tapes.append(RecordingTap(tmp_path, recorders[-1], get_logger(__name__)))
        tapes[-1].attach(FakeMedia(), asyncio.get_running_loop().time())
    recordings = [tape._recording for tape in tapes]
    await asyncio.gather(*(tape.close() for tape in tapes))
    assert await asyncio.to_thread(lambda: "others have a thread") == "others have a thread"
    assert [recorder.record.recording for recorder in recorders] == [str(pipe) for pipe in pipes]
    assert all("did not take the whole file in time" in recorder.record.errors[0]["detail"] for recorder in recorders)
    readers = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes]
    for recording in recordings:
        assert recording is not None
        await asyncio.wrap_future(recording._done)
    for reader in readers:
        os.close(reader)
