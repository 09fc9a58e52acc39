"""Opens recognisers, voices and the turn model by the names that the settings give them.

`NoRecognizer` and `NoVoice` are the engines named `none`: a server with them still plays recordings and takes key
presses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.errors import ConfigError, ProviderError
from callagent.failover import Member
from callagent.speech.failover import FailoverRecognizer, FailoverVoice, VoiceNames
from callagent.speech.protocol import (
    Recognizer,
    RecognizerSettings,
    RecognizerStream,
    SpeechChunk,
    Transcript,
    Voice,
    VoiceSettings,
)
from callagent.speech.providers import (
    Languages,
    SpeechProvider,
    declarations,
    open_provider_recognizer,
    open_provider_voice,
    primary_language,
)
from callagent.speech.voice_wrappers import CachedVoice, VoiceStore

if TYPE_CHECKING:
    from callagent.speech.local import LocalTurnModel

EMBEDDED_NAMES = "'local', 'none' or 'script:FILE'"
MAX_STORE_BYTES = 1 << 30
"""Disk space for synthesised utterances: 1 GiB, some 18 hours of speech."""


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """How engines run and how providers are reached; each engine uses the options that concern it."""

    whisper_dir: str = ""
    """A CTranslate2 Whisper model directory for final transcripts; empty: the packaged Whisper base."""
    threads: int = 1
    """Transcriptions at a time; each occupies a processor."""
    cache: Path | None = None
    """Where the packaged model is put together; None: `~/.cache/callagent`."""
    voice_cache_bytes: int = 64 << 20
    """Audio of utterances kept in memory to be spoken again; 0: none."""
    voice_cache: Path | None = None
    """A folder for utterances that outlive a restart of the server; None: they are kept in memory only."""
    providers: Mapping[str, SpeechProvider] = field(default_factory=dict)
    voice_names: VoiceNames = field(default_factory=VoiceNames)


async def open_recognizer(names: str | Sequence[str], options: SpeechOptions | None = None) -> Recognizer:
    """Return the recogniser, or the line-up, of `names`, ready for calls. Raises `UserError` or `ProviderError`."""
    options = options or SpeechOptions()
    names = [names] if isinstance(names, str) else names
    members = [await _recognizer_member(name, options) for name in names]
    # A single embedded engine has no other to fail over to and gets all the time it needs: a line-up adds nothing.
    is_single = len(members) == 1 and members[0].embedded
    return members[0].provider if is_single else FailoverRecognizer(members)


async def open_voice(names: str | Sequence[str], options: SpeechOptions | None = None) -> FailoverVoice:
    """Return the line-up of the voices `names`, ready for calls. Raises `UserError` or `ProviderError`.

    Utterances are cached, and spoken again without asking an engine.
    """
    options = options or SpeechOptions()
    store = VoiceStore(options.voice_cache, MAX_STORE_BYTES) if options.voice_cache else None
    names = [names] if isinstance(names, str) else names
    return FailoverVoice([await _voice_member(name, options, store) for name in names], options.voice_names)


async def _recognizer_member(name: str, options: SpeechOptions) -> Member[Recognizer]:
    provider, _, model = name.partition("/")
    # A name that is no provider's is an embedded engine's, or a mistake that is reported with all known names.
    if provider not in _provider_names("recognizer"):
        return Member(name, await _open_embedded_recognizer(name, options), embedded=True)
    return Member(provider, open_provider_recognizer(provider, _settings(provider, model, options)))


async def _voice_member(name: str, options: SpeechOptions, store: VoiceStore | None) -> Member[CachedVoice]:
    provider, _, model = name.partition("/")
    size = options.voice_cache_bytes
    if provider not in _provider_names("voice"):
        # An edited script speaks the same text in another way, so utterances of scripts are not kept on disk.
        own_store = store if name == "local" else None
        voice = CachedVoice(await _open_embedded_voice(name), size, own_store, name)
        return Member(name, voice, embedded=True)
    settings = _settings(provider, model, options)
    # The identity holds everything that changes how a text sounds, so not the API key.
    identity = "/".join((provider, settings.base_url, settings.model, settings.voice))
    return Member(provider, CachedVoice(open_provider_voice(provider, settings), size, store, identity))


def _settings(provider: str, model: str, options: SpeechOptions) -> SpeechProvider:
    """Return the provider's settings, with `model` if given. Raises `ConfigError` if its key or address is missing."""
    declared = declarations()[provider]
    # Names such as `openai` and `openai-realtime` share a table of the settings, and so its key and address.
    section = declared.section
    settings = options.providers.get(section, SpeechProvider())
    if not declared.key and not settings.base_url:
        raise ConfigError(f"'{provider}' needs the address of its server: speech.providers.{section}.base_url")
    if not settings.api_key and not settings.base_url:
        raise ConfigError(
            f"'{provider}' needs a key: set {declared.key}, or speech.providers.{section}.base_url to a server "
            "that needs none"
        )
    return replace(settings, model=model) if model else settings


