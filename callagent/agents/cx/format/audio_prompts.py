"""Recordings that an app plays: WAV files in the app's folder, whatever storage its addresses name.

`gs://bucket/prompts/hold.wav` is `prompts/hold.wav` or `audio/hold.wav` of the app's folder.
"""

from __future__ import annotations

import io
import wave
from pathlib import PurePosixPath

from callagent.agents.cx.format.files import AppFiles
from callagent.audio import SAMPLE_RATE
from callagent.log import get_logger

log = get_logger(__name__)
MAX_SECONDS = 300.0
"""Length of one recording."""


class Recordings:
    """The recordings of one app; each is converted once."""

    def __init__(self, files: AppFiles) -> None:
        self._files = files
        self._made: dict[str, bytes | None] = {}

    def pcm(self, uri: str) -> bytes | None:
        """Return 16-bit mono samples at the call's rate; None: it cannot be played, and the log says why."""
        if uri not in self._made:
            self._made[uri] = self._read(uri)
        return self._made[uri]

    def _read(self, uri: str) -> bytes | None:
        path = recording_path(self._files, uri)
        if path is None:
            log.warning("recording_missing", uri=uri)
            return None
        try:
            return _samples(self._files.contents[path])
        except (wave.Error, EOFError, ValueError) as error:
            log.warning("recording_not_read", uri=uri, error=str(error))
            return None


def recording_path(files: AppFiles, uri: str) -> str | None:
    """Return the app's file for an address; None: there is none."""
    bare = uri.partition("://")[2].partition("/")[2] if "://" in uri else uri
    path = PurePosixPath(bare)
    candidates = [path.as_posix(), f"audio/{path.name}", path.name]
    return next((each for each in candidates if each in files.contents), None)


def _samples(data: bytes) -> bytes:
    import audioop

    with wave.open(io.BytesIO(data)) as file:
        rate, width, channels, frames = file.getframerate(), file.getsampwidth(), file.getnchannels(), file.getnframes()
        if channels not in (1, 2) or not 8000 <= rate <= 192_000:
            raise ValueError(f"{channels} channels at {rate} Hz; one or two at 8000 Hz and more are played")
        if frames > MAX_SECONDS * rate:
            raise ValueError(f"longer than {MAX_SECONDS:g} s")
        pcm = file.readframes(frames)
    if width == 1:
        # Samples of one byte are unsigned in a WAV file, unlike wider ones.
        pcm = audioop.bias(pcm, 1, -128)
    pcm = audioop.lin2lin(pcm, width, 2)
    if channels == 2:
        pcm = audioop.tomono(pcm, 2, 0.5, 0.5)
    return audioop.ratecv(pcm, 2, 1, rate, SAMPLE_RATE, None)[0] if rate != SAMPLE_RATE else pcm
