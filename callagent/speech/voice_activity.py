"""Voice activity detection: the Silero model where onnxruntime and numpy are installed, else WebRTC's detector."""

from __future__ import annotations

import audioop
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from callagent.audio import FRAME_BYTES, SAMPLE_RATE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SILERO_FILE = Path(__file__).parent / "data" / "silero_vad.onnx"
WINDOW_SAMPLES = 256
"""32 ms at 8 kHz, the only window the model takes at that rate."""
WINDOW_BYTES = 2 * WINDOW_SAMPLES
QUIET_WINDOWS, RESET_WINDOWS = 16, 8
"""Windows without a voice until the model's state is reset (0.5 s), and from one reset to the next (0.25 s). Traces of
earlier speech in the state make the model slow: without resets, after 6 s of silence it notices speech 180 ms later
(99th percentile), and misses some short words."""
QUIET_PROBABILITY = 0.3
"""Probability of voice below which a window is quiet."""
CONTEXT_SAMPLES = 32
"""Samples from the end of the previous window, which the model expects before each window."""

MIN_VOICE_RMS = 130
"""-48 dBFS: below it a telephone line carries noise, not a caller."""
MIN_VOICE_TO_NOISE = 2.0
"""How many times louder than the noise floor a voice is at least (6 dB)."""
NOISE_RISE = 1.01
"""Factor by which the noise floor may rise per frame: doubling takes 1.4 s, and gaps between words come sooner."""
AVERAGED_FRAMES = 3
"""Frames whose decisions are averaged to the probability, so that a single odd frame does not count as speech."""


class _SileroSession(Protocol):
    """The part of an `onnxruntime.InferenceSession` that is used here; the package has no types."""

    def run(self, outputs: None, inputs: Mapping[str, NDArray[np.generic]]) -> Sequence[NDArray[np.float32]]: ...


class VoiceActivity(Protocol):
    """One call's detector. It runs on the media loop, so it answers in well under a millisecond."""

    def feed(self, frame: bytes) -> float:
        """Return the probability, 0 to 1, that the latest audio is speech. `frame` may have any number of samples."""

    def reset(self) -> None:
        """Forget all audio so far."""


def open_voice_activity() -> VoiceActivity:
    """Return a detector for one call, the best that is installed."""
    # `find_spec` does not import the packages: nothing heavy is loaded in vain where only one is installed.
    if find_spec("onnxruntime") and find_spec("numpy"):
        return SileroVoiceActivity()
    return WebrtcVoiceActivity()


class SileroVoiceActivity:
    """Silero voice activity detection at 8 kHz, in windows of 32 ms; calls share the model, but not its state."""

    def __init__(self) -> None:
        import numpy as np

        self._numpy = np
        self._session = _silero_session()
        self._rate = np.array(SAMPLE_RATE, dtype=np.int64)
        self.reset()

    def reset(self) -> None:
        zeros, single = self._numpy.zeros, self._numpy.float32
        self._gathered = bytearray()
        self._state: NDArray[np.float32] = zeros((2, 1, 128), dtype=single)
        self._window: NDArray[np.float32] = zeros((1, CONTEXT_SAMPLES + WINDOW_SAMPLES), dtype=single)
        self._probability = 0.0
        self._quiet = 0
        """Windows without a voice since the state was last reset."""

    def feed(self, frame: bytes) -> float:
        self._gathered += frame
        while len(self._gathered) >= WINDOW_BYTES:
            self._probability = self._detect(bytes(self._gathered[:WINDOW_BYTES]))
            del self._gathered[:WINDOW_BYTES]
            self._reset_in_silence()
        return self._probability

    def _reset_in_silence(self) -> None:
        self._quiet = self._quiet + 1 if self._probability < QUIET_PROBABILITY else 0
        if self._quiet >= QUIET_WINDOWS:
            self._state = self._numpy.zeros_like(self._state)
            self._quiet -= RESET_WINDOWS

    def _detect(self, pcm: bytes) -> float:
        # One array serves the whole call: this runs 31 times a second for each call, on the media loop.
        numpy, window = self._numpy, self._window
        window[0, :CONTEXT_SAMPLES] = window[0, -CONTEXT_SAMPLES:]
        numpy.multiply(numpy.frombuffer(pcm, dtype="<i2"), numpy.float32(1 / 32768), out=window[0, CONTEXT_SAMPLES:])
        probability, self._state = self._session.run(None, {"input": window, "state": self._state, "sr": self._rate})
        return float(probability[0, 0])


class WebrtcVoiceActivity:
    """WebRTC's detector behind an energy gate, without which it takes steady line noise for speech."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        import webrtcvad

        self._detector = webrtcvad.Vad(2)
        self._gathered = bytearray()
        self._noise = 0.0
        self._decisions = deque([False] * AVERAGED_FRAMES, maxlen=AVERAGED_FRAMES)

    def feed(self, frame: bytes) -> float:
        self._gathered += frame
        while len(self._gathered) >= FRAME_BYTES:
            self._decisions.append(self._detect(bytes(self._gathered[:FRAME_BYTES])))
            del self._gathered[:FRAME_BYTES]
        return sum(self._decisions) / AVERAGED_FRAMES

    def _detect(self, frame: bytes) -> bool:
        # The noise floor falls at once and rises slowly, so that a voice pauses before the floor has reached it.
        level = audioop.rms(frame, 2)
        self._noise = min(level, max(self._noise, 1.0) * NOISE_RISE) if self._noise else min(level, MIN_VOICE_RMS)
        if level < max(MIN_VOICE_RMS, self._noise * MIN_VOICE_TO_NOISE):
            return False
        return bool(self._detector.is_speech(frame, SAMPLE_RATE))


@cache
def _silero_session() -> _SileroSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # The model runs on the media loop; handing its work to other threads would take longer than the work itself.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session: _SileroSession = onnxruntime.InferenceSession(
        str(SILERO_FILE), options, providers=["CPUExecutionProvider"]
    )
    return session
