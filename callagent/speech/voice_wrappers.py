"""Voices that stand before another voice: utterances kept in memory and on disk, long texts cut, outages covered.

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
from callagent.speech.text_processing import parts

# Every generator here closes the one that it reads (`aclosing`): one that is merely dropped would be closed some time
# later by the garbage collector, and its engine would go on making, and charging for, speech that nobody hears.


class LongTextVoice:
    """Any voice that refuses texts of more than `max_bytes` bytes of UTF-8; shorter ones go to it as they are."""

    def __init__(self, voice: Voice, max_bytes: int) -> None:
        self._voice = voice
        self._max_bytes = max_bytes
        self.speaks_ssml = bool(getattr(voice, "speaks_ssml", False))

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        """Speak the parts one after the other; the times of words count from the start of the whole text."""
        before = 0.0
        for part in parts(text, self._max_bytes):
            seconds = 0.0
            async with aclosing(self._voice.speak(part, settings)) as chunks:
                async for chunk in chunks:
                    seconds += len(chunk.pcm) / (2 * SAMPLE_RATE)
                    yield chunk.later(before)
            before += seconds

    async def close(self) -> None:
        await self._voice.close()


CLOSE_SECONDS = 2.0
"""Time that `close()` waits for utterances that are being written to disk."""
Key = tuple[str, VoiceSettings]
"""What an utterance in memory is known by: its text, and how it was spoken."""


class CachedVoice:
    """Any voice, with the utterances spoken last kept in memory, up to `limit` bytes of audio, and on disk."""

    def __init__(
        self, voice: Voice, limit: int = 64 << 20, store: VoiceStore | None = None, identity: str = ""
    ) -> None:
        """`identity` is the name of the voice in the store; another engine or model has another one."""
        self._voice = voice
        self._limit = limit
        self._store = store
        self._identity = identity
        self._writing: set[asyncio.Future[None]] = set()
        self.speaks_ssml = bool(getattr(voice, "speaks_ssml", False))
        self._kept: OrderedDict[Key, tuple[SpeechChunk, ...]] = OrderedDict()
        """The utterance that was used longest ago comes first."""
        self.size = 0
        """Bytes of audio kept."""

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        for chunk in (kept := await self._recall(text, settings)):
            yield chunk
        if kept:
            return
        made: list[SpeechChunk] = []
        async with aclosing(self._voice.speak(text, settings)) as chunks:
            async for chunk in chunks:
                made.append(chunk)
                yield chunk
        # Reached only by an utterance that was made whole: one that was cut or failed must not be played again.
        self._keep((text, settings), tuple(made))
        if self._store is not None and _audio_bytes(made):
            # Nobody waits for the disk: the utterance is already being heard.
            writing = asyncio.ensure_future(
                asyncio.to_thread(self._store.write, self._identity, text, settings, tuple(made))
            )
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)

    def holds(self, text: str, settings: VoiceSettings) -> bool:
        """Return whether the utterance is in memory, so that it can be spoken though the engine is not there."""
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
        """Return the utterance as it was spoken before; empty where it was not."""
        if kept := self._kept.get((text, settings)):
            self._kept.move_to_end((text, settings))
            return kept
        if self._store is None:
            return ()
        found = await asyncio.to_thread(self._store.read, self._identity, text, settings)
        self._keep((text, settings), found)
        return found

    def _keep(self, key: Key, chunks: tuple[SpeechChunk, ...]) -> None:
        size = _audio_bytes(chunks)
        # Two calls may have had the same text made at the same time: the first one is kept and counted.
        if not size or size > self._limit or key in self._kept:
            return
        self._kept[key] = chunks
        self.size += size
        while self.size > self._limit:
            self.size -= _audio_bytes(self._kept.popitem(last=False)[1])


def _audio_bytes(chunks: Iterable[SpeechChunk]) -> int:
    return sum(len(chunk.pcm) for chunk in chunks)


SUFFIX = ".speech"
PRUNE_EVERY = 100
"""Number of files written between two checks of the folder's size."""
MAX_HEADER_BYTES = 1 << 20


