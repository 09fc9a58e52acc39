"""How the agent sounds: its voice, its language, what is heard under it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from callagent.agents import SetBackground, SetLanguage, SetThinkingSound, SetVoice
from callagent.call.recorder import Recorder
from callagent.speech.protocol import VoiceSettings
from callagent.turns import TurnManager

SoundAction = SetBackground | SetLanguage | SetThinkingSound | SetVoice


class SpeechSettings:
    """One call's; changes count from the next utterance on."""

    def __init__(
        self, taker: TurnManager, has_voice: Callable[[str, str], bool], recorder: Recorder, language: str
    ) -> None:
        self._taker = taker
        self._has_voice = has_voice
        self._recorder = recorder
        self._settings = VoiceSettings(language=language)

    @property
    def language(self) -> str:
        """As the agent speaks now."""
        return self._settings.language

    def apply(self, action: SoundAction) -> None:
        match action:
            case SetVoice(provider=provider, name=name):
                if self._found("voice", f"{provider}/{name}", self._has_voice(provider, name)):
                    self._speak_as(replace(self._settings, name=f"{provider}/{name}"))
            case SetLanguage(code=code):
                self._taker.set_language(code)
                self._speak_as(replace(self._settings, language=code))
            case SetBackground(name=name, loudness=loudness):
                self._found("sound", name, self._taker.set_background(name, loudness))
            case SetThinkingSound(name=name, loudness=loudness):
                self._found("sound", name, self._taker.set_thinking_sound(name, loudness))

    def _speak_as(self, settings: VoiceSettings) -> None:
        self._settings = settings
        self._taker.set_voice(settings)

    def _found(self, what: str, name: str, found: bool) -> bool:
        if not found:
            now = asyncio.get_running_loop().time()
            self._recorder.error(what, f"{what} '{name}' is not available", now)
        return found
