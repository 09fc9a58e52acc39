"""Providers' audio as the telephone wants it: 16-bit PCM at 8 kHz, and back."""

from __future__ import annotations

import audioop
from array import array
from collections.abc import AsyncIterator
from functools import cache
from math import cos, pi, sin

from callagent.errors import ProviderError
from callagent.speech.protocol import SpeechChunk

SECOND_OF_ULAW = 8000
MOST_SECONDS_PER_CHARACTER = 1.0
FEWEST_SECONDS = 10.0


def most_audio(text: str, bytes_per_second: int) -> int:
    """Bytes that no voice needs to say `text`: more is garbage."""
    return round(max(FEWEST_SECONDS, len(text) * MOST_SECONDS_PER_CHARACTER) * bytes_per_second)


def decode_ulaw(ulaw: bytes) -> bytes:
    return audioop.ulaw2lin(ulaw, 2)


def encode_ulaw(pcm: bytes) -> bytes:
    return audioop.lin2ulaw(pcm, 2)


def strip_wav(who: str, audio: bytes) -> bytes:
    """The samples of a WAV file; what is none is samples already. Raises `ProviderError` for a broken one."""
    if not audio.startswith(b"RIFF"):
        return audio
    at = 12
    while at + 8 <= len(audio):
        size = int.from_bytes(audio[at + 4 : at + 8], "little")
        if audio[at : at + 4] == b"data":
            return audio[at + 8 : at + 8 + size] if size else audio[at + 8 :]
        at += 8 + size + size % 2
    raise ProviderError(f"{who} sent a WAV file without samples")


async def ulaw_chunks(audio: AsyncIterator[bytes]) -> AsyncIterator[SpeechChunk]:
    """μ-law bytes of any lengths as chunks."""
    try:
        async for part in audio:
            yield SpeechChunk(decode_ulaw(part))
    finally:
        await audio.aclose()  # type: ignore[attr-defined]


class Decimator:
    """From 24 kHz to 8 kHz in pieces of any length: a low-pass filter, then every third sample, or `factor`th."""

    def __init__(self, factor: int = 3) -> None:
        self._factor = factor
        self._taps = _taps(cutoff=3500 / (8000 * factor))
        self._odd = b""
        self._before = bytes(2 * (len(self._taps) - 1))
        """The samples that the next output still depends on."""
        self._phase = 0

    def feed(self, pcm: bytes) -> bytes:
        """16-bit PCM in and out."""
        pcm = self._odd + pcm
        whole = len(pcm) - len(pcm) % 2
        self._odd = pcm[whole:]
        samples = self._before + pcm[:whole]
        self._before = samples[whole:]
        if not whole:
            return b""
        # A sum of shifted, weighted copies is the filter; each step runs in C over all samples at once.
        total = bytes(2 * whole)
        wide = audioop.lin2lin(samples, 2, 4)
        for position, tap in enumerate(self._taps):
            shifted = audioop.mul(wide[4 * position : 4 * position + 2 * whole], 4, tap)
            total = audioop.add(total, shifted, 4)
        kept = array("h", audioop.lin2lin(total, 4, 2))[self._phase :: self._factor]
        self._phase = (self._phase - whole // 2) % self._factor
        return kept.tobytes()


@cache
def _taps(count: int = 47, cutoff: float = 3500 / 24000) -> tuple[float, ...]:
    """A windowed sinc (Hamming) with a gain of 1 at 0 Hz."""
    middle = (count - 1) / 2
    taps = []
    for number in range(count):
        x = number - middle
        sinc = 2 * cutoff if not x else sin(2 * pi * cutoff * x) / (pi * x)
        taps.append(sinc * (0.54 - 0.46 * cos(2 * pi * number / (count - 1))))
    return tuple(tap / sum(taps) for tap in taps)
