"""Recognisers and voices of speech providers, a file each; a file is loaded when its provider is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from callagent.speech.providers.settings import SpeechProvider

if TYPE_CHECKING:
    from callagent.speech.protocol import Recognizer, Voice

__all__ = ["KEYS", "RECOGNIZERS", "VOICES", "SpeechProvider", "open_provider_recognizer", "open_provider_voice"]

RECOGNIZERS = ("assemblyai", "cartesia", "deepgram", "elevenlabs", "openai")
KEYS = {
    "assemblyai": "ASSEMBLYAI_API_KEY",
    "azure": "AZURE_SPEECH_KEY",
    "cartesia": "CARTESIA_API_KEY",
    "deepgram": "DEEPGRAM_API_KEY",
    "elevenlabs": "ELEVENLABS_API_KEY",
    "google": "GOOGLE_API_KEY",
    "openai": "OPENAI_API_KEY",
}
"""Provider -> the usual name of its key, for messages."""
VOICES = {
    "azure": "AzureVoice",
    "cartesia": "CartesiaVoice",
    "deepgram": "DeepgramVoice",
    "elevenlabs": "ElevenLabsVoice",
    "google": "GoogleVoice",
    "openai": "OpenAiVoice",
}
"""Provider -> the class in the file of that name."""


def open_provider_recognizer(name: str, settings: SpeechProvider) -> Recognizer:
    """`name` is one of `RECOGNIZERS`. Nothing is sent before the first utterance."""
    opener = import_module(f"callagent.speech.providers.{name}").open_recognizer
    return cast("Callable[[SpeechProvider], Recognizer]", opener)(settings)


def open_provider_voice(name: str, settings: SpeechProvider) -> Voice:
    """`name` is one of `VOICES`. Nothing is sent before the first utterance."""
    maker = getattr(import_module(f"callagent.speech.providers.{name}"), VOICES[name])
    return cast("Callable[[SpeechProvider], Voice]", maker)(settings)
