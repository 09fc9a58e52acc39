"""A recogniser and a voice that follow a script, for settings with `script:FILE`, for tests and for benchmarks."""

from __future__ import annotations

import asyncio
import math
import re
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from callagent.audio import SAMPLE_RATE
from callagent.errors import ConfigError, ProviderError
from callagent.speech import protocol

PARTIAL_SECONDS = 0.3
"""Time between one partial transcript and the next."""


@dataclass(frozen=True, slots=True)
class ScriptedUtterance:
    """What the recogniser understands of one utterance of the caller."""

    text: str = ""
    delay: float = 0.0
    """Seconds from `finish()` to the final transcript."""
    partials: tuple[str, ...] = ()
    """The first comes 0.3 s after `begin()`, each further one 0.3 s later; none after `finish()`."""
    alternatives: tuple[str, ...] = ()
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class VoiceScript:
    """How the scripted voice behaves."""

    seconds_per_character: float = 0.06
    delay: float = 0.0
    """Seconds before the first chunk."""
    chunk_delay: float = 0.0
    """Seconds before each further chunk; if longer than a chunk's audio, the playout runs dry."""
    failing: tuple[str, ...] = ()
    """Regular expressions: the voice fails on every text in which one of them is found."""
    fails_after: int = 0
    """Words of such a text that are spoken before the voice fails."""


ScriptT = TypeVar("ScriptT", ScriptedUtterance, VoiceScript)


class ScriptedRecognizer:
    """A recogniser that gives each call the same utterances in order, one for each `begin()`, and then empty ones."""

    def __init__(self, script: Sequence[ScriptedUtterance | str]) -> None:
        self._script = tuple(ScriptedUtterance(entry) if isinstance(entry, str) else entry for entry in script)

    @classmethod
    def read(cls, path: Path) -> ScriptedRecognizer:
        """Read a script: a YAML list of texts and of mappings with the fields of `ScriptedUtterance`."""
        entries = _load_yaml(path)
        if not isinstance(entries, list):
            raise ConfigError(f"{path}: a recogniser's script is a list of utterances such as `- hello`")
        return cls([_read_entry(ScriptedUtterance, entry, path) for entry in entries])

    async def open(self, on_transcript: Callable[[protocol.Transcript], None]) -> protocol.RecognizerStream:
        return ScriptedStream(self._script, on_transcript)

    async def close(self) -> None:
        return None


class ScriptedStream:
    """One call's stream; it notes audio and settings that it receives, for tests."""

    def __init__(
        self, script: Sequence[ScriptedUtterance], on_transcript: Callable[[protocol.Transcript], None]
    ) -> None:
        self._script = script
        self._on_transcript = on_transcript
        self._timers = 0
        self._pending: dict[int, asyncio.TimerHandle] = {}
        """Timers by number; each removes its own entry when it has run."""
        self._partials: list[int] = []
        self._utterance = 0
        self.received_bytes = 0
        """Bytes of audio received."""
        self.settings: list[protocol.RecognizerSettings] = []
        """Settings of each utterance, in order."""

    def feed(self, pcm: bytes) -> None:
        self.received_bytes += len(pcm)

    def begin(self, settings: protocol.RecognizerSettings) -> None:
        # Only partial transcripts are cancelled: a final one that is owed still comes, as from a real engine.
        self._cancel_partials()
        self.settings.append(settings)
        self._utterance += 1
        for number, text in enumerate(self._current().partials, 1):
            self._partials.append(
                self._send_later(number * PARTIAL_SECONDS, protocol.Transcript(text, False, self._utterance))
            )

    def finish(self) -> None:
        self._cancel_partials()
        entry = self._current()
        final = protocol.Transcript(entry.text, True, self._utterance, entry.alternatives, entry.confidence)
        self._send_later(entry.delay, final)

    def close(self) -> None:
        for timer in self._pending.values():
            timer.cancel()
        self._pending.clear()

    def _current(self) -> ScriptedUtterance:
        position = self._utterance - 1
        return self._script[position] if 0 <= position < len(self._script) else ScriptedUtterance()

    def _send_later(self, seconds: float, transcript: protocol.Transcript) -> int:
        """Send the transcript by a timer; return the timer's number."""
        self._timers += 1
        self._pending[self._timers] = asyncio.get_running_loop().call_later(
            seconds, self._send, self._timers, transcript
        )
        return self._timers

    def _send(self, timer: int, transcript: protocol.Transcript) -> None:
        del self._pending[timer]
        self._on_transcript(transcript)

    def _cancel_partials(self) -> None:
        for number in self._partials:
            if (timer := self._pending.pop(number, None)) is not None:
                timer.cancel()
        self._partials.clear()


