"""Has utterances synthesised in order, one at a time, and puts their frames on the playout."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from callagent.audio import FRAME_BYTES
from callagent.errors import ProviderError
from callagent.log import get_logger
from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings, WordTime
from callagent.turns.playout import Playout, Utterance

LOOK_AHEAD = 1
"""Utterances synthesised and waiting behind the one being said."""
MOST_WAITING = 200
"""Utterances not yet synthesised; an agent that says more without listening is broken."""

log = get_logger(__name__)
Failed = Callable[[Utterance, str], None]


class Speaker:
    """One call's voice. It owns one task, which runs while something is to be synthesised."""

    def __init__(
        self, voice: Voice, playout: Playout, voice_wait: float, failed: Failed, ended: Callable[[], None]
    ) -> None:
        self.voice = voice
        self.settings = VoiceSettings()
        self._playout = playout
        self._voice_wait = voice_wait
        self._failed = failed
        self._ended = ended
        self._waiting: deque[tuple[Utterance, bytes | None, Voice, VoiceSettings]] = deque()
        """Each with the voice that it was to be said with when it was queued."""
        self._task: asyncio.Task[None] | None = None
        self._current: Utterance | None = None
        """The one synthesised last."""
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled and not yet ended."""
        self._room = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Nothing is being synthesised or waits to be."""
        return self._task is None

    def say(self, utterance: Utterance, pcm: bytes | None = None) -> None:
        """Queue it, as text for the voice or as a recording; it fails at once when too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            self._failed(utterance, f"{MOST_WAITING} utterances are waiting")
            return
        self._waiting.append((utterance, pcm, self.voice, self.settings))
        if self._task is None:
            self._start()

    def withdraw(self, utterance: Utterance) -> bool:
        """Take it back if nothing of it was played; whether that was so."""
        for entry in self._waiting:
            if entry[0] == utterance:
                self._waiting.remove(entry)
                return True
        return self._playout.withdraw(utterance)

    def make_room(self) -> None:
        """An utterance began to be played or is over: the next one may be synthesised."""
        self._room.set()

    def discard(self) -> None:
        """Stop synthesising and forget what waits."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)
            self._task = None

    async def close(self) -> None:
        """Stop, wait until every task has ended, and drop the callbacks, whose owner holds this speaker."""
        self.discard()
        if self._ending:
            await asyncio.wait(self._ending)
        self._failed = self._ended = _ignore

    # private

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="speaker")
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A voice that breaks its contract costs an utterance, not the call."""
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self._ended()
            return
        log.error("voice_broke", error=repr(error), exc_info=error)
        self._task = None
        if self._current is not None:
            self._failed(self._current, repr(error))
            self._playout.complete(self._current, cut=True)
        if self._waiting:
            self._start()

    async def _run(self) -> None:
        while self._waiting:
            await self._wait_for_room()
            if not self._waiting:
                break
            utterance, pcm, voice, settings = self._waiting.popleft()
            self._current = utterance
            if pcm is None:
                await self._synthesise(utterance, voice, settings)
            else:
                self._playout.begin(utterance)
                _Framer(self._playout, utterance).finish(pcm)
        self._task = None

    async def _wait_for_room(self) -> None:
        while self._playout.ahead >= LOOK_AHEAD:
            self._room.clear()
            await self._room.wait()

    async def _synthesise(self, utterance: Utterance, voice: Voice, settings: VoiceSettings) -> None:
        self._playout.begin(utterance)
        framer = _Framer(self._playout, utterance)
        # speak() is an async generator in all but its declared type: closing it stops the provider's work.
        source = voice.speak(utterance.text, settings)
        try:
            async with aclosing(source):  # type: ignore[type-var]
                while chunk := await self._next_chunk(source):
                    if not framer.put(chunk.pcm, chunk.words):
                        return
        except TimeoutError:
            self._failed(utterance, f"no audio within {self._voice_wait:g} s")
            framer.finish(cut=True)
        except ProviderError as error:
            self._failed(utterance, str(error))
            framer.finish(cut=True)
        else:
            framer.finish()

    async def _next_chunk(self, source: AsyncIterator[SpeechChunk]) -> SpeechChunk | None:
        async with asyncio.timeout(self._voice_wait):
            return await anext(source, None)


class _Framer:
    """Cuts an utterance's audio to frames."""

    def __init__(self, playout: Playout, utterance: Utterance) -> None:
        self._playout = playout
        self._utterance = utterance
        self._rest = b""

    def put(self, pcm: bytes, words: tuple[WordTime, ...] = ()) -> bool:
        """False: the utterance is no longer wanted."""
        pcm = self._rest + pcm
        whole = len(pcm) - len(pcm) % FRAME_BYTES
        self._rest = pcm[whole:]
        self._playout.add_words(self._utterance, words)
        return all(
            self._playout.append(self._utterance, pcm[start : start + FRAME_BYTES])
            for start in range(0, whole, FRAME_BYTES)
        )

    def finish(self, pcm: bytes = b"", *, cut: bool = False) -> None:
        """The last of it; a part of a frame is filled up with silence."""
        self.put(pcm)
        if self._rest:
            self._playout.append(self._utterance, self._rest.ljust(FRAME_BYTES, b"\0"))
        self._playout.complete(self._utterance, cut=cut)


def _ignore(*_: object) -> None:
    """Stand in for the callbacks of a closed speaker."""
