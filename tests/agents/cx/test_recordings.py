"""Recordings in the place of words."""

from __future__ import annotations

import io
import itertools
import math
import struct
import wave
from pathlib import Path

import pytest

from callagent.agents.action import Say
from callagent.agents.cx import check_cx_app
from callagent.agents.cx.files import AppFiles
from callagent.agents.cx.recordings import Recordings
from callagent.call_info import SAMPLE_RATE
from tests.agents.cx.support import driven, write_app


def tone(rate: int, seconds: float = 0.5, channels: int = 1, width: int = 2) -> bytes:
    samples = [math.sin(440 * 2 * math.pi * n / rate) for n in range(int(rate * seconds))]
    form = {1: lambda x: struct.pack("B", int(128 + 100 * x)), 2: lambda x: struct.pack("<h", int(20000 * x))}[width]
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(channels)
        recording.setsampwidth(width)
        recording.setframerate(rate)
        recording.writeframes(b"".join(form(x) * channels for x in samples))
    return file.getvalue()


@pytest.mark.parametrize(
    ("rate", "channels", "width"), [(8000, 1, 2), (16000, 1, 1), (44100, 2, 2), (SAMPLE_RATE, 1, 2)]
)
def test_recordings_of_all_kinds_come_at_the_calls_rate(rate: int, channels: int, width: int) -> None:
    recordings = Recordings(AppFiles("", {"audio/a.wav": tone(rate, 0.5, channels, width)}))
    for uri in ("gs://bucket/some/a.wav", "audio/a.wav", "a.wav"):
        pcm = recordings.pcm(uri)
        assert pcm is not None
        assert len(pcm) / 2 / SAMPLE_RATE == pytest.approx(0.5, abs=0.01)
    samples = struct.unpack(f"<{len(pcm or b'') // 2}h", pcm or b"")
    assert max(samples) > 10000
    crossings = sum(a < 0 <= b for a, b in itertools.pairwise(samples))
    assert crossings == pytest.approx(220, abs=5)


def test_what_cannot_be_read_is_not_played() -> None:
    recordings = Recordings(AppFiles("", {"audio/a.wav": b"RIFF", "audio/b.wav": tone(1000)}))
    assert [recordings.pcm(uri) for uri in ("a.wav", "b.wav", "gs://bucket/c.wav")] == [None, None, None]


PLAYS = """
    def before_model_callback(callback_context, llm_request):
        return LlmResponse.from_parts([
            Part.from_text("Please listen."),
            Part.from_audio("gs://bucket/notice.wav", interruptable=False),
            Part.from_audio("gs://bucket/gone.wav"),
        ])
"""


async def test_a_callback_plays_a_recording_that_is_not_interrupted(tmp_path: Path) -> None:
    app = write_app(tmp_path, callbacks={"before_model": PLAYS})
    (app / "audio").mkdir()
    (app / "audio" / "notice.wav").write_bytes(tone(8000))
    async with driven(app) as agent:
        said = [action for action in await agent.says("Hello.") if isinstance(action, Say)]
    assert [(each.text, each.interruptible, each.pcm is not None) for each in said] == [
        ("Please listen.", True, False),
        ("[notice.wav]", False, True),
    ]
    (warning,) = check_cx_app(app).warnings
    assert warning.line == 6
    assert "'gs://bucket/gone.wav' is not played" in warning.message
