"""How the test phone speaks: frames queued here, pulled by the wire every 20 ms."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from time import monotonic

from callagent.call_info import FRAME_BYTES, SAMPLE_RATE
from callagent.errors import UserError
from callagent.speech.protocol import Voice, VoiceSettings

_LONGEST_SECONDS = 120


class Mouth:
    """`next_frame` may be called from any one thread; the rest belongs to the loop."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._silent = asyncio.Event()
        self._silent.set()
        self.last_voiced = 0.0
        """Monotonic second at which the last frame that was not silence left."""

    def next_frame(self) -> bytes | None:
        """The media source."""
        try:
            frame = self._frames.popleft()
        except IndexError:
            return None
        if frame.strip(b"\0"):
            self.last_voiced = monotonic()
        if not self._frames:
            self._loop.call_soon_threadsafe(self._silent.set)
        return frame

    async def speak(self, pcm: bytes) -> None:
        """Queue 8 kHz PCM; returns when its last frame has left."""
        if not pcm:
            return
        self._silent.clear()
        padded = pcm + bytes(-len(pcm) % FRAME_BYTES)
        self._frames.extend(padded[at : at + FRAME_BYTES] for at in range(0, len(padded), FRAME_BYTES))
        await self._silent.wait()


async def synthesised(voice: Voice, text: str) -> bytes:
    """`text` as PCM."""
    return b"".join([chunk.pcm async for chunk in voice.speak(text, VoiceSettings())])


def wav_file(path: Path) -> bytes:
    """A WAV file (mono or stereo, any rate and width) as 8 kHz mono PCM. Raises `UserError`."""
    import audioop
    import wave

    try:
        with wave.open(str(path)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            data = file.readframes(min(file.getnframes(), _LONGEST_SECONDS * rate))
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
