"""Recognisers and voices, opened once and shared by all calls; the turn manager of a call; speech outside of calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from callagent import speech
from callagent.agents import AgentProject
from callagent.audio import FRAME_BYTES, FRAME_SECONDS, Sounds
from callagent.call import Event, ProvidersFailed, SpeechMade
from callagent.config import SpeechProviderSettings, SpeechSettings
from callagent.errors import ConfigError, ProviderError, UserError
from callagent.failover import Lineup
from callagent.log import get_logger
from callagent.turns import CallerInput, TurnEvent, TurnManager, TurnModel, TurnSettings

log = get_logger(__name__)

HANDOVER_SECONDS = 0.5
"""Longest time for the next recogniser of a line-up to be opened and to be given the utterance."""


def speech_options(settings: SpeechSettings) -> speech.SpeechOptions:
    providers = settings.providers
    names = type(providers).model_fields
    return speech.SpeechOptions(
        whisper_dir=settings.whisper_dir,
        voice_cache=Path(settings.voice_cache) if settings.voice_cache else None,
        providers={name: _provider(getattr(providers, name)) for name in names},
        voice_names=speech.VoiceNames(
            {(voice.provider.lower(), voice.name): tuple(voice.instead.items()) for voice in settings.voices}
        ),
    )


def check_languages(settings: SpeechSettings) -> None:
    """Check that providers know the language. Raises `ConfigError` if the preferred recogniser or voice does not.

    About the others of a line-up it only logs a warning. Voices that replace others must be of a known provider.
    """
    providers = speech_options(settings).providers
    for role, names, languages_of in (
        ("recognizer", settings.recognizer, speech.recognizer_languages),
        ("voice", settings.voice, speech.voice_languages),
    ):
        for place, name in enumerate(names):
            languages = languages_of(name, providers.get(speech.section_of(name), speech.SpeechProvider()))
            if speech.may_include(languages, settings.language):
                continue
            known = ", ".join(sorted(languages or ()))
            if not place:
                raise ConfigError(
                    f"speech.language '{settings.language}' is unknown to the {role} '{name}', which knows {known}; "
                    f"choose another {role}, or another language"
                )
            log.warning("language_not_known", role=role, provider=name, language=settings.language, known=known)
    for voice in settings.voices:
        if unknown := [name for name in voice.instead if not speech.is_known_voice(name)]:
            raise ConfigError(f"speech.voices: '{unknown[0]}' is not a provider of voices; choose one from the README")


def open_sounds(settings: SpeechSettings) -> Sounds:
    """Load the sounds of the settings, which takes a fifth of a second. Raises `UserError`."""
    folder = Path(settings.sounds) if settings.sounds else None
    if folder is not None and not folder.is_dir():
        raise UserError(f"speech.sounds '{folder}' is not a folder; make it, or remove the setting")
    return Sounds(folder)


def longest_final(settings: SpeechSettings) -> float:
    """Return the seconds after which no recogniser of the line-up will give a final transcript any more."""
    return (speech.FailoverRecognizer.final_seconds + HANDOVER_SECONDS) * len(settings.recognizer) - HANDOVER_SECONDS


def _provider(settings: SpeechProviderSettings) -> speech.SpeechProvider:
    key = settings.api_key.get_secret_value()
    return speech.SpeechProvider(key, settings.base_url, settings.model, settings.voice)


@dataclass(frozen=True, slots=True)
class CallSpeech:
    """What all calls of a server hear and speak with."""

    settings: SpeechSettings
    recognizer: speech.Recognizer | None
    """None: calls are not listened to."""
    voice: speech.FailoverVoice
    sounds: Sounds
    turn_model: TurnModel | None

    @classmethod
    async def open(cls, settings: SpeechSettings, stack: AsyncExitStack) -> CallSpeech:
        """Open and warm up everything; `stack` closes it. Raises `UserError` or `ProviderError`."""
        if "local" in (*settings.recognizer, *settings.voice):
            log.info("loading_speech_models")
        check_languages(settings)
        options = speech_options(settings)
        recognizer = await speech.open_recognizer(settings.recognizer, options)
        stack.push_async_callback(recognizer.close)
        voice = await speech.open_voice(settings.voice, options)
        stack.push_async_callback(voice.close)
        sounds = await asyncio.to_thread(open_sounds, settings)
        turn_model = await speech.open_turn_model(settings.turn_model)
        if turn_model is not None:
            stack.push_async_callback(turn_model.close)
        # The first detector loads its library and its first windows load the model; no call is to wait for that.
        speech.open_voice_activity().feed(bytes(4 * FRAME_BYTES))
        return cls(settings, None if settings.recognizer == ("none",) else recognizer, voice, sounds, turn_model)

    @property
    def lineups(self) -> list[Lineup[Any]]:
        recognizers = [self.recognizer.lineup] if isinstance(self.recognizer, speech.FailoverRecognizer) else []
        return [self.voice.lineup, *recognizers]

    async def prepare(self, projects: Iterable[AgentProject]) -> None:
        """Synthesise the phrases that projects name, so that the first caller does not wait for them."""
        for project in projects:
            try:
                voice = PronouncingVoice(self.voice, project)
                await voice.prepare(project.phrases(), speech.VoiceSettings(language=self.settings.language))
            except ProviderError as error:
                # The voice may be back when a call needs it, and recorded prompts need no voice at all.
                log.warning("phrases_not_prepared", project=project.name, error=str(error))

    def make_turn_manager(
        self,
        project: AgentProject,
        emit: Callable[[Event], None],
        watcher: Callable[[TurnEvent], None] | None = None,
    ) -> TurnManager:
        """Make the turn manager of one call. `watcher` is given each of its events before the call is."""
        # Recogniser and voice report to this call when their whole line-up has failed; each is shared by all calls.
        recognizer = self.recognizer
        if isinstance(recognizer, speech.FailoverRecognizer):
            recognizer = speech.WatchedRecognizer(recognizer, lambda: emit(ProvidersFailed("recognizer")))
        settings = self.settings
        caller = CallerInput(
            recognizer, speech.open_voice_activity(), language=settings.language, turn_model=self.turn_model
        )
        times = TurnSettings(
            endpointing=settings.endpointing, no_input=settings.no_input, final_wait=longest_final(settings)
        )
        # Without a voice, as with recorded prompts or in tests, a text that cannot be spoken is no provider's failure.
        mute = settings.voice == ("none",)
        spoken = PronouncingVoice(self.voice, project)
        voice = speech.ApologisingVoice(spoken, lambda: None if mute else emit(ProvidersFailed("voice")))
        timed = speech.TimedVoice(voice, lambda text, asked, answered: emit(SpeechMade(text, asked, answered)))
        emit_to_all = emit if watcher is None else _in_order(watcher, emit)
        return TurnManager(caller, timed, emit_to_all, times, self.sounds)

    def utterances(self) -> WholeUtterances:
        """Return what recognises and speaks whole utterances outside of calls."""
        return WholeUtterances(
            self.recognizer,
            lambda project: PronouncingVoice(self.voice, project),
            self.settings.language,
            longest_final(self.settings),
        )


class PronouncingVoice:
    """A voice that reads a project's words as the project says they are pronounced, and numbers as words."""

    def __init__(self, voice: speech.FailoverVoice, project: AgentProject) -> None:
        self._voice = voice
        self._project = project

    def speak(self, text: str, settings: speech.VoiceSettings) -> AsyncGenerator[speech.SpeechChunk, None]:
        return self._voice.speak(self._aloud(text, settings), settings)

    async def prepare(self, texts: Sequence[str], settings: speech.VoiceSettings) -> None:
        await self._voice.prepare([self._aloud(text, settings) for text in texts], settings)

    def _aloud(self, text: str, settings: speech.VoiceSettings) -> str:
        return speech.speakable(self._project.pronounce(text, settings.language), settings.language)

    async def close(self) -> None:
        """The voice is shared; whoever opened it closes it."""


