"""The settings of speech as the engines and providers take them."""

from __future__ import annotations

from pathlib import Path

from callagent.config import SpeechProviderSettings, SpeechSettings
from callagent.speech import FailoverRecognizer, SpeechOptions, SpeechProvider, VoiceNames

HANDING_OVER = 0.5
"""Seconds for the next recogniser to be opened and to hear the utterance."""


def speech_options(settings: SpeechSettings) -> SpeechOptions:
    providers = settings.providers
    names = type(providers).model_fields
    return SpeechOptions(
        whisper_dir=settings.whisper_dir,
        voice_cache=Path(settings.voice_cache) if settings.voice_cache else None,
        providers={name: _provider(getattr(providers, name)) for name in names},
        voice_names=VoiceNames(
            {(like.provider.lower(), like.name): tuple(like.instead.items()) for like in settings.voices}
        ),
    )


def longest_final(settings: SpeechSettings) -> float:
    """Seconds after which no recogniser of the line-up will answer any more."""
    return (FailoverRecognizer.final_seconds + HANDING_OVER) * len(settings.recognizer) - HANDING_OVER


def _provider(settings: SpeechProviderSettings) -> SpeechProvider:
    key = settings.api_key.get_secret_value()
    return SpeechProvider(key, settings.base_url, settings.model, settings.voice)
