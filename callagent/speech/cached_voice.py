"""A voice that remembers what it said: greetings, fillers and questions cost their synthesis once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable

from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings
from callagent.speech.voice_store import VoiceStore

CLOSE_SECONDS = 2.0
"""For what is still being written."""
Key = tuple[str, VoiceSettings]


class CachedVoice:
    """Any voice, with the utterances spoken last kept in memory, up to `limit` bytes of audio, and on disk."""

    def __init__(
        self, voice: Voice, limit: int = 64 << 20, store: VoiceStore | None = None, identity: str = ""
    ) -> None:
        """`identity`: what the store knows the voice by; another engine or model is another one."""
        self._voice = voice
        self._limit = limit
        self._store = store
        self._identity = identity
        self._writing: set[asyncio.Future[None]] = set()
        self.speaks_ssml = bool(getattr(voice, "speaks_ssml", False))
        self._kept: OrderedDict[Key, tuple[SpeechChunk, ...]] = OrderedDict()
        self.size = 0
        """Bytes of audio kept."""

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        for chunk in (kept := await self._recall(text, settings)):
            yield chunk
        if kept:
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
        if self._store is not None and _size(made):
            # Nobody waits for the disk: the utterance is already being heard.
            writing = asyncio.ensure_future(
                asyncio.to_thread(self._store.write, self._identity, text, settings, tuple(made))
            )
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)

    def holds(self, text: str, settings: VoiceSettings) -> bool:
        """Whether it is in memory: it can be said though the voice is not there."""
        return (text, settings) in self._kept

    async def prepare(self, texts: Iterable[str], settings: VoiceSettings) -> None:
        """Speak `texts` into the cache. Raises `ProviderError`."""
        for text in texts:
            async for _ in self.speak(text, settings):
                pass

    async def close(self) -> None:
        if self._writing:
            await asyncio.wait(self._writing, timeout=CLOSE_SECONDS)
        self._kept.clear()
        self.size = 0
        await self._voice.close()

    async def _recall(self, text: str, settings: VoiceSettings) -> tuple[SpeechChunk, ...]:
        """What was said before; empty: nothing was."""
        if kept := self._kept.get((text, settings)):
            self._kept.move_to_end((text, settings))
            return kept
        if self._store is None:
            return ()
        found = await asyncio.to_thread(self._store.read, self._identity, text, settings)
        self._keep((text, settings), found)
        return found

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
