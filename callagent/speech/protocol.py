"""The contracts of speech: what the turn manager asks of a recogniser and of a voice, and what a provider declares.

Audio is 16-bit little-endian mono PCM at 8 kHz everywhere on this side of an engine; each engine converts to and from
its own format.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from callagent.audio import FRAME_BYTES

PREROLL_BYTES = 25 * FRAME_BYTES
"""0.5 s of audio from before `begin()`: voice activity is noticed only after the first sound of an utterance."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a recogniser understood of one utterance."""

    text: str
    final: bool
    """False: the text may still change. Each `finish()` gets exactly one final transcript, empty without speech."""
    utterance: int
    """Number of the `begin()` that it belongs to, from 1."""
    alternatives: tuple[str, ...] = ()
    """Other readings of a final transcript, the more likely ones first, without `text` itself."""
    confidence: float | None = None
    """From 0 to 1; None where the engine gives none."""


@dataclass(frozen=True, slots=True)
class RecognizerSettings:
    """How one utterance is to be recognised."""

    language: str = "en-US"
    expected: str = ""
    """An example of the expected answer ("5 5 5 0 1 4 2"), for engines that take a prompt."""
    keywords: tuple[str, ...] = ()
    """Words that are likely to come up, such as names, the important ones first."""


class RecognizerStream(Protocol):
    """One call's stream to a recogniser. Every method returns at once and may be called from the media callback.

    The turn manager decides where an utterance begins and ends; an engine's own endpointing is switched off.
    """

    def feed(self, pcm: bytes) -> None:
        """Take the next frame, also in silence: the stream keeps its own pre-roll of 0.5 s."""

    def begin(self, settings: RecognizerSettings) -> None:
        """Begin an utterance: the caller speaks, and what was fed in the last 0.5 s belongs to it."""

    def finish(self) -> None:
        """End the caller's utterance; the stream owes exactly one final transcript for it."""

    def close(self) -> None:
        """Close the stream; no transcript comes after this, not even one that is owed."""


class Recognizer(Protocol):
    """A speech recogniser, shared by all calls."""

    async def open(self, on_transcript: Callable[[Transcript], None]) -> RecognizerStream:
        """Return a stream for one call; `on_transcript` is called on the event loop. Raises `ProviderError`."""

    async def close(self) -> None:
        """Close what all streams share, such as processes and connections."""


@dataclass(frozen=True, slots=True)
class VoiceSettings:
    """How one utterance is to be spoken."""

    language: str = "en-US"
    name: str = ""
    """The engine's own name of the voice; empty: its default."""
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class WordTime:
    """A word of an utterance, and when it is spoken."""

    word: str
    start: float
    """Seconds from the start of the utterance."""
    end: float


@dataclass(frozen=True, slots=True)
class SpeechChunk:
    """The next piece of an utterance's audio."""

    pcm: bytes
    words: tuple[WordTime, ...] = field(default=())
    """Times of the words that begin in this chunk, where the engine has them."""

    def delayed(self, seconds: float) -> SpeechChunk:
        """Return the chunk with the times of its words moved back by `seconds`, the length of the audio before it."""
        if not seconds or not self.words:
            return self
        return replace(self, words=tuple(WordTime(w.word, w.start + seconds, w.end + seconds) for w in self.words))


class Voice(Protocol):
    """A speech synthesiser, shared by all calls.

    Two further attributes are optional: `speaks_ssml` (the voice reads SSML) and `max_text_bytes` (longer texts are
    given to it in parts).
    """

    def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        """Yield audio in order as it is synthesised; closing the generator stops the work. Raises `ProviderError`."""

    async def close(self) -> None:
        """Close what all utterances share, such as processes and connections."""


Languages = frozenset[str] | None
"""Primary subtags of BCP 47, such as `en`; None: many languages, or unknown ones."""