class _Header(msgspec.Struct):
    """The first line of a file: how its samples are cut into chunks, and when which word is spoken."""

    sizes: list[int]
    words: list[list[tuple[str, float, float]]]


class VoiceStore:
    """Utterances of any voices in one folder. Every method reads or writes the disk: call it in a thread."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` counts the bytes of all files; those used longest ago are removed. Raises `UserError`."""
        self._folder = folder
        self._limit = limit
        self._written = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"speech.voice_cache '{folder}' cannot be made: {error.strerror}") from None
        self.prune()

    def read(self, voice: str, text: str, settings: VoiceSettings) -> tuple[SpeechChunk, ...]:
        """Return the utterance; empty where it is not there or cannot be read."""
        path = self._path(voice, text, settings)
        try:
            data = path.read_bytes()
            # prune() removes what was used longest ago, and goes by the time of change: many file systems are mounted
            # so that reading alone does not update the time of access.
            os.utime(path)
        except OSError:
            return ()
        try:
            return _parse(data)
        except ValueError:
            path.unlink(missing_ok=True)
            return ()

    def write(self, voice: str, text: str, settings: VoiceSettings, chunks: Sequence[SpeechChunk]) -> None:
        """Keep an utterance. A disk that refuses is no error: the cache is worse for it, the call is not."""
        try:
            # Renamed when complete, so that no other process reads half a file.
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
        """Remove the files used longest ago until the rest is within the limit."""
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
        # A digest, not the text: what is said to callers does not stand in file names.
        key = json.dumps([voice, settings.language, settings.name, settings.speed, text])
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}{SUFFIX}"


def _format(chunks: Sequence[SpeechChunk]) -> bytes:
    """Write a line of JSON with sizes and words, then the samples."""
    words = [[(word.word, word.start, word.end) for word in chunk.words] for chunk in chunks]
    header = _Header([len(chunk.pcm) for chunk in chunks], words)
    return msgspec.json.encode(header) + b"\n" + b"".join(chunk.pcm for chunk in chunks)


def _parse(data: bytes) -> tuple[SpeechChunk, ...]:
    """Read what `_format` wrote. Raises `ValueError` for anything else, also for a file that was cut short."""
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
    """Measures a voice: `on_first` gets the text, when the voice was asked for it, and when its first audio came."""

    def __init__(self, voice: Voice, on_first: Callable[[str, float, float], None]) -> None:
        self._voice = voice
        self._on_first = on_first

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        clock = asyncio.get_running_loop().time
        asked_at, has_begun = clock(), False
        async with aclosing(self._voice.speak(text, settings)) as chunks:
            async for chunk in chunks:
                if chunk.pcm and not has_begun:
                    has_begun = True
                    self._on_first(text, asked_at, clock())
                yield chunk

    async def close(self) -> None:
        """Do nothing: the voice is shared, and closed by its owner."""


RECORDING = Path(__file__).parent / "data" / "apology.ulaw"
"""G.711 μ-law, 8 kHz: what `APOLOGY_TEXT` sounds like."""
APOLOGY_TEXT = "I'm sorry, I am having trouble speaking right now. Please hold, or call again in a few minutes."


class ApologisingVoice:
    """One call's voice, which replaces the first utterance that cannot be spoken at all by a recorded apology."""

    def __init__(self, voice: Voice, on_outage: Callable[[], None] = lambda: None) -> None:
        """`on_outage` is called for every utterance that could not be spoken to its end."""
        self._voice = voice
        self._on_outage = on_outage
        self.apologised = False

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        """Speak as the voice does; where it fails, raise its `ProviderError` after the recording."""
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
    """Return the recording in the place of `text`.

    Its only word time lies after the recording's end, so that nothing of `text` counts as heard by the caller.
    """
    pcm = _recording()
    end = len(pcm) / 2 / SAMPLE_RATE
    return SpeechChunk(pcm, tuple(WordTime(word, 2 * end, 2 * end) for word in text.split()[:1]))


@cache
def _recording() -> bytes:
    import audioop

    return audioop.ulaw2lin(RECORDING.read_bytes(), 2)
