"""Speech outside of calls, for who sends and takes whole utterances."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Final, Protocol

from callagent.agents import AgentProject
from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.errors import ProviderError
from callagent.speech import Recognizer, SpeechChunk, VoiceSettings
from callagent.speech.protocol import RecognizerSettings, Transcript

HASTE: Final = 10.0
"""Times as fast as it was spoken an utterance is given to a recogniser: their queues are made for calls."""
_AT_ONCE: Final = 25 * FRAME_BYTES
SPEAKING_SECONDS: Final = 30.0
"""For a voice to say a text."""


class Speaking(Protocol):
    def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]: ...


class WholeUtterances:
    """Implements `web.hooks.Utterances`; recogniser and voices are the calls' own."""

    def __init__(
        self,
        recognizer: Recognizer | None,
        voice_of: Callable[[AgentProject], Speaking],
        language: str,
        final_seconds: float,
    ) -> None:
        self._recognizer = recognizer
        self._voice_of = voice_of
        self._language = language
        self._final_seconds = final_seconds

    async def recognise(self, pcm: bytes) -> str:
        if self._recognizer is None:
            raise ProviderError("no recogniser is set up")
        final: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def take(transcript: Transcript) -> None:
            if transcript.final and not final.done():
                final.set_result(transcript.text)

        stream = await self._recognizer.open(take)
        try:
            stream.begin(RecognizerSettings(self._language))
            for start in range(0, len(pcm), _AT_ONCE):
                for frame in range(start, min(start + _AT_ONCE, len(pcm)), FRAME_BYTES):
                    stream.feed(pcm[frame : frame + FRAME_BYTES].ljust(FRAME_BYTES, b"\0"))
                await asyncio.sleep(_AT_ONCE / FRAME_BYTES * FRAME_SECONDS / HASTE)
            stream.finish()
            async with asyncio.timeout(self._final_seconds + len(pcm) / FRAME_BYTES * FRAME_SECONDS):
                return await final
        except TimeoutError:
            raise ProviderError("no recogniser answered in time") from None
        finally:
            stream.close()

    async def speak(self, project: AgentProject, text: str) -> bytes:
        source = self._voice_of(project).speak(text, VoiceSettings(language=self._language))
        said = bytearray()
        try:
            # speak() is an async generator in all but its declared type: closing it stops the provider's work.
            async with asyncio.timeout(SPEAKING_SECONDS), aclosing(source):  # type: ignore[type-var]
                async for chunk in source:
                    said += chunk.pcm
        except TimeoutError:
            raise ProviderError("no voice answered in time") from None
        return bytes(said)
