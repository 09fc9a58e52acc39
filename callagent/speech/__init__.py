"""Recognisers and voices, by name; several names are a line-up in which the next takes over where one fails.

    recognizer, voice = await asyncio.gather(open_recognizer("local"), open_voice("local"))   # seconds: loads models
    stream = await recognizer.open(on_transcript)
    async for chunk in voice.speak("Hello.", VoiceSettings()): ...

The front door is light: each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.speech.factory import (
        SpeechOptions,
        is_known_voice,
        may_include,
        open_recognizer,
        open_turn_model,
        open_voice,
        recognizer_languages,
        voice_languages,
    )
    from callagent.speech.failover import FailoverRecognizer, FailoverVoice, VoiceNames, WatchedRecognizer
    from callagent.speech.protocol import (
        Recognizer,
        RecognizerSettings,
        RecognizerStream,
        SpeechChunk,
        SpeechProvider,
        Transcript,
        Voice,
        VoiceSettings,
        WordTime,
        section_of,
    )
    from callagent.speech.text_processing import speakable
    from callagent.speech.voice_activity import VoiceActivity, open_voice_activity
    from callagent.speech.voice_wrappers import ApologisingVoice, CachedVoice, TimedVoice

_MODULES = {
    "ApologisingVoice": "voice_wrappers",
    "CachedVoice": "voice_wrappers",
    "FailoverRecognizer": "failover",
    "FailoverVoice": "failover",
    "Recognizer": "protocol",
    "RecognizerSettings": "protocol",
    "RecognizerStream": "protocol",
    "SpeechChunk": "protocol",
    "SpeechOptions": "factory",
    "SpeechProvider": "protocol",
    "TimedVoice": "voice_wrappers",
    "Transcript": "protocol",
    "Voice": "protocol",
    "VoiceActivity": "voice_activity",
    "VoiceNames": "failover",
    "VoiceSettings": "protocol",
    "WatchedRecognizer": "failover",
    "WordTime": "protocol",
    "is_known_voice": "factory",
    "open_recognizer": "factory",
    "open_turn_model": "factory",
    "open_voice": "factory",
    "open_voice_activity": "voice_activity",
    "recognizer_languages": "factory",
    "section_of": "protocol",
    "speakable": "text_processing",
    "may_include": "factory",
    "voice_languages": "factory",
}

__all__ = [
    "ApologisingVoice",
    "CachedVoice",
    "FailoverRecognizer",
    "FailoverVoice",
    "Recognizer",
    "RecognizerSettings",
    "RecognizerStream",
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
    "is_known_voice",
    "may_include",
    "open_recognizer",
    "open_turn_model",
    "open_voice",
    "open_voice_activity",
    "recognizer_languages",
    "section_of",
    "speakable",
    "voice_languages",
]

__getattr__ = lazy_exports(__name__, _MODULES)
