"""Voices that wrap another voice, to cut long texts, cache utterances, measure latency and apologise for an outage.

`CachedVoice` (with `VoiceStore`) and `LongTextVoice` are made once for each engine; `TimedVoice` and `ApologisingVoice`
are one call's view of the voice that all calls share, and never close it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path

import msgspec

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError, UserError
from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings, WordTime
from callagent.speech.text_processing import split_to_size

# Every generator here closes the one that it reads (`aclosing`). A generator that is merely dropped is closed later, by
# the garbage collector; until then its engine would go on synthesising, and charging for, speech that nobody hears.


class LongTextVoice:
    """A voice that passes long texts on in parts, because the wrapped one accepts only `max_bytes` bytes of UTF-8."""

    def __init__(self, voice: Voice, max_bytes: int) -> None:
        self._voice = voice
        self._max_bytes = max_bytes
        self.speaks_ssml = bool(getattr(voice, "speaks_ssml", False))

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        """Speak the parts one after the other; the times of words count from the start of the whole text."""
        seconds_before = 0.0
        for part in split_to_size(text, self._max_bytes):
            seconds = 0.0
            async with aclosing(self._voice.speak(part, settings)) as chunks:
                async for chunk in chunks:
                    seconds += len(chunk.pcm) / (2 * SAMPLE_RATE)
                    yield chunk.delayed(seconds_before)
            seconds_before += seconds

    async def close(self) -> None:
        await self._voice.close()


CLOSE_SECONDS = 2.0
"""Time that `close()` waits for utterances that are being written to disk."""
CacheKey = tuple[str, VoiceSettings]
"""The text of an utterance, and how it was spoken."""


class CachedVoice:
    """A voice whose latest utterances are cached: up to `limit` bytes of audio in memory, and in `store` on disk."""

    def __init__(
        self, voice: Voice, limit: int = 64 << 20, store: VoiceStore | None = None, identity: str = ""
    ) -> None:
        """`identity` names the voice in the store: voices of different engines or models need different ones."""
        self._voice = voice
        self._limit = limit
        self._store = store
        self._identity = identity
        self._writing: set[asyncio.Future[None]] = set()
        self.speaks_ssml = bool(getattr(voice, "speaks_ssml", False))
        self._utterances: OrderedDict[CacheKey, tuple[SpeechChunk, ...]] = OrderedDict()
        """The cache in memory; the utterance that was used longest ago comes first."""
        self.size = 0
        """Bytes of audio in memory."""

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        for chunk in (cached := await self._cached_chunks(text, settings)):
            yield chunk
        if cached:
            return
        spoken: list[SpeechChunk] = []
        async with aclosing(self._voice.speak(text, settings)) as chunks:
            async for chunk in chunks:
                spoken.append(chunk)
                yield chunk
        # Only a whole utterance gets here: one that was cut short or failed must not be played again.
        self._cache((text, settings), tuple(spoken))
        if self._store is not None and _audio_bytes(spoken):
            # The disk is written in the background, because the caller hears the utterance already.
            writing = asyncio.ensure_future(
                asyncio.to_thread(self._store.write, self._identity, text, settings, tuple(spoken))
            )
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)

    def holds(self, text: str, settings: VoiceSettings) -> bool:
        """Return whether the utterance is in memory, so that it can be spoken without the engine."""
        return (text, settings) in self._utterances

    async def prepare(self, texts: Iterable[str], settings: VoiceSettings) -> None:
        """Synthesise `texts` into the cache. Raises `ProviderError`."""
        for text in texts:
            async for _ in self.speak(text, settings):
                pass

    async def close(self) -> None:
        if self._writing:
            await asyncio.wait(self._writing, timeout=CLOSE_SECONDS)
        self._utterances.clear()
        self.size = 0
        await self._voice.close()

    async def _cached_chunks(self, text: str, settings: VoiceSettings) -> tuple[SpeechChunk, ...]:
        """Return the utterance from memory or from disk; empty if it is in neither."""
        if cached := self._utterances.get((text, settings)):
            self._utterances.move_to_end((text, settings))
            return cached
        if self._store is None:
            return ()
        stored = await asyncio.to_thread(self._store.read, self._identity, text, settings)
        self._cache((text, settings), stored)
        return stored

    def _cache(self, key: CacheKey, chunks: tuple[SpeechChunk, ...]) -> None:
        size = _audio_bytes(chunks)
        # Two calls may have had the same text synthesised at the same time: only the first result is cached.
        if not size or size > self._limit or key in self._utterances:
            return
        self._utterances[key] = chunks
        self.size += size
        while self.size > self._limit:
            self.size -= _audio_bytes(self._utterances.popitem(last=False)[1])


def _audio_bytes(chunks: Iterable[SpeechChunk]) -> int:
    return sum(len(chunk.pcm) for chunk in chunks)


SUFFIX = ".speech"
PRUNE_EVERY = 100
"""Number of files written between two checks of the folder's size."""
MAX_HEADER_BYTES = 1 << 20
"""A longer first line is not parsed: the file was not written by `VoiceStore`."""


class _Header(msgspec.Struct):
    """The first line of a file: how its samples are cut into chunks, and the words of each chunk."""

    sizes: list[int]
    """Bytes of each chunk."""
    words: list[list[tuple[str, float, float]]]
    """Word, start and end (`WordTime`), for each chunk."""


