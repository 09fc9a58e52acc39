"""Recognisers and voices of speech providers. Each provider is one file, which declares its names in `DECLARATIONS`.

Settings, messages and documentation know a provider by its declaration only: a new provider is a new file here. Reading
the declarations, as the configuration does, imports every provider's file; so a file imports heavy modules (aiohttp,
websockets, text_processing) only when it opens a connection or speaks.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from callagent.speech.protocol import (
    Declaration,
    Languages,
    Recognizer,
    SpeechProvider,
    Voice,
    primary_language,
    section_of,
)

__all__ = [
    "Declaration",
    "Languages",
    "SpeechProvider",
    "declarations",
    "open_provider_recognizer",
    "open_provider_voice",
    "primary_language",
    "section_of",
]


@cache
def declarations() -> Mapping[str, Declaration]:
    """Return the declarations of all providers of this folder by name, sorted by name."""
    modules = (import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    found: list[Declaration] = [one for module in modules for one in getattr(module, "DECLARATIONS", ())]
    return MappingProxyType({one.name: one for one in sorted(found, key=lambda one: one.name)})


def open_provider_recognizer(name: str, settings: SpeechProvider) -> Recognizer:
    """Open the recogniser declared as `name`. Nothing is sent before the first utterance."""
    opener = declarations()[name].recognizer
    if opener is None:
        raise KeyError(name)
    return opener(settings)


def open_provider_voice(name: str, settings: SpeechProvider) -> Voice:
    """Open the voice declared as `name`; texts that are too long for it are given to it in parts."""
    from callagent.speech.voice_wrappers import LongTextVoice

    opener = declarations()[name].voice
    if opener is None:
        raise KeyError(name)
    voice = opener(settings)
    limit = getattr(voice, "max_text_bytes", 0)
    return LongTextVoice(voice, limit) if limit else voice