async def _open_embedded_recognizer(name: str, options: SpeechOptions) -> Recognizer:
    match name.partition(":"):
        case "local", "", "":
            from callagent.speech.local import LocalRecognizer, RecognizerOptions

            settings = RecognizerOptions(options.whisper_dir, options.threads, cache=options.cache)
            recognizer = LocalRecognizer(settings)
            await recognizer.start()
            return recognizer
        case "none", "", "":
            return NoRecognizer()
        case "script", ":", file if file:
            from callagent.speech.scripted import ScriptedRecognizer

            return ScriptedRecognizer.read(Path(file))
    raise ConfigError(f"the recogniser '{name}' is not known: {_describe_names('recognizer')}")


async def _open_embedded_voice(name: str) -> Voice:
    match name.partition(":"):
        case "local", "", "":
            from callagent.speech.local import LocalVoice

            voice = LocalVoice()
            await voice.start()
            return voice
        case "none", "", "":
            return NoVoice()
        case "script", ":", file if file:
            from callagent.speech.scripted import ScriptedVoice

            return ScriptedVoice.read(Path(file))
    raise ConfigError(f"the voice '{name}' is not known: {_describe_names('voice')}")


def _provider_names(role: str) -> list[str]:
    """Return the names of the providers that declare a `recognizer` or a `voice`, whichever `role` is."""
    return [name for name, declared in declarations().items() if getattr(declared, role)]


def _describe_names(role: str) -> str:
    return f"{EMBEDDED_NAMES}, or a provider, with or without '/MODEL': {', '.join(_provider_names(role))}"


async def open_turn_model(name: str) -> LocalTurnModel | None:
    """Return the turn model, ready for calls; None for `none`. Raises `UserError` or `ProviderError`."""
    if name == "none":
        return None
    if name != "smart-turn":
        raise ConfigError(f"the turn model '{name}' is not known: choose 'smart-turn' or 'none'")
    from callagent.speech.local import LocalTurnModel

    model = LocalTurnModel()
    await model.start()
    return model


class NoRecognizer:
    """A recogniser that understands nothing, and answers every utterance at once with an empty transcript."""

    async def open(self, on_transcript: Callable[[Transcript], None]) -> RecognizerStream:
        return _EmptyStream(on_transcript)

    async def close(self) -> None:
        return None


class _EmptyStream:
    """One call's stream to `NoRecognizer`."""

    def __init__(self, on_transcript: Callable[[Transcript], None]) -> None:
        self._on_transcript = on_transcript
        self._utterance = 0
        self._closed = False

    def feed(self, pcm: bytes) -> None:
        return None

    def begin(self, settings: RecognizerSettings) -> None:
        self._utterance += 1

    def finish(self) -> None:
        transcript = Transcript("", True, self._utterance)
        # Not from inside finish(): the caller of finish() is not ready for the answer.
        asyncio.get_running_loop().call_soon(self._emit, transcript)

    def close(self) -> None:
        self._closed = True

    def _emit(self, transcript: Transcript) -> None:
        if not self._closed:
            self._on_transcript(transcript)


class NoVoice:
    """A voice that fails on every text, so that an utterance that nobody hears does not count as spoken."""

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        raise ProviderError(f"no voice is configured to say '{text}': speech.voice is 'none'")
        yield  # Never reached; it makes this function a generator.

    async def close(self) -> None:
        return None


ENGLISH = frozenset({"en"})
"""The only language that the embedded engines recognise and speak."""


def recognizer_languages(name: str, settings: SpeechProvider) -> Languages:
    """Return the languages of the recogniser `name`, which may end in `/MODEL`."""
    provider, _, model = name.partition("/")
    if provider == "local":
        return ENGLISH
    declared = declarations().get(provider)
    return declared.recognizer_languages(model or settings.model) if declared else None


def voice_languages(name: str, settings: SpeechProvider) -> Languages:
    """Return the languages of the voice `name`, which may end in `/MODEL`."""
    provider, _, model = name.partition("/")
    if provider == "local":
        return ENGLISH
    declared = declarations().get(provider)
    return declared.voice_languages(model or settings.model, settings.voice) if declared else None


def may_include(languages: Languages, language: str) -> bool:
    """Return whether `languages` include `language`; True if they are not known."""
    return languages is None or primary_language(language) in languages


def is_known_voice(name: str) -> bool:
    """Return whether `name` is a provider that has voices, or the embedded voice."""
    declared = declarations().get(name)
    return name == "local" or bool(declared and declared.voice)
