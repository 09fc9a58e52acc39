"""What the turn manager asks of a recogniser and of a voice. Audio is 16-bit little-endian mono PCM at 8 kHz."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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


Languages = frozenset[str] | None
"""Primary subtags (`en`); None: many languages, or it is not known which."""


@dataclass(frozen=True, slots=True)
class SpeechProvider:
    """How one provider is reached, from the settings."""

    api_key: str = field(default="", repr=False)
    base_url: str = ""
    """`https://…` or `http://…`, also for sockets; empty: the provider's own."""
    model: str = ""
    """Empty: the one that its file names."""
    voice: str = ""
    """The provider's own name of the voice used where none is asked for; empty: the one that its file names."""
    connect_timeout: float = 2.0
    """Seconds from the request to the answer's head, or to the open socket."""
    total_timeout: float = 30.0
    """Seconds from a request to the end of its answer."""

    def url(self, default: str, path: str, *, socket: bool = False) -> str:
        """`path` at the provider; of a socket with `ws` in place of `http`."""
        base = (self.base_url or default).rstrip("/")
        return ("ws" + base.removeprefix("http") if socket else base) + path


@dataclass(frozen=True, slots=True)
class Declaration:
    """One name that the settings may give as a recogniser or a voice; each provider's file lists its own."""

    name: str
    """As `speech.recognizer` and `speech.voice` give it, without a model."""
    documentation: str
    """One line for the documentation: whose it is, and what it has that others have not."""
    key: str = ""
    """The environment variable of its key; empty: a server of one's own, which has an address and no key."""
    environment: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Further environment variables: the setting that each fills, and the value with `{}` for the variable's."""
    recognizer: Callable[[SpeechProvider], Recognizer] | None = None
    """Opens its recogniser; nothing is sent before the first utterance."""
    voice: Callable[[SpeechProvider], Voice] | None = None
    """Likewise; a voice with `max_text_bytes` gets longer texts in parts."""
    recognizer_languages: Callable[[str], Languages] = lambda model: None
    """From the model (empty: the default one) to the languages that it hears."""
    voice_languages: Callable[[str, str], Languages] = lambda model, voice: None
    """From the model and the voice (empty: the default ones) to the languages that are spoken."""

    @property
    def section(self) -> str:
        """The table `speech.providers.SECTION` that it is configured by."""
        return section_of(self.name)

    @property
    def line(self) -> str:
        """Its line in the documentation's list of providers."""
        roles = [role for role, opener in (("recogniser", self.recognizer), ("voice", self.voice)) if opener]
        variables = ", ".join(f"`{name}`" for name in (self.key, *self.environment) if name)
        return f"* `{self.name}` ({', '.join(roles)}): {self.documentation}." + (f" {variables}" if variables else "")


def section_of(name: str) -> str:
    """Return the settings table of a provider named with or without a model: `openai` for `openai-realtime/MODEL`."""
    return name.partition("/")[0].partition("-")[0]


def fitting(words: Sequence[str], most: int, *, each: int = 1000, together: int = 10_000) -> list[str]:
    """The first `most` words that a provider takes: of at most `each` characters, `together` at most of all."""
    found: list[str] = []
    for word in words:
        if len(word) <= each and len(word) + sum(map(len, found)) <= together and len(found) < most:
            found.append(word)
    return found


def primary_language(language: str) -> str:
    """`en` of `en-US`."""
    return language.partition("-")[0].lower()


def voice_name_languages(voice: str) -> Languages:
    """Return the language that a voice's name begins with (`de-DE-KatjaNeural`), where the provider names them so."""
    beginning = re.match(r"([a-z]{2})-[A-Z]{2}-", voice)
    return frozenset({beginning[1]}) if beginning and "Multilingual" not in voice else None
