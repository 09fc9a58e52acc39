"""Rime: `POST /v1/rime-tts`, μ-law as it is made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from callagent.speech.protocol import Declaration, SpeechChunk, SpeechProvider, VoiceSettings, primary_language
from callagent.speech.providers.connections import SECOND_OF_ULAW, ProviderClient, max_audio_bytes, ulaw_chunks

WHO = "Rime"
BASE_URL = "https://users.rime.ai"
MODEL = "mistv2"
VOICE = "cove"
_LANGUAGES = {"de": "ger", "en": "eng", "es": "spa", "fr": "fra"}


class RimeVoice:
    max_text_bytes = 500
    """Bytes. A request has at most 500 characters for the models mist (API reference, text)."""

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        language = primary_language(settings.language)
        body: dict[str, Any] = {
            "text": text,
            "speaker": settings.name or self._settings.voice or VOICE,
            "modelId": self._settings.model or MODEL,
            "lang": _LANGUAGES.get(language, language),
            "samplingRate": SECOND_OF_ULAW,
        }
        if settings.speed != 1.0:
            # Its factor is of the length, not of the pace.
            body["speedAlpha"] = round(1 / settings.speed, 3)
        headers = {"Authorization": f"Bearer {self._settings.api_key}", "Accept": "audio/PCMU"}
        url = self._settings.url(BASE_URL, "/v1/rime-tts")
        return ulaw_chunks(self._client.audio(url, headers, max_audio_bytes(text, SECOND_OF_ULAW), json=body))

    async def close(self) -> None:
        await self._client.close()


DECLARATIONS = (
    Declaration(
        "rime",
        "Rime",
        key="RIME_API_KEY",
        voice=RimeVoice,
        voice_languages=lambda model, voice: frozenset(_LANGUAGES),
    ),
)
