"""What calls hear and speak with: opened once, shared by all; and a turn-taker for each call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from callagent.agents import AgentProject
from callagent.audio import FRAME_BYTES
from callagent.call import Event, ProvidersFailed, SpeechMade
from callagent.config import SpeechSettings
from callagent.errors import ProviderError
from callagent.failover import Lineup
from callagent.log import get_logger
from callagent.server.speech_options import check_languages, longest_final, open_sounds, speech_options
from callagent.server.whole_utterances import WholeUtterances
from callagent.speech import (
    ApologisingVoice,
    FailoverRecognizer,
    FailoverVoice,
    Recognizer,
    Sounds,
    SpeechChunk,
    TimedVoice,
    VoiceSettings,
    WatchedRecognizer,
    open_recognizer,
    open_turn_model,
    open_voice,
    open_voice_activity,
    speakable,
)
from callagent.turns import CallerInput, TurnEvent, TurnManager, TurnModel, TurnSettings

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CallSpeech:
    settings: SpeechSettings
    recognizer: Recognizer | None
    """None: calls are not listened to."""
    voice: FailoverVoice
    sounds: Sounds
    turn_model: TurnModel | None

    @classmethod
    async def open(cls, settings: SpeechSettings, stack: AsyncExitStack) -> CallSpeech:
        """Ready for the first call; `stack` closes it. Raises `UserError` or `ProviderError`."""
        if "local" in (*settings.recognizer, *settings.voice):
            log.info("loading_speech_models")
        check_languages(settings)
        options = speech_options(settings)
        recognizer = await open_recognizer(settings.recognizer, options)
        stack.push_async_callback(recognizer.close)
        voice = await open_voice(settings.voice, options)
        stack.push_async_callback(voice.close)
        sounds = await asyncio.to_thread(open_sounds, settings)
        turn_model = await open_turn_model(settings.turn_model)
        if turn_model is not None:
            stack.push_async_callback(turn_model.close)
        # The first detector loads its library, its first windows the model's code; no call should wait for that.
        open_voice_activity().feed(bytes(4 * FRAME_BYTES))
        return cls(settings, None if settings.recognizer == ("none",) else recognizer, voice, sounds, turn_model)

    @property
    def lineups(self) -> list[Lineup[Any]]:
        heard = [self.recognizer.lineup] if isinstance(self.recognizer, FailoverRecognizer) else []
        return [self.voice.lineup, *heard]

    async def prepare(self, projects: Iterable[AgentProject]) -> None:
        """Speak what projects are sure to say, so that the first caller need not wait for it."""
        for project in projects:
            try:
                voice = PronouncingVoice(self.voice, project)
                await voice.prepare(project.phrases(), VoiceSettings(language=self.settings.language))
            except ProviderError as error:
                # What a voice cannot say now it may say in a call, and a recorded prompt needs none.
                log.warning("phrases_not_prepared", project=project.name, error=str(error))

    def turn_taker(
        self,
        project: AgentProject,
        emit: Callable[[Event], None],
        watcher: Callable[[TurnEvent], None] | None = None,
    ) -> TurnManager:
        """For one call. `watcher` is told of its turns before the call is."""
        recognizer = self.recognizer
        if isinstance(recognizer, FailoverRecognizer):
            recognizer = WatchedRecognizer(recognizer, lambda: emit(ProvidersFailed("recognizer")))
        settings = self.settings
        ears = CallerInput(recognizer, open_voice_activity(), language=settings.language, turn_model=self.turn_model)
        times = TurnSettings(
            endpointing=settings.endpointing, no_input=settings.no_input, final_wait=longest_final(settings)
        )
        # Who set no voice up has recorded prompts, or a test.
        mute = settings.voice == ("none",)
        spoken = PronouncingVoice(self.voice, project)
        voice = ApologisingVoice(spoken, lambda: None if mute else emit(ProvidersFailed("voice")))
        timed = TimedVoice(voice, lambda text, asked, answered: emit(SpeechMade(text, asked, answered)))
        told = emit if watcher is None else _in_order(watcher, emit)
        return TurnManager(ears, timed, told, times, self.sounds)

    def utterances(self) -> WholeUtterances:
        """What is said and heard outside of calls."""
        return WholeUtterances(
            self.recognizer,
            lambda project: PronouncingVoice(self.voice, project),
            self.settings.language,
            longest_final(self.settings),
        )


class PronouncingVoice:
    """A voice that reads a project's words as the project says they are pronounced, and numbers as words."""

    def __init__(self, voice: FailoverVoice, project: AgentProject) -> None:
        self._voice = voice
        self._project = project

    def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        return self._voice.speak(self._aloud(text, settings), settings)

    async def prepare(self, texts: Sequence[str], settings: VoiceSettings) -> None:
        await self._voice.prepare([self._aloud(text, settings) for text in texts], settings)

    def _aloud(self, text: str, settings: VoiceSettings) -> str:
        return speakable(self._project.pronounce(text, settings.language), settings.language)

    async def close(self) -> None:
        """The voice is shared; whoever opened it closes it."""


def _in_order(*told: Callable[[TurnEvent], None]) -> Callable[[TurnEvent], None]:
    def tell(event: TurnEvent) -> None:
        for each in told:
            each(event)

    return tell
