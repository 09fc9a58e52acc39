"""Speech is told from noise, by either detector, on telephone audio."""

from __future__ import annotations

import audioop
import hashlib
import math
import random
import wave
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callagent.audio import FRAME_BYTES, SAMPLE_RATE
from callagent.speech.voice_activity import (
    SILERO_FILE,
    SileroVoiceActivity,
    VoiceActivity,
    WebrtcVoiceActivity,
    open_voice_activity,
)

CALLERS = sorted((Path(__file__).parents[1] / "data" / "speech").glob("*.wav"))
DETECTORS = [
    pytest.param(SileroVoiceActivity, marks=pytest.mark.local),
    WebrtcVoiceActivity,
]


@pytest.fixture(autouse=True)
def _needs_engine(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("local"):
        pytest.importorskip("onnxruntime")


def frames(pcm: bytes) -> Iterator[bytes]:
    return (pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm) - FRAME_BYTES + 1, FRAME_BYTES))


def read(path: Path) -> bytes:
    with wave.open(str(path)) as recording:
        return recording.readframes(recording.getnframes())


def white_noise(level: float, seconds: float) -> bytes:
    """Gaussian noise at `level` dBFS, through G.711."""
    source = random.Random(7)
    deviation = 32768 * 10 ** (level / 20)
    noise = array("h", (round(source.gauss(0, deviation)) for _ in range(round(seconds * SAMPLE_RATE))))
    return audioop.ulaw2lin(audioop.lin2ulaw(noise.tobytes(), 2), 2)


def hum(level: float, seconds: float) -> bytes:
    amplitude = 32768 * 10 ** (level / 20) * math.sqrt(2)
    wave_form = (round(amplitude * math.sin(2 * math.pi * 50 * n / SAMPLE_RATE)) for n in range(int(seconds * 8000)))
    return array("h", wave_form).tobytes()


@pytest.mark.parametrize("make", DETECTORS)
@pytest.mark.parametrize("path", CALLERS, ids=lambda path: path.stem)
def test_a_callers_words_are_speech(make: Callable[[], VoiceActivity], path: Path) -> None:
    detector = make()
    heard = [(audioop.rms(frame, 2), detector.feed(frame)) for frame in frames(read(path))]
    loud = [probability > 0.5 for level, probability in heard if level > 1500]
    assert sum(loud) / len(loud) > 0.75


@pytest.mark.parametrize("make", DETECTORS)
@pytest.mark.parametrize(
    "sound",
    [
        pytest.param(bytes(SAMPLE_RATE * 2 * 4), id="digital silence"),
        pytest.param(white_noise(-50, 5), id="white noise at -50 dBFS"),
        pytest.param(white_noise(-38, 5), id="white noise at -38 dBFS"),
        pytest.param(hum(-45, 5), id="mains hum"),
    ],
)
def test_line_noise_is_not_speech(make: Callable[[], VoiceActivity], sound: bytes) -> None:
    detector = make()
    answers = [detector.feed(frame) for frame in frames(sound)]
    assert sum(answer > 0.5 for answer in answers) / len(answers) <= 0.02


@pytest.mark.parametrize("make", DETECTORS)
def test_answers_do_not_depend_on_how_the_audio_is_cut(make: Callable[[], VoiceActivity]) -> None:
    pcm = read(CALLERS[0])[: SAMPLE_RATE * 2]
    whole, pieces = make(), make()
    at_once = whole.feed(pcm)
    last = 0.0
    for at in range(0, len(pcm), 74):
        last = pieces.feed(pcm[at : at + 74])
    assert last == pytest.approx(at_once, abs=1e-6)


@pytest.mark.parametrize("make", DETECTORS)
def test_reset_forgets_the_call_before(make: Callable[[], VoiceActivity]) -> None:
    pcm = read(CALLERS[0])
    used, fresh = make(), make()
    for frame in frames(pcm):
        used.feed(frame)
    used.reset()
    assert [used.feed(frame) for frame in frames(pcm)] == [fresh.feed(frame) for frame in frames(pcm)]


@pytest.mark.local
def test_two_calls_share_the_model_but_not_what_they_heard() -> None:
    pcm = read(CALLERS[0])
    alone = [probability for detector in [SileroVoiceActivity()] for probability in map(detector.feed, frames(pcm))]
    one, other = SileroVoiceActivity(), SileroVoiceActivity()
    together = []
    for frame in frames(pcm):
        together.append(one.feed(frame))
        other.feed(bytes(FRAME_BYTES))
    assert together == alone


def test_the_vendored_model_is_the_one_that_was_measured() -> None:
    digest = hashlib.sha256(SILERO_FILE.read_bytes()).hexdigest()
    assert digest == "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3"


@pytest.mark.local
def test_the_model_is_chosen_where_it_can_run() -> None:
    assert isinstance(open_voice_activity(), SileroVoiceActivity)


def test_without_onnxruntime_the_fallback_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callagent.speech.voice_activity.find_spec", lambda name: None)
    assert isinstance(open_voice_activity(), WebrtcVoiceActivity)


@pytest.mark.local
def test_speech_after_a_long_silence_is_heard_as_soon_as_the_first() -> None:
    """What the model remembers of speech that is long over must not dull it."""
    gap = white_noise(-64, 6)

    def first_voiced(before: bytes, speech: bytes) -> int:
        detector = SileroVoiceActivity()
        for frame in frames(before):
            detector.feed(frame)
        return next((at for at, frame in enumerate(frames(speech)) if detector.feed(frame) >= 0.4), 1000)

    spoken = [read(path) for path in CALLERS]
    fresh = [first_voiced(white_noise(-64, 0.7), pcm) for pcm in spoken]
    later = [first_voiced(spoken[at - 1] + gap, pcm) for at, pcm in enumerate(spoken)]
    assert sum(later) <= sum(fresh) + len(spoken)
