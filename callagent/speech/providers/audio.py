"""Providers' audio as the telephone wants it: 16-bit PCM at 8 kHz, and back."""

from __future__ import annotations

import audioop
from collections.abc import AsyncIterator

from callagent.errors import ProviderError
from callagent.speech.protocol import SpeechChunk

SECOND_OF_ULAW = 8000
MAX_SECONDS_PER_CHARACTER = 1.0
MIN_SECONDS = 10.0


def max_audio_bytes(text: str, bytes_per_second: int) -> int:
    """Bytes that no voice needs to say `text`: more is garbage."""
    return round(max(MIN_SECONDS, len(text) * MAX_SECONDS_PER_CHARACTER) * bytes_per_second)


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
