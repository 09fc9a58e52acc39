"""Audio in which every word has a level of its own: a voice makes it, and ears read it through noise and loss."""

from __future__ import annotations

import asyncio
import audioop
import struct
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from callagent.audio import FRAME_BYTES, FRAME_SAMPLES
from callagent.speech import RecognizerSettings, SpeechChunk, Transcript, VoiceSettings, WordTime

WORD_FRAMES = 15
GAP_FRAMES = 3
LEAST_FRAMES = 6
"""Of a word that counts as said."""
LEVELS = sorted(level for (level,) in struct.iter_unpack("<h", audioop.ulaw2lin(bytes(range(256)), 2)) if level > 1900)
"""Those that G.711 leaves as they are: sixty-four."""
FINAL_SECONDS = 0.15
VOICE_SECONDS = 0.1


@dataclass
class Vocabulary:
    """Words in the order in which they were first said; shared by both sides of a call."""

    words: list[str] = field(default_factory=list)

    def level(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return LEVELS[self.words.index(word)]

    def word(self, frame: bytes) -> str | None:
        level = audioop.avg(frame, 2)
        place = min(range(len(LEVELS)), key=lambda place: abs(LEVELS[place] - level))
        near = abs(LEVELS[place] - level) < 0.02 * LEVELS[place]
        return self.words[place] if near and place < len(self.words) else None


@dataclass
class WordVoice:
    vocabulary: Vocabulary

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        await asyncio.sleep(VOICE_SECONDS)
        seconds = (WORD_FRAMES + GAP_FRAMES) * 0.02
        for number, word in enumerate(text.lower().replace("?", " ").replace(".", " ").split()):
            level = self.vocabulary.level(word)
            pcm = array("h", [level] * FRAME_SAMPLES * WORD_FRAMES).tobytes() + bytes(FRAME_BYTES * GAP_FRAMES)
            start = number * seconds
            yield SpeechChunk(pcm, (WordTime(word, start, start + WORD_FRAMES * 0.02),))

    async def close(self) -> None:
        return None


class WordReader:
    """Reads words from frames; a frame or two that were lost do not make two of one."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._current: str | None = None
        self._frames = self._missing = 0
        self.words: list[str] = []

    def feed(self, frame: bytes) -> bool:
        """Whether a word came to its end."""
        word = self._vocabulary.word(frame)
        if word is not None and word == self._current:
            self._frames, self._missing = self._frames + 1, 0
            return False
        if self._current is not None and self._missing < GAP_FRAMES - 1 and word is None:
            self._missing += 1
            return False
        ended = self.end()
        if word is not None:
            self._current, self._frames = word, 1
        return ended

    def end(self) -> bool:
        said = self._current is not None and self._frames >= LEAST_FRAMES
        if said and self._current is not None:
            self.words.append(self._current)
        self._current, self._frames, self._missing = None, 0, 0
        return said


class WordStream:
    def __init__(self, vocabulary: Vocabulary, on_transcript: Callable[[Transcript], None]) -> None:
        self._vocabulary = vocabulary
        self._on_transcript = on_transcript
        self._before: list[bytes] = []
        self._reader: WordReader | None = None
        self._count = 0

    def feed(self, pcm: bytes) -> None:
        self._before = [*self._before[-24:], pcm]
        if self._reader is not None and self._reader.feed(pcm):
            self._on_transcript(Transcript(" ".join(self._reader.words), False, self._count))

    def begin(self, settings: RecognizerSettings) -> None:
        self._count += 1
        self._reader = WordReader(self._vocabulary)
        for frame in self._before:
            self._reader.feed(frame)

    def finish(self) -> None:
        if self._reader is None:
            return
        self._reader.end()
        final = Transcript(" ".join(self._reader.words), True, self._count)
        self._reader = None
        self._before.clear()
        asyncio.get_running_loop().call_later(FINAL_SECONDS, self._on_transcript, final)

    def close(self) -> None:
        return None


@dataclass
class WordEars:
    vocabulary: Vocabulary

    async def open(self, on_transcript: Callable[[Transcript], None]) -> WordStream:
        return WordStream(self.vocabulary, on_transcript)

    async def close(self) -> None:
        return None


class LevelActivity:
    """Voice activity by loudness, above any noise of the scripts."""

    def feed(self, frame: bytes) -> float:
        return 1.0 if audioop.rms(frame, 2) > 600 else 0.0

    def reset(self) -> None:
        return None