@dataclass(frozen=True, slots=True)
class SpeechProvider:
    """The settings by which one provider is reached."""

    api_key: str = field(default="", repr=False)
    base_url: str = ""
    """`https://…` or `http://…`, also for sockets; empty: the provider's own."""
    model: str = ""
    """The provider's own name of the model; empty: the default in the provider's module."""
    voice: str = ""
    """The provider's own name of the voice used by default; empty: the default in the provider's module."""
    connect_timeout: float = 2.0
    """Seconds from the request to the answer's head, or to the open socket."""
    total_timeout: float = 30.0
    """Seconds from a request to the end of its answer."""

    def url(self, default: str, path: str, *, socket: bool = False) -> str:
        """Return the URL of `path` at the provider; that of a socket has `ws` in place of `http`."""
        # The settings give one address for requests and sockets alike.
        base = (self.base_url or default).rstrip("/")
        return ("ws" + base.removeprefix("http") if socket else base) + path


@dataclass(frozen=True, slots=True)
class Declaration:
    """A recogniser or voice, or both, under one name of the settings; each provider's module lists its own."""

    name: str
    """As `speech.recognizer` and `speech.voice` give it, without a model."""
    documentation: str
    """Its line in the documentation: the company or software, and what is special about it."""
    key: str = ""
    """The environment variable of its key; empty: a self-hosted server, which has an address and no key."""
    environment: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Further environment variable -> the setting that it fills, and the setting's value: `{}` is the variable's."""
    recognizer: Callable[[SpeechProvider], Recognizer] | None = None
    """Opens the provider's recogniser; nothing is sent before the first utterance. None: it has none."""
    voice: Callable[[SpeechProvider], Voice] | None = None
    """Opens the provider's voice; nothing is sent before the first utterance. None: it has none."""
    recognizer_languages: Callable[[str], Languages] = lambda model: None
    """Returns the languages that a model recognises; the argument is empty for the default model."""
    voice_languages: Callable[[str, str], Languages] = lambda model, voice: None
    """Returns the languages that a model's voice speaks; empty arguments stand for the default model and voice."""

    @property
    def section(self) -> str:
        """The table `speech.providers.SECTION` of its settings."""
        return section_of(self.name)

    @property
    def documentation_line(self) -> str:
        """Its line in the list of providers of the documentation."""
        roles = [role for role, opener in (("recogniser", self.recognizer), ("voice", self.voice)) if opener]
        variables = ", ".join(f"`{name}`" for name in (self.key, *self.environment) if name)
        return f"* `{self.name}` ({', '.join(roles)}): {self.documentation}." + (f" {variables}" if variables else "")


def section_of(name: str) -> str:
    """Return the settings table of a provider named with or without a model: `openai` for `openai-realtime/MODEL`."""
    return name.partition("/")[0].partition("-")[0]


def accepted_keywords(
    keywords: Sequence[str], count: int, *, max_characters: int = 1000, max_total: int = 10_000
) -> list[str]:
    """Return at most `count` keywords, of at most `max_characters` each and `max_total` characters together.

    The others are left out, because a provider refuses the whole request for one keyword too many or too long.
    """
    # A word that does not fit is skipped, because a shorter one after it may still fit.
    accepted: list[str] = []
    for word in keywords:
        total = len(word) + sum(map(len, accepted))
        if len(word) <= max_characters and total <= max_total and len(accepted) < count:
            accepted.append(word)
    return accepted


def primary_language(language: str) -> str:
    """Return the primary subtag of a language tag: `en` of `en-US`."""
    return language.partition("-")[0].lower()


def voice_name_languages(voice: str) -> Languages:
    """Return the language that a voice's name begins with (`de-DE-KatjaNeural`), or None."""
    # The name of a multilingual voice begins with only one of its languages.
    beginning = re.match(r"([a-z]{2})-[A-Z]{2}-", voice)
    return frozenset({beginning[1]}) if beginning and "Multilingual" not in voice else None
