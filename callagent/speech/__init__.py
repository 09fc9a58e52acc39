"""Recognisers and voices, by name.

recognizer, voice = await asyncio.gather(open_recognizer("local"), open_voice("local"))   # seconds: loads models
stream = await recognizer.open(on_transcript)
async for chunk in voice.speak("Hello.", VoiceSettings()): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.errors import ConfigError
from callagent.speech.cached_voice import CachedVoice
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

if TYPE_CHECKING:
    from callagent.speech.voice_activity import VoiceActivity

__all__ = [
    "CachedVoice",
    "Recognizer",
    "RecognizerSettings",
    "RecognizerStream",
    "SpeechChunk",
    "SpeechOptions",
    "Transcript",
    "Voice",
    "VoiceSettings",
    "WordTime",
    "open_recognizer",
    "open_voice",
    "open_voice_activity",
]

NAMES = "'local', 'none' or 'script:FILE'"


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """How the embedded engines run; the other ones take none of it."""

    whisper_dir: str = ""
    """A CTranslate2 Whisper model directory for final transcripts; empty: the packaged Whisper base."""
    threads: int = 1
    """Transcriptions at a time; each takes a processor."""
    cache: Path | None = None
    """Where the packaged model is put together; None: `~/.cache/callagent`."""
    voice_cache_bytes: int = 64 << 20
    """Audio of utterances kept to be said again; 0: none."""


async def open_recognizer(name: str, options: SpeechOptions | None = None) -> Recognizer:
    """The recogniser `name`, ready for the first call. Raises `UserError` or `ProviderError`."""
    options = options or SpeechOptions()
    match name.partition(":"):
        case "local", "", "":
            from callagent.speech.local import LocalRecognizer, RecognizerOptions

            settings = RecognizerOptions(options.whisper_dir, options.threads, cache=options.cache)
            recognizer = LocalRecognizer(settings)
            await recognizer.start()
            return recognizer
        case "none", "", "":
            from callagent.speech.absent import NoRecognizer

            return NoRecognizer()
        case "script", ":", file if file:
            from callagent.speech.scripted import ScriptedRecognizer

            return ScriptedRecognizer.read(Path(file))
    raise ConfigError(f"the recogniser '{name}' is not known: {NAMES}")


async def open_voice(name: str, options: SpeechOptions | None = None) -> CachedVoice:
    """The voice `name`, ready for the first call, behind a cache. Raises `UserError` or `ProviderError`."""
    options = options or SpeechOptions()
    return CachedVoice(await _open_voice(name), options.voice_cache_bytes)


async def _open_voice(name: str) -> Voice:
    match name.partition(":"):
        case "local", "", "":
            from callagent.speech.local import LocalVoice

            voice = LocalVoice()
            await voice.start()
            return voice
        case "none", "", "":
            from callagent.speech.absent import NoVoice

            return NoVoice()
        case "script", ":", file if file:
            from callagent.speech.scripted import ScriptedVoice

            return ScriptedVoice.read(Path(file))
    raise ConfigError(f"the voice '{name}' is not known: {NAMES}")


def open_voice_activity() -> VoiceActivity:
    """A voice-activity detector for one call, the best that is installed. The first takes 0.1 s: open one at start."""
    from callagent.speech import voice_activity

    return voice_activity.open_voice_activity()
