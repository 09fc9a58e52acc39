"""The settings of speech as the engines and providers take them."""

from __future__ import annotations

from pathlib import Path

from callagent.config import SpeechProviderSettings, SpeechSettings
from callagent.errors import ConfigError, UserError
from callagent.log import get_logger
from callagent.speech import (
    FailoverRecognizer,
    Sounds,
    SpeechOptions,
    SpeechProvider,
    VoiceNames,
    is_known,
    recognizer_languages,
    speaks,
    voice_languages,
)

log = get_logger(__name__)

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


def check_languages(settings: SpeechSettings) -> None:
    """Raises `ConfigError` where the preferred recogniser or voice does not know the language, or one that stands for
    another is of a provider that there is not; tells of spares that do not know it."""
    providers = speech_options(settings).providers
    for role, names, languages_of in (
        ("recognizer", settings.recognizer, recognizer_languages),
        ("voice", settings.voice, voice_languages),
    ):
        for place, name in enumerate(names):
            provider = name.partition("/")[0].partition("-")[0]
            languages = languages_of(name, providers.get(provider, SpeechProvider()))
            if speaks(languages, settings.language):
                continue
            known = ", ".join(sorted(languages or ()))
            if not place:
                raise ConfigError(
                    f"speech.language '{settings.language}' is not one of the {role} '{name}' (it knows {known}); "
                    "choose another, or another language"
                )
            log.warning("language_not_known", role=role, provider=name, language=settings.language, known=known)
    for like in settings.voices:
        if unknown := [name for name in like.instead if not is_known(name)]:
            raise ConfigError(f"speech.voices: '{unknown[0]}' is no provider of voices")


def open_sounds(settings: SpeechSettings) -> Sounds:
    """Takes a fifth of a second. Raises `UserError`."""
    folder = Path(settings.sounds) if settings.sounds else None
    if folder is not None and not folder.is_dir():
        raise UserError(f"speech.sounds '{folder}' is no folder")
    return Sounds(folder)


def longest_final(settings: SpeechSettings) -> float:
    """Seconds after which no recogniser of the line-up will answer any more."""
    return (FailoverRecognizer.final_seconds + HANDING_OVER) * len(settings.recognizer) - HANDING_OVER


def _provider(settings: SpeechProviderSettings) -> SpeechProvider:
    key = settings.api_key.get_secret_value()
    return SpeechProvider(key, settings.base_url, settings.model, settings.voice)
