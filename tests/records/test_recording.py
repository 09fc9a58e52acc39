from __future__ import annotations

import asyncio
import math
import shutil
import struct
import time
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callagent.audio import FRAME_BYTES
from callagent.errors import UserError
from callagent.records import CallRecord, StereoRecording, Store, read_call
from callagent.records.recording import RecordingConversion, RecordingFormat, convert, require_converter, waveform


def frame(level: int) -> bytes:
    return struct.pack("<h", level) * (FRAME_BYTES // 2)


def levels(path: Path) -> list[tuple[int, int]]:
    """First sample of each 20 ms, left and right."""
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (2, 2, 8000)
        data = file.readframes(file.getnframes())
    return [struct.unpack_from("<hh", data, at) for at in range(0, len(data), 2 * FRAME_BYTES)]


def test_both_sides_stand_where_they_were_heard(tmp_path: Path) -> None:
    recording = StereoRecording(tmp_path / "call.wav", started=100.0)
    for n in range(5):
        recording.left(frame(1000 + n), 100.0 + n * 0.02)
    for n in range(2):
        recording.right(frame(-7), 100.2 + n * 0.02)
    recording.close()
    found = levels(tmp_path / "call.wav")
    assert [left for left, _ in found] == [1000, 1001, 1002, 1003, 1004, *[0] * 7]
    assert [right for _, right in found] == [*[0] * 10, -7, -7]


def test_jitter_does_not_make_gaps(tmp_path: Path) -> None:
    recording = StereoRecording(tmp_path / "call.wav", started=0.0)
    for n in range(10):
        recording.left(frame(n + 1), n * 0.02 + (0.03 if n % 3 else 0.0))
    recording.close()
    assert [left for left, _ in levels(tmp_path / "call.wav")] == list(range(1, 11))


def test_a_long_call_is_written_as_it_goes(tmp_path: Path) -> None:
    recording = StereoRecording(tmp_path / "call.wav", started=0.0)
    for n in range(300):
        recording.left(frame(1), n * 0.02)
    recording.close()
    assert len(levels(tmp_path / "call.wav")) == 300
    assert recording.dropped == 0


def test_a_pause_passes_as_silence(tmp_path: Path) -> None:
    recording = StereoRecording(tmp_path / "call.wav", started=0.0)
    for n in range(6):
        if n in (2, 4):
            recording.control("pause" if n == 2 else "resume")
        recording.left(frame(9), n * 0.02)
        recording.right(frame(5), n * 0.02)
    recording.close()
    assert levels(tmp_path / "call.wav") == [(9, 5), (9, 5), (0, 0), (0, 0), (9, 5), (9, 5)]


def test_a_discarded_recording_is_gone_before_the_call_ends(tmp_path: Path) -> None:
    path = tmp_path / "call.wav"
    recording = StereoRecording(path, started=0.0)
    for n in range(200):
        recording.left(frame(9), n * 0.02)
    recording.control("discard")
    deadline = time.monotonic() + 20
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not path.exists()
    recording.control("resume")
    recording.left(frame(9), 4.0)
    recording.close()
    assert not path.exists()


def test_a_side_whose_frames_come_all_at_once_does_not_silence_the_other(tmp_path: Path) -> None:
    recording = StereoRecording(tmp_path / "call.wav", started=0.0)
    recording.left(frame(9), 0.0)
    recording.right(frame(5), 0.0)
    # A stall of two seconds: what one side had to give comes in one go, the other goes on where the clock is.
    for _ in range(100):
        recording.left(frame(9), 2.0)
    for n in range(100, 250):
        recording.right(frame(5), n * 0.02)
        recording.left(frame(9), n * 0.02)
    recording.close()
    heard = levels(tmp_path / "call.wav")
    assert [right for _, right in heard[100:250]] == [5] * 150
    assert [left for left, _ in heard[100:250]] == [9] * 150
    assert len(heard) < 250 + 30


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_ends_the_recording_and_nobody_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "call.wav").symlink_to("/dev/full")
    recording = StereoRecording(tmp_path / "call.wav", started=0.0)
    for n in range(3000):
        recording.left(frame(n % 1000), n * 0.02)
        recording.right(frame(n % 1000), n * 0.02)
    recording.close()
    assert recording.error is not None
    assert "No space left" in recording.error
    assert recording._done.done()


