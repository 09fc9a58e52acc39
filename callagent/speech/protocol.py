"""What the turn manager asks of a recogniser and of a voice. Audio is 16-bit little-endian mono PCM at 8 kHz."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Transcript:
    text: str
    final: bool
    """False: may still change. True: answers one `finish()`; exactly one for each, empty where nothing was said."""
    utterance: int
    """Number of the `begin()` it belongs to, from 1."""
    alternatives: tuple[str, ...] = ()
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class RecognizerSettings:
    language: str = "en-US"
    expected: str = ""
    """An example of the answer expected ("5 5 5 0 1 4 2"), for engines that take a prompt."""
    keywords: tuple[str, ...] = ()


class RecognizerStream(Protocol):
    """One call's ear. Every method returns at once and may be called from the media callback."""

    def feed(self, pcm: bytes) -> None:
        """The next frame, also in silence: the stream keeps its own pre-roll of 0.5 s."""

    def begin(self, settings: RecognizerSettings) -> None:
        """The caller began to speak; what was fed in the last 0.5 s belongs to the utterance."""

    def finish(self) -> None:
        """The caller's utterance is over: one final transcript is owed for it."""

    def close(self) -> None: ...


class Recognizer(Protocol):
    """A speech recogniser, shared by all calls."""

    async def open(self, on_transcript: Callable[[Transcript], None]) -> RecognizerStream:
        """A stream for one call; `on_transcript` is called on the event loop."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class VoiceSettings:
    language: str = "en-US"
    name: str = ""
    """The engine's own name of the voice; empty: its default."""
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class WordTime:
    word: str
    start: float
    """Seconds from the start of the utterance."""
    end: float


@dataclass(frozen=True, slots=True)
class SpeechChunk:
    pcm: bytes
    words: tuple[WordTime, ...] = field(default=())
    """Times of the words that begin in this chunk, where the engine has them."""

    def later(self, seconds: float) -> SpeechChunk:
        """The chunk with its words' times from the start of an utterance of which so much was spoken before."""
        if not seconds or not self.words:
            return self
        return replace(self, words=tuple(WordTime(w.word, w.start + seconds, w.end + seconds) for w in self.words))


class Voice(Protocol):
    """A speech synthesiser, shared by all calls."""

    def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        """Audio in order, as it is made; closing the iterator stops the work. Raises `ProviderError`."""

    async def close(self) -> None: ...
