"""`none`: a server without recogniser or voice still plays recordings and takes key presses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from callagent.errors import ProviderError
from callagent.speech.protocol import RecognizerSettings, RecognizerStream, SpeechChunk, Transcript, VoiceSettings


class NoRecognizer:
    """Understands nothing, and says so at once."""

    async def open(self, on_transcript: Callable[[Transcript], None]) -> RecognizerStream:
        return _DeafStream(on_transcript)

    async def close(self) -> None:
        return None


class _DeafStream:
    def __init__(self, on_transcript: Callable[[Transcript], None]) -> None:
        self._on_transcript = on_transcript
        self._utterance = 0
        self._owed: set[asyncio.Handle] = set()

    def feed(self, pcm: bytes) -> None:
        return None

    def begin(self, settings: RecognizerSettings) -> None:
        self._utterance += 1

    def finish(self) -> None:
        transcript = Transcript("", True, self._utterance)
        self._owed = {handle for handle in self._owed if not handle.cancelled()}
        self._owed.add(asyncio.get_running_loop().call_soon(self._send, transcript))

    def close(self) -> None:
        for handle in self._owed:
            handle.cancel()
        self._owed.clear()

    def _send(self, transcript: Transcript) -> None:
        self._on_transcript(transcript)


class NoVoice:
    """Fails on every text: nobody would hear it."""

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        raise ProviderError(f"no voice is configured to say '{text}'")
        yield

    async def close(self) -> None:
        return None
