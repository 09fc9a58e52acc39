"""Whether somebody speaks in a frame: the Silero model where onnxruntime is installed, else WebRTC's detector."""

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
"""After 0.5 s without a voice the model's state is reset, and again every 0.25 s: what it keeps of earlier speech makes
it slow. Without this, six seconds after speech it notices the next one 180 ms later at the 99th percentile, and some
short words never."""
QUIET_PROBABILITY = 0.3
"""Probability of voice below which a window is quiet."""
CONTEXT_SAMPLES = 32
"""The end of the window before, which the model wants in front of each."""

QUIET_RMS = 130
"""-48 dBFS: below it a telephone line carries noise, not a caller."""
ABOVE_NOISE = 2.0
"""A voice is this many times louder than the noise behind it (6 dB)."""
NOISE_RISE = 1.01
"""Factor of the noise floor per frame: it doubles in 1.4 s, so that the gaps between words pull it down again."""
VOTES = 3
"""Frames whose mean answer is the probability: one odd frame is not speech."""


class _SileroSession(Protocol):
    """The part of an `onnxruntime.InferenceSession` that is used here; the package has no types."""

    def run(self, outputs: None, inputs: Mapping[str, NDArray[np.generic]]) -> Sequence[NDArray[np.float32]]: ...


class VoiceActivity(Protocol):
    """One call's detector; fed on the media loop, so it answers in well under a millisecond."""

    def feed(self, frame: bytes) -> float:
        """Return the probability, 0 to 1, that the latest audio is speech. Any whole number of samples is taken."""

    def reset(self) -> None:
        """Forget all audio so far."""


def open_voice_activity() -> VoiceActivity:
    """Return a detector for one call, the best that is installed."""
    # Looked for, not imported: where the model is not installed, nothing heavy is loaded.
    if find_spec("onnxruntime") and find_spec("numpy"):
        return SileroVoiceActivity()
    return WebrtcVoiceActivity()


class SileroVoiceActivity:
    """Silero VAD at 8 kHz: frames are gathered to windows of 32 ms; calls share the model, but not its state."""

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
        # One array for the call's whole life: this runs 31 times a second for each call, on the media loop.
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
        self._votes = deque([False] * VOTES, maxlen=VOTES)

    def feed(self, frame: bytes) -> float:
        self._gathered += frame
        while len(self._gathered) >= FRAME_BYTES:
            self._votes.append(self._detect(bytes(self._gathered[:FRAME_BYTES])))
            del self._gathered[:FRAME_BYTES]
        return sum(self._votes) / VOTES

    def _detect(self, frame: bytes) -> bool:
        # The noise floor falls at once and rises slowly: a voice is over before it has become the floor.
        level = audioop.rms(frame, 2)
        self._noise = min(level, max(self._noise, 1.0) * NOISE_RISE) if self._noise else min(level, QUIET_RMS)
        if level < max(QUIET_RMS, self._noise * ABOVE_NOISE):
            return False
        return bool(self._detector.is_speech(frame, SAMPLE_RATE))


@cache
def _silero_session() -> _SileroSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # The model runs on the media loop; handing its work to a pool of threads would take longer than the work.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session: _SileroSession = onnxruntime.InferenceSession(
        str(SILERO_FILE), options, providers=["CPUExecutionProvider"]
    )
    return session
