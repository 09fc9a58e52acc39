"""Recognisers and voices, by name; several names are a line-up in which the next takes over where one fails.

    recognizer, voice = await asyncio.gather(open_recognizer("local"), open_voice("local"))   # seconds: loads models
    stream = await recognizer.open(on_transcript)
    async for chunk in voice.speak("Hello.", VoiceSettings()): ...

The front door is light: each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.speech.call_voice import (
        ApologisingVoice,
        TimedVoice,
    )
    from callagent.speech.factory import (
        SpeechOptions,
        open_recognizer,
        open_turn_model,
        open_voice,
    )
    from callagent.speech.failover_recognizer import (
        FailoverRecognizer,
        WatchedRecognizer,
    )
    from callagent.speech.failover_voice import (
        FailoverVoice,
        VoiceNames,
    )
    from callagent.speech.languages import (
        is_known,
        recognizer_languages,
        speaks,
        voice_languages,
    )
    from callagent.speech.protocol import (
        Recognizer,
        RecognizerSettings,
        RecognizerStream,
        SpeechChunk,
        Transcript,
        Voice,
        VoiceSettings,
        WordTime,
    )
    from callagent.speech.providers import SpeechProvider, section_of
    from callagent.speech.sounds import Sounds
    from callagent.speech.text_normalization import speakable
    from callagent.speech.voice_activity import (
        VoiceActivity,
        open_voice_activity,
    )
    from callagent.speech.voice_cache import CachedVoice

_MODULES = {
    "ApologisingVoice": "call_voice",
    "CachedVoice": "voice_cache",
    "FailoverRecognizer": "failover_recognizer",
    "FailoverVoice": "failover_voice",
    "Recognizer": "protocol",
    "RecognizerSettings": "protocol",
    "RecognizerStream": "protocol",
    "Sounds": "sounds",
    "SpeechChunk": "protocol",
    "SpeechOptions": "factory",
    "SpeechProvider": "providers",
    "TimedVoice": "call_voice",
    "Transcript": "protocol",
    "Voice": "protocol",
    "VoiceActivity": "voice_activity",
    "VoiceNames": "failover_voice",
    "VoiceSettings": "protocol",
    "WatchedRecognizer": "failover_recognizer",
    "WordTime": "protocol",
    "is_known": "languages",
    "open_recognizer": "factory",
    "open_turn_model": "factory",
    "open_voice": "factory",
    "open_voice_activity": "voice_activity",
    "recognizer_languages": "languages",
    "section_of": "providers",
    "speakable": "text_normalization",
    "speaks": "languages",
    "voice_languages": "languages",
}

__all__ = [
    "ApologisingVoice",
    "CachedVoice",
    "FailoverRecognizer",
    "FailoverVoice",
    "Recognizer",
    "RecognizerSettings",
    "RecognizerStream",
    "Sounds",
    "SpeechChunk",
    "SpeechOptions",
    "SpeechProvider",
    "TimedVoice",
    "Transcript",
    "Voice",
    "VoiceActivity",
    "VoiceNames",
    "VoiceSettings",
    "WatchedRecognizer",
    "WordTime",
    "is_known",
    "open_recognizer",
    "open_turn_model",
    "open_voice",
    "open_voice_activity",
    "recognizer_languages",
    "section_of",
    "speakable",
    "speaks",
    "voice_languages",
]

__getattr__ = lazy_exports(__name__, _MODULES)
