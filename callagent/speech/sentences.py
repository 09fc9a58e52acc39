"""Texts cut at the ends of sentences: where a speaker may pause, and where a voice accepts only short texts."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from callagent.audio import SAMPLE_RATE
from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings
from callagent.speech.ssml import is_ssml, plain

MAX_SENTENCE = 280
"""Characters; 20 s of speech."""
_END = re.compile(r"""[.!?…]+["”’')\]]*\s+(?=\S)""")
_TITLE = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|Nr|vs|approx|[A-Z]))\.$")
_CLAUSE = re.compile(r"[,;:—]\s+")


def sentences(text: str) -> list[str]:
    """The sentences of `text` in order; those that are too long, cut at a clause or a word."""
    found = [sentence for line in text.splitlines() for sentence in _split_line(line.strip())]
    return [part for sentence in found for part in _shorten(sentence)]


def _split_line(line: str) -> list[str]:
    parts, start = [], 0
    for match in _END.finditer(line):
        sentence = line[start : match.end()].rstrip()
        if line[match.end()].islower() or _TITLE.search(sentence):
            continue
        parts.append(sentence)
        start = match.end()
    return [part for part in [*parts, line[start:]] if part]


def _shorten(sentence: str) -> list[str]:
    parts = []
    while len(sentence) > MAX_SENTENCE:
        clauses = [match.end() for match in _CLAUSE.finditer(sentence, 0, MAX_SENTENCE)]
        at = clauses[-1] if clauses else sentence.rfind(" ", 1, MAX_SENTENCE) + 1 or MAX_SENTENCE
        parts.append(sentence[:at].rstrip())
        sentence = sentence[at:].lstrip()
    return [*parts, sentence] if sentence else parts


class LongTextVoice:
    """Any voice that refuses texts of more than `most` bytes of UTF-8; shorter ones go to it as they are."""

    def __init__(self, voice: Voice, most: int) -> None:
        self._voice = voice
        self._most = most
        self.speaks_ssml = bool(getattr(voice, "speaks_ssml", False))

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        """As `Voice`; the times of words count from the start of the whole text."""
        before = 0.0
        for part in parts(text, self._most):
            seconds = 0.0
            # A voice's own type is an iterator, what it gives a generator.
            async with aclosing(cast("AsyncGenerator[SpeechChunk, None]", self._voice.speak(part, settings))) as chunks:
                async for chunk in chunks:
                    seconds += len(chunk.pcm) / (2 * SAMPLE_RATE)
                    yield chunk.later(before)
            before += seconds

    async def close(self) -> None:
        await self._voice.close()


def parts(text: str, most: int) -> list[str]:
    """`text` in as few parts as fit into `most` bytes each. Markup of one too long for one part is put into words."""
    if _size(text) <= most:
        return [text]
    found: list[str] = []
    for sentence in sentences(plain(text) if is_ssml(text) else text):
        for piece in _fitting(sentence, most):
            if found and _size(found[-1]) + 1 + _size(piece) <= most:
                found[-1] = f"{found[-1]} {piece}"
            else:
                found.append(piece)
    return found


def _fitting(sentence: str, most: int) -> list[str]:
    """A sentence of a language without spaces may be longer in bytes than `most`."""
    if _size(sentence) <= most:
        return [sentence]
    middle = len(sentence) // 2
    return [*_fitting(sentence[:middle], most), *_fitting(sentence[middle:], most)]


def _size(text: str) -> int:
    return len(text.encode())