class VoiceStore:
    """A cache of utterances of all voices in one folder. Every method reads or writes the disk: call it in a thread."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` counts the bytes of all files; those used longest ago are removed. Raises `UserError`."""
        self._folder = folder
        self._limit = limit
        self._written = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"speech.voice_cache '{folder}' cannot be made ({error.strerror}): choose a writable folder"
            ) from None
        self.prune()

    def read(self, voice: str, text: str, settings: VoiceSettings) -> tuple[SpeechChunk, ...]:
        """Return the utterance; empty if it is not there or cannot be read."""
        path = self._path(voice, text, settings)
        try:
            data = path.read_bytes()
            # prune() removes the files used longest ago by their time of change, because many file systems are mounted
            # without times of access.
            os.utime(path)
        except OSError:
            return ()
        try:
            return _parse(data)
        except ValueError:
            path.unlink(missing_ok=True)
            return ()

    def write(self, voice: str, text: str, settings: VoiceSettings, chunks: Sequence[SpeechChunk]) -> None:
        """Write an utterance to its file. An `OSError` is ignored: the call goes on, only the cache lacks an entry."""
        try:
            # The file is renamed when it is complete, so that no other process reads half of it.
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
        """Remove the files used longest ago until the others are within the limit."""
        found = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found, key=lambda entry: entry[0]):
            if total <= self._limit:
                break
            path.unlink(missing_ok=True)
            total -= size

    def _path(self, voice: str, text: str, settings: VoiceSettings) -> Path:
        # File names are digests, because they must not show what is said to callers.
        key = json.dumps([voice, settings.language, settings.name, settings.speed, text])
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}{SUFFIX}"


def _format(chunks: Sequence[SpeechChunk]) -> bytes:
    """Return the content of a file: a line of JSON with sizes and words, then the samples."""
    words = [[(word.word, word.start, word.end) for word in chunk.words] for chunk in chunks]
    header = _Header([len(chunk.pcm) for chunk in chunks], words)
    return msgspec.json.encode(header) + b"\n" + b"".join(chunk.pcm for chunk in chunks)


def _parse(data: bytes) -> tuple[SpeechChunk, ...]:
    """Return the chunks that `_format` wrote. Raises `ValueError` for other content, also for a truncated file."""
    line, _, pcm = data.partition(b"\n")
    if len(line) > MAX_HEADER_BYTES:
        raise ValueError("the header is not valid")
    header = msgspec.json.decode(line, type=_Header)
    if sum(header.sizes) != len(pcm) or any(size < 0 for size in header.sizes):
        raise ValueError("the samples are not complete")
    chunks, at = [], 0
    for size, words in zip(header.sizes, header.words, strict=True):
        chunks.append(SpeechChunk(pcm[at : at + size], tuple(WordTime(*word) for word in words)))
        at += size
    return tuple(chunks)


class TimedVoice:
    """One call's voice, with its latency measured.

    `on_first_audio` gets each text, the time of its request and the time of its first audio, both of the loop's clock.
    """

    def __init__(self, voice: Voice, on_first_audio: Callable[[str, float, float], None]) -> None:
        self._voice = voice
        self._on_first_audio = on_first_audio

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        clock = asyncio.get_running_loop().time
        requested_at, has_begun = clock(), False
        async with aclosing(self._voice.speak(text, settings)) as chunks:
            async for chunk in chunks:
                if chunk.pcm and not has_begun:
                    has_begun = True
                    self._on_first_audio(text, requested_at, clock())
                yield chunk

    async def close(self) -> None:
        """Do nothing: the voice is shared, and closed by its owner."""


RECORDING = Path(__file__).parent / "data" / "apology.ulaw"
"""`APOLOGY_TEXT` as speech, in G.711 μ-law at 8 kHz."""
APOLOGY_TEXT = "I'm sorry, I am having trouble speaking right now. Please hold, or call again in a few minutes."


class ApologisingVoice:
    """One call's voice, which plays a recorded apology in place of the first utterance that it cannot speak at all."""

    def __init__(self, voice: Voice, on_outage: Callable[[], None] = lambda: None) -> None:
        """`on_outage` is called for every utterance that could not be spoken to its end."""
        self._voice = voice
        self._on_outage = on_outage
        self.apologised = False

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        """Speak with the voice; if it fails, play the apology where one is due, then raise its `ProviderError`."""
        spoken = False
        try:
            async with aclosing(self._voice.speak(text, settings)) as chunks:
                async for chunk in chunks:
                    spoken = spoken or bool(chunk.pcm)
                    yield chunk
        except ProviderError:
            if not spoken and not self.apologised:
                self.apologised = True
                yield _apology(text)
            self._on_outage()
            raise

    async def close(self) -> None:
        """Do nothing: the voice is shared, and closed by its owner."""


def _apology(text: str) -> SpeechChunk:
    """Return the recording, to be played in place of `text`.

    Only the first word has a time, after the recording's end, so that nothing of `text` counts as heard by the caller.
    """
    pcm = _recording()
    end = len(pcm) / 2 / SAMPLE_RATE
    return SpeechChunk(pcm, tuple(WordTime(word, 2 * end, 2 * end) for word in text.split()[:1]))


@cache
def _recording() -> bytes:
    import audioop

    return audioop.ulaw2lin(RECORDING.read_bytes(), 2)
