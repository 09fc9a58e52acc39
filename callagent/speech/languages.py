"""Which languages an engine hears or speaks, where that is known before it is asked."""

from __future__ import annotations

import re

from callagent.speech.providers import VOICES, SpeechProvider, primary_language

ENGLISH = frozenset({"en"})
_FLUX_MULTI = frozenset({"de", "en", "es", "fr", "hi", "it", "ja", "nl", "pt", "ru"})
_ASSEMBLYAI = frozenset({"de", "en", "es", "fr", "it", "pt"})
_RIME = frozenset({"de", "en", "es", "fr"})
_OLD_ELEVENLABS = ("eleven_flash_v2", "eleven_monolingual_v1", "eleven_turbo_v2")

Languages = frozenset[str] | None
"""Primary subtags (`en`); None: many, or it is not known."""


def recognizer_languages(name: str, settings: SpeechProvider) -> Languages:
    """`name` as the settings give it, with or without a model."""
    provider, _, model = name.partition("/")
    model = model or settings.model
    match provider:
        case "local":
            return ENGLISH
        case "deepgram" if model.startswith("flux"):
            return _FLUX_MULTI if model.endswith("multi") else ENGLISH
        case "assemblyai":
            return ENGLISH if model.endswith("english") else _ASSEMBLYAI
        case "cartesia" if model == "ink-2":
            return ENGLISH
    return None


def voice_languages(name: str, settings: SpeechProvider) -> Languages:
    """Likewise; of voices that carry a language in their name, that one."""
    provider, _, model = name.partition("/")
    model, voice = model or settings.model, settings.voice
    match provider:
        case "local":
            return ENGLISH
        case "deepgram":
            # aura-2-thalia-en
            ending = re.search(r"-([a-z]{2})$", voice or model or "aura-2-thalia-en")
            return frozenset({ending[1]}) if ending else None
        case "elevenlabs" if model in _OLD_ELEVENLABS:
            return ENGLISH
        case "rime":
            return _RIME
        case "azure" | "google":
            beginning = re.match(r"([a-z]{2})-[A-Z]{2}-", voice or ("en-US-JennyNeural" if provider == "azure" else ""))
            multilingual = "Multilingual" in voice
            return frozenset({beginning[1]}) if beginning and not multilingual else None
    return None


def speaks(languages: Languages, language: str) -> bool:
    return languages is None or primary_language(language) in languages


def is_known(name: str) -> bool:
    """Whether voices may be listed for `name`."""
    return name == "local" or name in VOICES
