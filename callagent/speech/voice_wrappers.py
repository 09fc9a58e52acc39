"""Utterances are synthesised once: a voice that keeps them in memory, and a store that keeps them on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import cast

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError, UserError
from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings, WordTime
from callagent.speech.text_processing import parts


class LongTextVoice:
    """Any voice that refuses texts of more than `most` bytes of UTF-8; shorter ones go to it as they are."""

    def __init__(self, voice: Voice, most: int) -> None:
        self._voice = voice
        self._most = most
        self.speaks_ssml = bool(getattr(voice, "speaks_ssml", False))

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        """As `Voice`; the times of words count from the start of the whole text."""
        before = 0.0
        for part in parts(text, self._most):
            seconds = 0.0
            # A voice's own type is an iterator, what it gives a generator.
            async with aclosing(cast("AsyncGenerator[SpeechChunk, None]", self._voice.speak(part, settings))) as chunks:
                async for chunk in chunks:
                    seconds += len(chunk.pcm) / (2 * SAMPLE_RATE)
                    yield chunk.later(before)
            before += seconds

    async def close(self) -> None:
        await self._voice.close()


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


SUFFIX = ".speech"
PRUNE_EVERY = 100
"""Files written, between one look at the folder's size and the next."""
HEADER_LIMIT = 1 << 20


class VoiceStore:
    """One folder, for any voices. Every method reads or writes the disk: call it in a thread."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit`: bytes of all files, of which the ones used longest ago are removed. Raises `UserError`."""
        self._folder = folder
        self._limit = limit
        self._written = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"speech.voice_cache '{folder}' cannot be made: {error.strerror}") from None
        self.prune()

    def read(self, voice: str, text: str, settings: VoiceSettings) -> tuple[SpeechChunk, ...]:
        """Empty: it is not there, or not readable."""
        path = self._path(voice, text, settings)
        try:
            data = path.read_bytes()
            # When it was used last decides who has to go.
            os.utime(path)
        except OSError:
            return ()
        try:
            return _parse(data)
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            return ()

    def write(self, voice: str, text: str, settings: VoiceSettings, chunks: Sequence[SpeechChunk]) -> None:
        """Keep an utterance; a disk that refuses costs the cache, not the call."""
        try:
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(_format(chunks))
            os.replace(name, self._path(voice, text, settings))
        except OSError:
            return
        self._written += 1
        if self._written % PRUNE_EVERY == 0:
            self.prune()

    def prune(self) -> None:
        """Remove what is beyond the limit."""
        found = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((status.st_mtime, status.st_size, path))
        size = sum(entry[1] for entry in found)
        for _, bytes_, path in sorted(found, key=lambda entry: entry[0]):
            if size <= self._limit:
                break
            path.unlink(missing_ok=True)
            size -= bytes_

    def _path(self, voice: str, text: str, settings: VoiceSettings) -> Path:
        # A digest, not the text: what is said to callers does not stand in file names.
        key = json.dumps([voice, settings.language, settings.name, settings.speed, text])
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}{SUFFIX}"


def _format(chunks: Sequence[SpeechChunk]) -> bytes:
    """A line of JSON with sizes and words, then the samples."""
    words = [[[word.word, word.start, word.end] for word in chunk.words] for chunk in chunks]
    header = {"sizes": [len(chunk.pcm) for chunk in chunks], "words": words}
    return json.dumps(header).encode() + b"\n" + b"".join(chunk.pcm for chunk in chunks)


def _parse(data: bytes) -> tuple[SpeechChunk, ...]:
    """Raises `ValueError`, `KeyError` or `TypeError` for what was not written by `_format`, or not to its end."""
    header, _, pcm = data.partition(b"\n")
    if len(header) > HEADER_LIMIT:
        raise ValueError("the header is not valid")
    found = json.loads(header)
    if sum(found["sizes"]) != len(pcm):
        raise ValueError("the samples are not complete")
    chunks, at = [], 0
    for size, words in zip(found["sizes"], found["words"], strict=True):
        times = tuple(WordTime(str(word), float(start), float(end)) for word, start, end in words)
        chunks.append(SpeechChunk(pcm[at : at + size], times))
        at += size
    return tuple(chunks)


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


RECORDING = Path(__file__).parent / "data" / "apology.ulaw"
"""G.711 μ-law, 8 kHz: what `APOLOGY_TEXT` sounds like."""
APOLOGY_TEXT = "I'm sorry, I am having trouble speaking right now. Please hold, or call again in a few minutes."


class ApologisingVoice:
    """One call's voice: the first utterance that cannot be spoken at all is replaced by the recording."""

    def __init__(self, voice: Voice, on_outage: Callable[[], None] = lambda: None) -> None:
        """`on_outage` is told of every utterance that could not be spoken to its end."""
        self._voice = voice
        self._on_outage = on_outage
        self.apologised = False

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        """As `Voice`; the failure is raised when the recording was handed over."""
        spoken = False
        speaking = self._voice.speak(text, settings)
        try:
            async for chunk in speaking:
                spoken = spoken or bool(chunk.pcm)
                yield chunk
        except ProviderError:
            if not spoken and not self.apologised:
                self.apologised = True
                yield _apology(text)
            self._on_outage()
            raise
        finally:
            await speaking.aclose()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """The voice is shared; whoever opened it closes it."""


def _apology(text: str) -> SpeechChunk:
    """The recording; the time of the first word is after its end: nothing of `text` was heard."""
    pcm = _recording()
    end = len(pcm) / 2 / SAMPLE_RATE
    return SpeechChunk(pcm, tuple(WordTime(word, 2 * end, 2 * end) for word in text.split()[:1]))


@cache
def _recording() -> bytes:
    import audioop

    return audioop.ulaw2lin(RECORDING.read_bytes(), 2)
