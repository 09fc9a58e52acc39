"""Utterances on disk, by a digest of voice and text: what was synthesised once is there after a restart as well."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from callagent.errors import UserError
from callagent.speech.protocol import SpeechChunk, VoiceSettings, WordTime

SUFFIX = ".speech"
PRUNE_EVERY = 100
"""Files written, between one look at the folder's size and the next."""
HEADER_LIMIT = 1 << 20


class VoiceStore:
    """One folder, for any voices. Every method reads or writes the disk: call it in a thread."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit`: bytes of all files, of which the ones used longest ago are removed. Raises `UserError`."""
        self._folder = folder
        self._limit = limit
        self._written = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"speech.voice_cache '{folder}' cannot be made: {error.strerror}") from None
        self.prune()

    def read(self, voice: str, text: str, settings: VoiceSettings) -> tuple[SpeechChunk, ...]:
        """Empty: it is not there, or not readable."""
        path = self._path(voice, text, settings)
        try:
            data = path.read_bytes()
            # When it was used last decides who has to go.
            os.utime(path)
        except OSError:
            return ()
        try:
            return _parse(data)
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            return ()

    def write(self, voice: str, text: str, settings: VoiceSettings, chunks: Sequence[SpeechChunk]) -> None:
        """Keep an utterance; a disk that refuses costs the cache, not the call."""
        try:
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(_format(chunks))
            os.replace(name, self._path(voice, text, settings))
        except OSError:
            return
        self._written += 1
        if self._written % PRUNE_EVERY == 0:
            self.prune()

    def prune(self) -> None:
        """Remove what is beyond the limit."""
        found = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((status.st_mtime, status.st_size, path))
        size = sum(entry[1] for entry in found)
        for _, bytes_, path in sorted(found, key=lambda entry: entry[0]):
            if size <= self._limit:
                break
            path.unlink(missing_ok=True)
            size -= bytes_

    def _path(self, voice: str, text: str, settings: VoiceSettings) -> Path:
        # A digest, not the text: what is said to callers does not stand in file names.
        key = json.dumps([voice, settings.language, settings.name, settings.speed, text])
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}{SUFFIX}"


def _format(chunks: Sequence[SpeechChunk]) -> bytes:
    """A line of JSON with sizes and words, then the samples."""
    words = [[[word.word, word.start, word.end] for word in chunk.words] for chunk in chunks]
    header = {"sizes": [len(chunk.pcm) for chunk in chunks], "words": words}
    return json.dumps(header).encode() + b"\n" + b"".join(chunk.pcm for chunk in chunks)


def _parse(data: bytes) -> tuple[SpeechChunk, ...]:
    """Raises `ValueError`, `KeyError` or `TypeError` for what was not written by `_format`, or not to its end."""
    header, _, pcm = data.partition(b"\n")
    if len(header) > HEADER_LIMIT:
        raise ValueError("the header is not valid")
    found = json.loads(header)
    if sum(found["sizes"]) != len(pcm):
        raise ValueError("the samples are not complete")
    chunks, at = [], 0
    for size, words in zip(found["sizes"], found["words"], strict=True):
        times = tuple(WordTime(str(word), float(start), float(end)) for word, start, end in words)
        chunks.append(SpeechChunk(pcm[at : at + size], times))
        at += size
    return tuple(chunks)
