"""Audio between a leg and the turn manager: the frame, DTMF in the audio, sample rates, and sounds without words."""

from callagent.audio.dtmf import MAX_DIGITS, TONE_FRAMES, InBandDigits, dtmf_frames, key_of
from callagent.audio.pcm import (
    DIGITS,
    FRAME_BYTES,
    FRAME_SAMPLES,
    FRAME_SECONDS,
    SAMPLE_RATE,
    Decimator,
    prepare_decimators,
)
from callagent.audio.sounds import Sounds

__all__ = [
    "DIGITS",
    "FRAME_BYTES",
    "FRAME_SAMPLES",
    "FRAME_SECONDS",
    "MAX_DIGITS",
    "SAMPLE_RATE",
    "TONE_FRAMES",
    "Decimator",
    "InBandDigits",
    "Sounds",
    "dtmf_frames",
    "key_of",
    "prepare_decimators",
]
