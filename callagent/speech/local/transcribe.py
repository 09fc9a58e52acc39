"""What is said in a recording: for tests and tools, in this process, never on a server's media loop."""

from __future__ import annotations

import audioop
import wave
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.audio import SAMPLE_RATE
from callagent.speech.local import weights
from callagent.speech.local.utterance import pieces

if TYPE_CHECKING:
    from callagent.speech.local.whisper import Whisper


def transcribe(pcm: bytes, expected: str = "") -> str:
    """The words in 16-bit mono PCM at 8 kHz, of any length. Blocks; raises `MissingExtra` and `UserError`."""
    from callagent.speech.local.whisper import Decoding

    heard = [_whisper().transcribe(piece, Decoding(), expected=expected) for piece in pieces(pcm)]
    return " ".join(text for part in heard for text in part.texts[:1])


def transcribe_wav(path: Path | str, expected: str = "", channel: int | None = None) -> str:
    """The words in a 16-bit WAV file of any rate; of one channel of a stereo file, or of both mixed."""
    with wave.open(str(path), "rb") as recording:
        pcm = recording.readframes(recording.getnframes())
        channels, rate = recording.getnchannels(), recording.getframerate()
        if recording.getsampwidth() != 2 or channels > 2:
            raise ValueError(f"{path} is not 16-bit PCM with one or two channels")
    if channels == 2:
        left = {None: 0.5, 0: 1.0, 1: 0.0}[channel]
        pcm = audioop.tomono(pcm, 2, left, 1.0 - left)
    if rate != SAMPLE_RATE:
        pcm = _resample(pcm, rate)
    return transcribe(pcm, expected)


def _resample(pcm: bytes, rate: int) -> bytes:
    import numpy as np
    import soxr

    return bytes(soxr.resample(np.frombuffer(pcm, dtype="<i2"), rate, SAMPLE_RATE).astype("<i2").tobytes())


@cache
def _whisper() -> Whisper:
    weights.require_recognizer(packaged_base=True)
    from callagent.speech.local.whisper import Whisper

    return Whisper(weights.final_model("", weights.default_cache()))
