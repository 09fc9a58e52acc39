"""OpenAI and servers that speak its protocol: `POST /audio/transcriptions`, `POST /audio/speech`."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from callagent.call_info import FRAME_BYTES, SAMPLE_RATE
from callagent.errors import ProviderError
from callagent.speech.protocol import RecognizerSettings, SpeechChunk, Transcript, VoiceSettings
from callagent.speech.providers.audio import Decimator, most_audio
from callagent.speech.providers.http import ProviderClient
from callagent.speech.providers.refusal import parse_object
from callagent.speech.providers.settings import SpeechProvider, primary_language

if TYPE_CHECKING:
    import aiohttp

WHO = "OpenAI"
BASE_URL = "https://api.openai.com/v1"
SPEAK_MODEL = "gpt-4o-mini-tts"
VOICE = "alloy"
LISTEN_MODEL = "gpt-4o-mini-transcribe"
PREROLL_BYTES = 25 * FRAME_BYTES
MOST_AUDIO = 120 * 2 * SAMPLE_RATE
"""Bytes of one utterance; what is said after two minutes is not heard."""
ANSWER_LIMIT = 1 << 20
SPEECH_BYTES_PER_SECOND = 48000
"""`pcm` is 16 bits at 24 kHz; there is no 8 kHz."""


class OpenAiVoice:
    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        body: dict[str, Any] = {
            "model": self._settings.model or SPEAK_MODEL,
            "voice": settings.name or self._settings.voice or VOICE,
            "input": text,
            "response_format": "pcm",
        }
        if settings.speed != 1.0:
            body["speed"] = min(max(settings.speed, 0.25), 4.0)
        url = self._settings.url(BASE_URL, "/audio/speech")
        audio = self._client.audio(url, _headers(self._settings), most_audio(text, SPEECH_BYTES_PER_SECOND), json=body)
        decimator = Decimator()
        try:
            async for part in audio:
                if pcm := decimator.feed(part):
                    yield SpeechChunk(pcm)
        finally:
            await audio.aclose()  # type: ignore[attr-defined]

    async def close(self) -> None:
        await self._client.close()


class OpenAiRecognizer:
    """Transcribes each utterance when it is over; there are no partial transcripts."""

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    async def open(self, on_transcript: Callable[[Transcript], None]) -> OpenAiStream:
        return OpenAiStream(self, on_transcript)

    async def close(self) -> None:
        await self._client.close()

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> str:
        """Raises `ProviderError`."""
        url = self._settings.url(BASE_URL, "/audio/transcriptions")
        answer = await self._client.body(url, _headers(self._settings), ANSWER_LIMIT, data=self._form(pcm, settings))
        text = parse_object(WHO, answer, ANSWER_LIMIT).get("text")
        if not isinstance(text, str):
            raise ProviderError(f"{WHO} sent a transcription without text")
        return text.strip()

    def _form(self, pcm: bytes, settings: RecognizerSettings) -> aiohttp.FormData:
        import aiohttp

        form = aiohttp.FormData()
        form.add_field("file", _wav(pcm), filename="utterance.wav", content_type="audio/wav")
        form.add_field("model", self._settings.model or LISTEN_MODEL)
        form.add_field("language", primary_language(settings.language))
        form.add_field("response_format", "json")
        if prompt := settings.expected or ", ".join(settings.keywords):
            form.add_field("prompt", prompt)
        return form


class OpenAiStream:
    """One call's ear. A stream that failed says so in `failed` and answers nothing more."""

    def __init__(self, recognizer: OpenAiRecognizer, on_transcript: Callable[[Transcript], None]) -> None:
        self._recognizer = recognizer
        self._on_transcript = on_transcript
        self._before = bytearray()
        self._hearing: tuple[bytearray, RecognizerSettings] | None = None
        self._count = 0
        self._asked: set[asyncio.Task[None]] = set()
        self.failed: ProviderError | None = None

    def feed(self, pcm: bytes) -> None:
        if self._hearing is not None:
            audio, _ = self._hearing
            audio += pcm[: MOST_AUDIO - len(audio)]
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
        task = asyncio.get_running_loop().create_task(self._transcribe(self._count, bytes(audio), settings))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def close(self) -> None:
        for task in self._asked:
            task.cancel()

    async def _transcribe(self, number: int, pcm: bytes, settings: RecognizerSettings) -> None:
        try:
            text = await self._recognizer.transcribe(pcm, settings)
        except ProviderError as error:
            self.failed = error
            return
        if self.failed is None:
            self._on_transcript(Transcript(text, True, number))


def _headers(settings: SpeechProvider) -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}


def _wav(pcm: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(SAMPLE_RATE)
        recording.writeframes(pcm)
    return file.getvalue()


def open_recognizer(settings: SpeechProvider) -> OpenAiRecognizer:
    return OpenAiRecognizer(settings)
