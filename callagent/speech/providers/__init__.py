"""Recognisers and voices of speech providers. Each provider is one file, which declares its names in `DECLARATIONS`.

A declaration is all that settings, messages and documentation know of a provider: a new one is a new file here. Reading
the declarations imports every provider's file, also for the configuration, so these import what is heavy (aiohttp,
websockets, the rules of texts) only when a connection is opened or an utterance spoken.
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
    """Return what all providers of this folder declare, by name and in the order of the names."""
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
    """Open the voice declared as `name`; texts that it does not accept whole are given to it in parts."""
    from callagent.speech.voice_wrappers import LongTextVoice

    opener = declarations()[name].voice
    if opener is None:
        raise KeyError(name)
    voice = opener(settings)
    limit = getattr(voice, "max_text_bytes", 0)
    return LongTextVoice(voice, limit) if limit else voice