def _in_order(*callbacks: Callable[[TurnEvent], None]) -> Callable[[TurnEvent], None]:
    """Return a callback that calls each of `callbacks`, the first one first."""

    def call_each(event: TurnEvent) -> None:
        for callback in callbacks:
            callback(event)

    return call_each


FEED_SPEED: Final = 10.0
"""How many times faster than real time an utterance is fed; recognisers' queues are made for the audio of calls."""
_FEED_BYTES: Final = 25 * FRAME_BYTES
"""Fed without a pause: 0.5 s of audio."""
SPEAKING_SECONDS: Final = 30.0
"""Longest time for a voice to deliver a text."""


class Speaking(Protocol):
    """What `WholeUtterances` needs of a voice."""

    def speak(self, text: str, settings: speech.VoiceSettings) -> AsyncGenerator[speech.SpeechChunk, None]: ...


class WholeUtterances:
    """Recognises and speaks whole utterances outside of calls (`web.Utterances`), with the providers of calls."""

    def __init__(
        self,
        recognizer: speech.Recognizer | None,
        voice_of: Callable[[AgentProject], Speaking],
        language: str,
        final_seconds: float,
    ) -> None:
        self._recognizer = recognizer
        self._voice_of = voice_of
        self._language = language
        self._final_seconds = final_seconds

    async def recognise(self, pcm: bytes) -> str:
        """Return the transcript of an utterance. Raises `ProviderError`."""
        if self._recognizer is None:
            raise ProviderError("no recogniser is set up; name one in speech.recognizer")
        final: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def take(transcript: speech.Transcript) -> None:
            if transcript.final and not final.done():
                final.set_result(transcript.text)

        stream = await self._recognizer.open(take)
        try:
            stream.begin(speech.RecognizerSettings(self._language))
            # The audio is fed in steps with pauses between them, because a queue that is full would drop audio.
            for start in range(0, len(pcm), _FEED_BYTES):
                for frame in range(start, min(start + _FEED_BYTES, len(pcm)), FRAME_BYTES):
                    stream.feed(pcm[frame : frame + FRAME_BYTES].ljust(FRAME_BYTES, b"\0"))
                await asyncio.sleep(_FEED_BYTES / FRAME_BYTES * FRAME_SECONDS / FEED_SPEED)
            stream.finish()
            async with asyncio.timeout(self._final_seconds + len(pcm) / FRAME_BYTES * FRAME_SECONDS):
                return await final
        except TimeoutError:
            raise ProviderError("no recogniser answered in time") from None
        finally:
            stream.close()

    async def speak(self, project: AgentProject, text: str) -> bytes:
        """Return a text as spoken by the voice of a project. Raises `ProviderError`."""
        source = self._voice_of(project).speak(text, speech.VoiceSettings(language=self._language))
        audio = bytearray()
        try:
            # Closing the generator stops the provider's work.
            async with asyncio.timeout(SPEAKING_SECONDS), aclosing(source):
                async for chunk in source:
                    audio += chunk.pcm
        except TimeoutError:
            raise ProviderError("no voice answered in time") from None
        return bytes(audio)
