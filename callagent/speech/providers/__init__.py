"""Recognisers and voices of speech providers, a file each; a file is loaded when its provider is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from callagent.speech.providers.settings import SpeechProvider, primary_language
from callagent.speech.sentences import LongTextVoice

if TYPE_CHECKING:
    from callagent.speech.protocol import Recognizer, Voice

__all__ = [
    "KEYLESS",
    "KEYS",
    "RECOGNIZERS",
    "VOICES",
    "SpeechProvider",
    "open_provider_recognizer",
    "open_provider_voice",
    "primary_language",
    "settings_name",
]

RECOGNIZERS = {
    "assemblyai": "assemblyai",
    "azure": "azure",
    "cartesia": "cartesia",
    "deepgram": "deepgram",
    "elevenlabs": "elevenlabs",
    "faster_whisper": "wyoming",
    "google": "google",
    "openai": "openai",
    "openai-realtime": "openai.open_realtime_recognizer",
}
"""Name -> the file, and its function where that is not `open_recognizer`."""
KEYS = {
    "assemblyai": "ASSEMBLYAI_API_KEY",
    "azure": "AZURE_SPEECH_KEY",
    "cartesia": "CARTESIA_API_KEY",
    "deepgram": "DEEPGRAM_API_KEY",
    "elevenlabs": "ELEVENLABS_API_KEY",
    "google": "GOOGLE_API_KEY",
    "openai": "OPENAI_API_KEY",
    "rime": "RIME_API_KEY",
}
"""Provider -> the usual name of its key, for messages."""
KEYLESS = ("faster_whisper", "piper")
"""Servers of one's own behind the Wyoming protocol: they have an address, `tcp://HOST:PORT`, and no key."""
VOICES = {
    "azure": "azure.AzureVoice",
    "cartesia": "cartesia.CartesiaVoice",
    "deepgram": "deepgram.DeepgramVoice",
    "elevenlabs": "elevenlabs.ElevenLabsVoice",
    "google": "google.GoogleVoice",
    "openai": "openai.OpenAiVoice",
    "piper": "wyoming.WyomingVoice",
    "rime": "rime.RimeVoice",
}
"""Name -> file and class."""


def settings_name(name: str) -> str:
    """The provider whose settings hold for `name`: `openai` for `openai-realtime`."""
    return name.partition("-")[0]


def open_provider_recognizer(name: str, settings: SpeechProvider) -> Recognizer:
    """`name` is one of `RECOGNIZERS`. Nothing is sent before the first utterance."""
    file, _, function = RECOGNIZERS[name].partition(".")
    opener = getattr(import_module(f"callagent.speech.providers.{file}"), function or "open_recognizer")
    return cast("Callable[[SpeechProvider], Recognizer]", opener)(settings)


def open_provider_voice(name: str, settings: SpeechProvider) -> Voice:
    """`name` is one of `VOICES`. Nothing is sent before the first utterance."""
    file, _, maker = VOICES[name].partition(".")
    module = import_module(f"callagent.speech.providers.{file}")
    voice = cast("Callable[[SpeechProvider], Voice]", getattr(module, maker))(settings)
    limit = getattr(voice, "max_text_bytes", 0)
    return LongTextVoice(voice, limit) if limit else voice
