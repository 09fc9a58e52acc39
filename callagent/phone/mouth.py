"""How the test phone speaks: frames queued here, pulled by the wire every 20 ms."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from time import monotonic

from callagent.audio import FRAME_BYTES, FRAME_SAMPLES, SAMPLE_RATE
from callagent.errors import UserError
from callagent.speech import Voice, VoiceSettings

_MAX_SECONDS = 120
_NOISE_FRAMES = 50
"""Different ones; a second's worth is not heard to repeat."""


class Mouth:
    """`next_frame` may be called from any one thread; the rest belongs to the loop."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or monotonic
        self._noise: list[bytes] = []
        self._dice = Random(1)
        self._frames: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._silent = asyncio.Event()
        self._silent.set()
        self.last_voiced = 0.0
        """Monotonic second at which the last frame that was not silence left."""
        self.first_voiced = 0.0
        """The same of the first one since `speak`; 0: none yet."""

    def next_frame(self) -> bytes | None:
        """The media source."""
        try:
            frame = self._frames.popleft()
        except IndexError:
            return self._dice.choice(self._noise) if self._noise else None
        if frame.strip(b"\0"):
            self.last_voiced = self._clock()
            self.first_voiced = self.first_voiced or self.last_voiced
        if not self._frames:
            self._loop.call_soon_threadsafe(self._silent.set)
        return self._over_noise(frame)

    def make_noise(self, level: float | None) -> None:
        """From now on, `level` decibels below full scale; None: no more."""
        if level is None:
            self._noise = []
            return
        peak = 32767 * 10 ** (level / 20)
        frames = range(_NOISE_FRAMES)
        # One assignment: the pump's thread takes frames meanwhile.
        self._noise = [_clipped(self._dice.gauss(0, peak) for _ in range(FRAME_SAMPLES)) for _ in frames]

    def _over_noise(self, frame: bytes) -> bytes:
        import audioop

        return audioop.add(frame, self._dice.choice(self._noise), 2) if self._noise else frame

    async def speak(self, pcm: bytes) -> None:
        """Queue 8 kHz PCM; returns when its last frame has left."""
        if not pcm:
            return
        self._silent.clear()
        self.first_voiced = 0.0
        padded = pcm + bytes(-len(pcm) % FRAME_BYTES)
        self._frames.extend(padded[at : at + FRAME_BYTES] for at in range(0, len(padded), FRAME_BYTES))
        await self._silent.wait()


def mumble(seconds: float) -> bytes:
    """Something like a voice, in syllables, without a word in it."""
    wave = array("h", bytes(2 * round(seconds * SAMPLE_RATE)))
    for index in range(len(wave)):
        at = index / SAMPLE_RATE
        syllable = max(0.0, math.sin(2 * math.pi * 3 * at)) ** 0.5
        phase = 2 * math.pi * (110 + 15 * math.sin(2 * math.pi * 0.7 * at)) * at
        tone = sum(math.sin(harmonic * phase) / harmonic for harmonic in range(1, 12))
        wave[index] = round(3000 * syllable * tone)
    return wave.tobytes()


def _clipped(samples: Iterable[float]) -> bytes:
    return array("h", (round(max(-32768, min(32767, sample))) for sample in samples)).tobytes()


async def synthesise(voice: Voice, text: str) -> bytes:
    """`text` as PCM."""
    return b"".join([chunk.pcm async for chunk in voice.speak(text, VoiceSettings())])


def read_wav(path: Path) -> bytes:
    """A WAV file (mono or stereo, any rate and width) as 8 kHz mono PCM. Raises `UserError`."""
    import audioop
    import wave

    try:
        with wave.open(str(path)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            data = file.readframes(min(file.getnframes(), _MAX_SECONDS * rate))
        return _telephone_pcm(data, rate, width, channels)
    except OSError as error:
        raise UserError(f"{path}: cannot be played: {error.strerror}") from None
    except (EOFError, ValueError, wave.Error, audioop.error) as error:
        detail = str(error) or "it is cut short"
        raise UserError(f"{path}: cannot be played: {detail}; a PCM WAV file, mono or stereo, is needed") from None


def _telephone_pcm(data: bytes, rate: int, width: int, channels: int) -> bytes:
    """Raises `ValueError` or `audioop.error` for what cannot be converted."""
    import audioop

    if channels > 2:
        raise ValueError(f"it has {channels} channels")
    data = data[: len(data) - len(data) % (width * channels)]
    if width == 1:
        data = audioop.bias(data, 1, -128)
    data = audioop.lin2lin(data, width, 2)
    if channels == 2:
        data = audioop.tomono(data, 2, 0.5, 0.5)
    if rate != SAMPLE_RATE:
        data, _ = audioop.ratecv(data, 2, 1, rate, SAMPLE_RATE, None)
    return data