class ScriptedVoice:
    """A voice that plays a burst of sound for each word; the word's length, the speed and the script set how long."""

    def __init__(self, script: VoiceScript | None = None) -> None:
        self._script = script or VoiceScript()
        self.spoken: list[str] = []
        """The text of every call of `speak()`, in order."""
        self.settings: list[protocol.VoiceSettings] = []
        """The settings of every call of `speak()`, in order."""

    @classmethod
    def read(cls, path: Path) -> ScriptedVoice:
        """Read a script: a YAML mapping with the fields of `VoiceScript`."""
        return cls(_read_entry(VoiceScript, _load_yaml(path), path))

    async def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        self.spoken.append(text)
        self.settings.append(settings)
        script = self._script
        fails = any(re.search(pattern, text) for pattern in script.failing)
        start = 0.0
        for number, word in enumerate(text.split()):
            # Even a delay of 0 lets the event loop run between two chunks, so that a barge-in can come there.
            await asyncio.sleep(script.chunk_delay if number else script.delay)
            if fails and number >= script.fails_after:
                raise ProviderError(f"the scripted voice fails on '{text}'")
            samples = self._samples(word, settings.speed)
            end = start + samples / SAMPLE_RATE
            yield protocol.SpeechChunk(_burst(samples), (protocol.WordTime(word, start, end),))
            start = end

    async def close(self) -> None:
        return None

    def seconds(self, text: str, speed: float = 1.0) -> float:
        """Return how many seconds `text` takes to speak."""
        return sum(self._samples(word, speed) for word in text.split()) / SAMPLE_RATE

    def _samples(self, word: str, speed: float) -> int:
        # One character is added for the gap to the next word.
        return round((len(word) + 1) * self._script.seconds_per_character / speed * SAMPLE_RATE)


@lru_cache(maxsize=64)
def _burst(samples: int) -> bytes:
    """Return a buzz of 120 Hz with harmonics, swelling and fading, the last tenth silent; 8 kHz PCM."""
    # Voice activity detection has to take it for a voice: hence harmonics, and a level that rises and falls like a
    # word's.
    sounding = samples * 9 // 10
    wave = array("h", bytes(2 * samples))
    for index in range(sounding):
        swell = math.sin(math.pi * index / sounding)
        phase = 2 * math.pi * 120 * index / SAMPLE_RATE
        wave[index] = round(3000 * swell * sum(math.sin(harmonic * phase) / harmonic for harmonic in (1, 3, 5, 9)))
    return wave.tobytes()


def _load_yaml(path: Path) -> object:
    """Return the content of a YAML file. Raises `ConfigError`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content: object = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    return content


def _read_entry(kind: type[ScriptT], entry: object, path: Path) -> ScriptT:
    """Return a script's entry as a `kind`; a text alone is the value of its first field. Raises `ConfigError`."""
    names = [field.name for field in fields(kind)]
    if isinstance(entry, str):
        entry = {names[0]: entry}
    if not isinstance(entry, Mapping) or (unknown := [key for key in entry if key not in names]):
        what = ", ".join(map(str, unknown)) if isinstance(entry, Mapping) else repr(entry)
        raise ConfigError(f"{path}: '{what}' is not a field of the script; the fields are {', '.join(names)}")
    values = dict(entry)
    values |= {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    return kind(**values)
