"""Recognisers and voices of speech providers, a file each; a file is loaded when its provider is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from callagent.speech.providers.settings import SpeechProvider

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
    "settings_name",
]

RECOGNIZERS = {
    "assemblyai": "assemblyai",
    "azure": "azure_recognizer",
    "cartesia": "cartesia",
    "deepgram": "deepgram",
    "elevenlabs": "elevenlabs",
    "faster_whisper": "wyoming",
    "google": "google_recognizer",
    "openai": "openai",
    "openai-realtime": "openai_realtime",
}
"""Name -> the file with its `open_recognizer`."""
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
    opener = import_module(f"callagent.speech.providers.{RECOGNIZERS[name]}").open_recognizer
    return cast("Callable[[SpeechProvider], Recognizer]", opener)(settings)


def open_provider_voice(name: str, settings: SpeechProvider) -> Voice:
    """`name` is one of `VOICES`. Nothing is sent before the first utterance."""
    file, _, maker = VOICES[name].partition(".")
    module = import_module(f"callagent.speech.providers.{file}")
    voice = cast("Callable[[SpeechProvider], Voice]", getattr(module, maker))(settings)
    if most := getattr(voice, "most_text", 0):
        from callagent.speech.providers.long_text import LongTextVoice

        return LongTextVoice(voice, most)
    return voice
