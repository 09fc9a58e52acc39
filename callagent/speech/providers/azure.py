"""Azure speech: `POST /cognitiveservices/v1`. The base URL names the region."""

from __future__ import annotations

from collections.abc import AsyncIterator

from callagent.speech.protocol import SpeechChunk, VoiceSettings
from callagent.speech.providers.audio import SECOND_OF_ULAW, most_audio, ulaw_chunks
from callagent.speech.providers.http import ProviderClient
from callagent.speech.providers.settings import SpeechProvider
from callagent.speech.ssml import attribute, markup

WHO = "Azure"
BASE_URL = "https://eastus.tts.speech.microsoft.com"
VOICE = "en-US-JennyNeural"


class AzureVoice:
    speaks_ssml = True
    most_text = 5000
    """Bytes. An answer has at most ten minutes of audio (Speech service quotas and limits)."""

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        url = self._settings.url(BASE_URL, "/cognitiveservices/v1")
        headers = {
            "Ocp-Apim-Subscription-Key": self._settings.api_key,
            "Content-Type": "application/ssml+xml",
            "X-Microsoft-OutputFormat": "raw-8khz-8bit-mono-mulaw",
            "User-Agent": "callagent",
        }
        body = self._ssml(text, settings).encode()
        return ulaw_chunks(self._client.audio(url, headers, most_audio(text, SECOND_OF_ULAW), data=body))

    async def close(self) -> None:
        await self._client.close()

    def _ssml(self, text: str, settings: VoiceSettings) -> str:
        voice = settings.name or self._settings.voice or VOICE
        inner = markup(text)
        if settings.speed != 1.0:
            inner = f'<prosody rate="{settings.speed - 1:+.0%}">{inner}</prosody>'
        language = attribute(settings.language)
        return (
            f'<speak version="1.0" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="{language}">'
            f'<voice name="{attribute(voice)}">{inner}</voice></speak>'
        )
