"""A voice that remembers what it said: greetings, fillers and questions cost their synthesis once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable

from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings

Key = tuple[str, VoiceSettings]


class CachedVoice:
    """Any voice, with the utterances spoken last kept in memory, up to `limit` bytes of audio."""

    def __init__(self, voice: Voice, limit: int = 64 << 20) -> None:
        self._voice = voice
        self._limit = limit
        self._kept: OrderedDict[Key, tuple[SpeechChunk, ...]] = OrderedDict()
        self.size = 0
        """Bytes of audio kept."""

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        if kept := self._kept.get((text, settings)):
            self._kept.move_to_end((text, settings))
            for chunk in kept:
                yield chunk
            return
        made: list[SpeechChunk] = []
        speaking = self._voice.speak(text, settings)
        try:
            async for chunk in speaking:
                made.append(chunk)
                yield chunk
        finally:
            # An iterator left behind would be closed some time later: the engine would go on until then.
            await speaking.aclose()  # type: ignore[attr-defined]
        # Reached only by an utterance that was made whole.
        self._keep((text, settings), tuple(made))

    async def prepare(self, texts: Iterable[str], settings: VoiceSettings) -> None:
        """Speak `texts` into the cache. Raises `ProviderError`."""
        for text in texts:
            async for _ in self.speak(text, settings):
                pass

    async def close(self) -> None:
        self._kept.clear()
        self.size = 0
        await self._voice.close()

    def _keep(self, key: Key, chunks: tuple[SpeechChunk, ...]) -> None:
        size = _size(chunks)
        if not size or size > self._limit or key in self._kept:
            return
        self._kept[key] = chunks
        self.size += size
        while self.size > self._limit:
            self.size -= _size(self._kept.popitem(last=False)[1])


def _size(chunks: Iterable[SpeechChunk]) -> int:
    return sum(len(chunk.pcm) for chunk in chunks)
