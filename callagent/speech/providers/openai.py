"""OpenAI and servers that speak its protocol: `POST /audio/transcriptions`, `POST /audio/speech`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from callagent.audio import Decimator, prepare_decimators
from callagent.errors import ProviderError
from callagent.speech.protocol import RecognizerSettings, SpeechChunk, VoiceSettings
from callagent.speech.providers.audio import most_audio
from callagent.speech.providers.http import ProviderClient
from callagent.speech.providers.refusal import parse_object
from callagent.speech.providers.settings import SpeechProvider, primary_language
from callagent.speech.providers.utterance import Understood, UtteranceRecognizer, wav

if TYPE_CHECKING:
    import aiohttp

WHO = "OpenAI"
BASE_URL = "https://api.openai.com/v1"
SPEAK_MODEL = "gpt-4o-mini-tts"
VOICE = "alloy"
LISTEN_MODEL = "gpt-4o-mini-transcribe"
ANSWER_LIMIT = 1 << 20
SPEECH_BYTES_PER_SECOND = 48000
"""`pcm` is 16 bits at 24 kHz; there is no 8 kHz."""


class OpenAiVoice:
    most_text = 4000
    """Bytes. `input` has at most 4096 characters, 2000 tokens for gpt-4o-mini-tts (API reference, create speech)."""

    def __init__(self, settings: SpeechProvider) -> None:
        prepare_decimators()
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


class OpenAiRecognizer(UtteranceRecognizer):
    """Transcribes each utterance when it is over; `openai-realtime` does so while it is spoken."""

    who = WHO

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> Understood:
        url = self._settings.url(BASE_URL, "/audio/transcriptions")
        answer = await self._client.body(url, _headers(self._settings), ANSWER_LIMIT, data=self._form(pcm, settings))
        text = parse_object(WHO, answer, ANSWER_LIMIT).get("text")
        if not isinstance(text, str):
            raise ProviderError(f"{WHO} sent a transcription without text")
        return Understood(text)

    def _form(self, pcm: bytes, settings: RecognizerSettings) -> aiohttp.FormData:
        import aiohttp

        form = aiohttp.FormData()
        form.add_field("file", wav(pcm), filename="utterance.wav", content_type="audio/wav")
        form.add_field("model", self._settings.model or LISTEN_MODEL)
        form.add_field("language", primary_language(settings.language))
        form.add_field("response_format", "json")
        if prompt := settings.expected or ", ".join(settings.keywords):
            form.add_field("prompt", prompt)
        return form


def _headers(settings: SpeechProvider) -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}


def open_recognizer(settings: SpeechProvider) -> OpenAiRecognizer:
    return OpenAiRecognizer(settings)