def test_a_folder_that_cannot_be_made_costs_the_recording_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recording = StereoRecording(tmp_path / "file" / "call.wav", started=0.0)
    for n in range(1000):
        recording.left(frame(1), n * 0.02)
    recording.close()
    assert (recording.written, recording._done.done()) == (False, True)
    assert recording.error is not None


needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg here")


def tone(path: Path, seconds: float = 2.0) -> Path:
    """The caller is silent, the agent a tone of 440 Hz."""
    samples = (round(12000 * math.sin(2 * math.pi * 440 * n / 8000)) for n in range(round(seconds * 8000)))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"".join(struct.pack("<hh", 0, sample) for sample in samples))
    return path


def ended(call_id: str, recording: Path) -> CallRecord:
    at = "2026-01-01T00:00:00Z"
    return CallRecord(call_id, started_at=at, ended_at=at, in_progress=False, recording=str(recording))


@asynccontextmanager
async def converting(store: Store) -> AsyncIterator[RecordingConversion]:
    conversion = RecordingConversion(store, "opus")
    task = asyncio.create_task(conversion.run())
    try:
        yield conversion
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def recording_of(store: Store, call_id: str, suffix: str) -> Path:
    async with asyncio.timeout(60):
        while True:
            found = read_call(store.path, call_id)
            if found and found["recording"].endswith(suffix):
                return Path(found["recording"])
            await asyncio.sleep(0.05)


@needs_ffmpeg
@pytest.mark.parametrize("form", ["opus", "mp3"])
def test_a_smaller_file_sounds_the_same_on_the_same_sides(tmp_path: Path, form: RecordingFormat) -> None:
    source, target = tone(tmp_path / "c.wav"), tmp_path / f"c.{form}"
    convert(source, target)
    assert target.stat().st_size < source.stat().st_size / 2
    shape = waveform(target, 10)
    assert shape["seconds"] == pytest.approx(2.0, abs=0.2)
    assert max(shape["caller"]) < 0.02
    assert sorted(shape["agent"])[5] == pytest.approx(12000 / 32768, abs=0.05)
    assert list(tmp_path.glob("*.partial*")) == []


@needs_ffmpeg
async def test_a_call_that_is_over_gets_the_smaller_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    record = ended("c1", tone(tmp_path / "c1.wav"))
    await store.ended(record)
    async with converting(store) as conversion:
        conversion.add("c1", Path(record.recording or ""))
        target = await recording_of(store, "c1", ".opus")
        async with asyncio.timeout(20):
            while (tmp_path / "c1.wav").exists():
                await asyncio.sleep(0.02)
    assert target.is_file()
    await store.close()


@needs_ffmpeg
async def test_what_a_killed_server_left_is_converted_at_the_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    await store.ended(ended("c1", tone(tmp_path / "c1.wav")))
    async with converting(store):
        assert (await recording_of(store, "c1", ".opus")).is_file()
    await store.close()


@needs_ffmpeg
async def test_a_file_that_is_no_recording_stays_and_the_next_one_is_converted(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    await store.ended(ended("bad", tmp_path / "bad.wav"))
    await store.ended(ended("good", tone(tmp_path / "good.wav")))
    async with converting(store) as conversion:
        conversion.add("bad", tmp_path / "bad.wav")
        await recording_of(store, "good", ".opus")
    assert (tmp_path / "bad.wav").exists()
    await store.close()


def test_without_ffmpeg_the_setting_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    require_converter("wav")
    with pytest.raises(UserError, match=r"records\.recording_format.*ffmpeg"):
        require_converter("opus")
