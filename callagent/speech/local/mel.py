"""Whisper's input: the log-mel spectrogram of 16 kHz audio, 80 bands every 10 ms."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16000
FFT = 400
HOP = 160
FRAMES_PER_SECOND = SAMPLE_RATE // HOP
FLOOR = 1e-10
RANGE = 8.0
"""Decades under the loudest band that are kept."""

Floats = NDArray[np.float32]

# The Slaney mel scale: linear up to 1000 Hz (15 mel), then 27 steps for each factor of 6.4.
_LINEAR_STEP = 200 / 3
_LOG_START = 1000.0
_LOG_STEP = np.log(6.4) / 27


def log_mel(audio: Floats, seconds: float, bands: int = 80) -> Floats:
    """Shape (bands, 100 x seconds): `audio` (16 kHz, -1 to 1) followed by silence, or cut, to `seconds`."""
    frames = round(seconds * FRAMES_PER_SECOND)
    audio = audio[: frames * HOP]
    # Frames wholly in the padding are all floor: only those that touch audio are computed.
    heard = min(frames, len(audio) // HOP + 2)
    power = _power(audio, heard)
    spectrogram = np.full((bands, frames), np.log10(FLOOR), dtype=np.float32)
    spectrogram[:, :heard] = np.log10(np.maximum(mel_filters(bands) @ power.T, FLOOR))
    np.maximum(spectrogram, spectrogram.max() - RANGE, out=spectrogram)
    spectrogram += 4.0
    spectrogram *= 0.25
    return spectrogram


def _power(audio: Floats, frames: int) -> Floats:
    """|STFT|², shape (frames, 201): periodic Hann, centred, reflected at the start."""
    half = FFT // 2
    padded = np.zeros(frames * HOP + FFT, dtype=np.float32)
    padded[half : half + len(audio)] = audio[: len(padded) - half]
    padded[:half] = padded[2 * half : half : -1]
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[: frames * HOP : HOP]
    spectrum = np.fft.rfft(windows * _hann())
    return np.asarray(spectrum.real**2 + spectrum.imag**2, dtype=np.float32)


@cache
def _hann() -> Floats:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)).astype(np.float32)


@cache
def mel_filters(bands: int = 80) -> Floats:
    """Shape (bands, 201): triangles of equal area, equally spaced in mel from 0 to 8000 Hz."""
    frequencies = np.linspace(0, SAMPLE_RATE / 2, FFT // 2 + 1)
    edges = _to_hertz(np.linspace(0.0, _to_mel(SAMPLE_RATE / 2), bands + 2))
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - lower) / (centre - lower)
    falling = (upper - frequencies) / (upper - centre)
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (upper - lower))
    return filters.astype(np.float32)


def _to_mel(hertz: float) -> float:
    if hertz < _LOG_START:
        return hertz / _LINEAR_STEP
    return float(_LOG_START / _LINEAR_STEP + np.log(hertz / _LOG_START) / _LOG_STEP)


def _to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    corner = _LOG_START / _LINEAR_STEP
    return np.where(mel < corner, mel * _LINEAR_STEP, _LOG_START * np.exp(_LOG_STEP * (mel - corner)))
