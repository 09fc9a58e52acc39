"""Rime: `POST /v1/rime-tts`, answered with μ-law as it is synthesised."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from callagent.json_values import MutableJsonObject
from callagent.speech.protocol import Declaration, SpeechChunk, SpeechProvider, VoiceSettings, primary_language
from callagent.speech.providers.connections import ULAW_BYTES_PER_SECOND, ProviderClient, max_audio_bytes, ulaw_chunks

WHO = "Rime"
BASE_URL = "https://users.rime.ai"
MODEL = "mistv2"
VOICE = "cove"
# Rime names languages by three letters (ISO 639-2/B), all other providers by two.
_LANGUAGES = {"de": "ger", "en": "eng", "es": "spa", "fr": "fra"}


class RimeVoice:
    """A voice over HTTP."""

    max_text_bytes = 500
    """Bytes. A request to a mist model has at most 500 characters (API reference, text)."""

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        language = primary_language(settings.language)
        body: MutableJsonObject = {
            "text": text,
            "speaker": settings.name or self._settings.voice or VOICE,
            "modelId": self._settings.model or MODEL,
            "lang": _LANGUAGES.get(language, language),
            "samplingRate": ULAW_BYTES_PER_SECOND,
        }
        if settings.speed != 1.0:
            # Rime's factor scales the length of the audio: at 2 the voice is half as fast.
            body["speedAlpha"] = round(1 / settings.speed, 3)
        headers = {"Authorization": f"Bearer {self._settings.api_key}", "Accept": "audio/PCMU"}
        url = self._settings.url(BASE_URL, "/v1/rime-tts")
        return ulaw_chunks(self._client.audio(url, headers, max_audio_bytes(text, ULAW_BYTES_PER_SECOND), body))

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
