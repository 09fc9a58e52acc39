from __future__ import annotations

import asyncio
import math
import shutil
import struct
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.records import CallRecord, Store, read_call
from callagent.records.conversion import RecordingConversion, RecordingFormat, convert, expect_converter
from callagent.records.reading_process import waveform

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
    expect_converter("wav")
    with pytest.raises(UserError, match=r"records\.recording_format.*ffmpeg"):
        expect_converter("opus")
