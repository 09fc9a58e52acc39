"""Recognisers that take an utterance as a whole, when it is over; there are no partial transcripts."""

from __future__ import annotations

import asyncio
import audioop
import io
import wave
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from callagent.audio import FRAME_BYTES, SAMPLE_RATE
from callagent.errors import ProviderError
from callagent.speech.protocol import RecognizerSettings, SpeechProvider, Transcript
from callagent.speech.providers.connections import ProviderClient

PREROLL_BYTES = 25 * FRAME_BYTES
MAX_AUDIO = 58 * 2 * SAMPLE_RATE
"""Bytes of one utterance; what is said after that is not heard. Google and Azure take a minute."""
WIDE_RATE = 16000


@dataclass(frozen=True, slots=True)
class Understood:
    text: str
    confidence: float | None = None
    alternatives: tuple[str, ...] = ()


Transcribe = Callable[[bytes, RecognizerSettings], Awaitable[Understood]]
"""16-bit PCM at 8 kHz in. Raises `ProviderError`."""


class UtteranceStream:
    """One call's ear. A stream that failed says so in `failed` and answers nothing more."""

    def __init__(self, transcribe: Transcribe, on_transcript: Callable[[Transcript], None]) -> None:
        self._transcribe = transcribe
        self._on_transcript = on_transcript
        self._before = bytearray()
        self._hearing: tuple[bytearray, RecognizerSettings] | None = None
        self._count = 0
        self._asked: set[asyncio.Task[None]] = set()
        self.failed: ProviderError | None = None

    def feed(self, pcm: bytes) -> None:
        if self._hearing is not None:
            audio, _ = self._hearing
            audio += pcm[: MAX_AUDIO - len(audio)]
            return
        self._before += pcm
        if len(self._before) > 2 * PREROLL_BYTES:
            del self._before[:-PREROLL_BYTES]

    def begin(self, settings: RecognizerSettings) -> None:
        self._count += 1
        self._hearing = (self._before[-PREROLL_BYTES:], settings)
        self._before.clear()

    def finish(self) -> None:
        if self._hearing is None:
            return
        (audio, settings), self._hearing = self._hearing, None
        task = asyncio.get_running_loop().create_task(self._ask(self._count, bytes(audio), settings))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def close(self) -> None:
        for task in self._asked:
            task.cancel()

    async def _ask(self, number: int, pcm: bytes, settings: RecognizerSettings) -> None:
        try:
            understood = await self._transcribe(pcm, settings)
        except ProviderError as error:
            self.failed = error
            return
        if self.failed is None:
            text = understood.text.strip()
            confidence = understood.confidence if text else None
            self._on_transcript(Transcript(text, True, number, understood.alternatives, confidence))


class UtteranceRecognizer:
    """A recogniser that asks over HTTP, an utterance at a time; each provider says how in `transcribe`."""

    who: ClassVar[str]

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(self.who, settings)

    async def open(self, on_transcript: Callable[[Transcript], None]) -> UtteranceStream:
        return UtteranceStream(self.transcribe, on_transcript)

    async def close(self) -> None:
        await self._client.close()

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> Understood:
        """16-bit PCM at 8 kHz in. Raises `ProviderError`."""
        raise NotImplementedError


def wide(pcm: bytes) -> bytes:
    """8 kHz as 16 kHz, for servers that know nothing narrower."""
    return audioop.ratecv(pcm, 2, 1, SAMPLE_RATE, WIDE_RATE, None)[0]


def wav(pcm: bytes, rate: int = SAMPLE_RATE) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        recording.writeframes(pcm)
    return file.getvalue()
