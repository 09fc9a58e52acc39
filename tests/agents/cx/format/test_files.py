"""The files of an app that are recordings, and their place in what the agent says."""

from __future__ import annotations

import io
import itertools
import math
import struct
import wave
from pathlib import Path

import pytest

from callagent.agents import Say, SetBackground
from callagent.agents.cx import check_cx_app
from callagent.agents.cx.engine.telephony import ambient_sound, ambient_sound_problem
from callagent.agents.cx.format.files import AppFiles, Recordings
from callagent.audio import SAMPLE_RATE
from callagent.audio.sounds import GENERATORS
from tests.agents.cx.support import GREETING, driven, write_app
from tests.agents.driving import started


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


HOLDS = """
    def before_model_callback(callback_context, llm_request):
        if len(callback_context.events) < 2:
            parts = [Part.from_text("One moment."), Part.from_audio("hold.wav", cancellable=True)]
            return LlmResponse(content=Content(parts=parts, role="model"), partial=True)
"""


async def test_music_before_the_models_answer_may_be_cancelled(tmp_path: Path) -> None:
    app = write_app(tmp_path, callbacks={"before_model": HOLDS})
    (app / "audio").mkdir()
    (app / "audio" / "hold.wav").write_bytes(tone(8000))
    async with driven(app, {"text": "It is ready."}) as agent:
        said = [action for action in await agent.says("Where is it?") if isinstance(action, Say)]
    assert [(each.text, each.cancellable, each.pcm is not None) for each in said] == [
        ("One moment.", False, False),
        ("[hold.wav]", True, True),
        ("It is ready.", False, False),
    ]
    assert not check_cx_app(app).warnings


def ambient(**config: object) -> dict[str, object]:
    return {"audioProcessingConfig": {"ambientSoundConfig": config}}


@pytest.mark.parametrize("name", ["COFFEE_SHOP", "office_2", "room_5", "keypad", "air_conditioner", "OUTDOOR"])
def test_prebuilt_ambient_sounds_are_ones_that_are_here(name: str) -> None:
    sound = ambient_sound(ambient(prebuiltAmbientSound=name))
    assert sound is not None
    assert sound.name in GENERATORS


def test_an_own_ambient_sound_has_its_files_name_and_loudness_is_bounded() -> None:
    assert ambient_sound(ambient(gcsUri="gs://b/Hall.wav", volumeGainDb=6)) == SetBackground("Hall", -34.0)
    assert ambient_sound(ambient(gcsUri="gs://b/Hall.wav", volumeGainDb=96)) == SetBackground("Hall", -20.0)
    assert ambient_sound({}) is None
    assert "no ambient sound is played" in ambient_sound_problem(ambient(prebuiltAmbientSound="sea"))


async def test_the_ambient_sound_begins_with_the_call(tmp_path: Path) -> None:
    path = write_app(tmp_path, app=ambient(prebuiltAmbientSound="coffee_shop"), callbacks={"before_model": GREETING})
    async with driven(path) as agent:
        actions = await started(agent.agent)
    assert actions[0] == SetBackground("restaurant-ambiance", -40.0)
    assert [action.text for action in actions if isinstance(action, Say)] == ["Hello."]


def test_what_has_no_effect_is_told_with_its_place(tmp_path: Path) -> None:
    more = {"deployments/d/d.json": '{"appVersion": "versions/v9"}'}
    path = write_app(tmp_path, app=ambient(prebuiltAmbientSound="sea"), more=more)
    report = check_cx_app(path)
    told = [str(each) for each in (*report.errors, *report.warnings)]
    assert any("deployments/d/d.json:1: [CX015] version 'v9' is not in versions/" in each for each in told)
    assert any("app.json:1: [CX011] no ambient sound is played" in each for each in told)
