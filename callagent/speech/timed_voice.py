"""How long a voice takes to begin: one call's view of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings


class TimedVoice:
    """`on_first` gets the text, when the voice was asked for it, and when its first audio was there."""

    def __init__(self, voice: Voice, on_first: Callable[[str, float, float], None]) -> None:
        self._voice = voice
        self._on_first = on_first

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        clock = asyncio.get_running_loop().time
        asked, begun = clock(), False
        speaking = self._voice.speak(text, settings)
        try:
            async for chunk in speaking:
                if chunk.pcm and not begun:
                    begun = True
                    self._on_first(text, asked, clock())
                yield chunk
        finally:
            await speaking.aclose()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """The voice is shared; whoever opened it closes it."""
