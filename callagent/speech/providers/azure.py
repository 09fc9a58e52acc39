"""Azure speech: `POST /cognitiveservices/v1`. The base URL names the region."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlencode

from callagent.errors import ProviderError
from callagent.speech.protocol import (
    Declaration,
    RecognizerSettings,
    SpeechChunk,
    SpeechProvider,
    VoiceSettings,
    voice_name_languages,
)
from callagent.speech.providers.connections import (
    SECOND_OF_ULAW,
    ProviderClient,
    max_audio_bytes,
    parse_object,
    ulaw_chunks,
)
from callagent.speech.providers.recognizer_streams import WIDE_RATE, Understood, UtteranceRecognizer, wav, wide
from callagent.speech.text_processing import attribute, markup

WHO = "Azure"
VOICE_URL = "https://eastus.tts.speech.microsoft.com"
VOICE = "en-US-JennyNeural"


class AzureVoice:
    speaks_ssml = True
    max_text_bytes = 5000
    """Bytes. An answer has at most ten minutes of audio (Speech service quotas and limits)."""

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        url = self._settings.url(VOICE_URL, "/cognitiveservices/v1")
        headers = {
            "Ocp-Apim-Subscription-Key": self._settings.api_key,
            "Content-Type": "application/ssml+xml",
            "X-Microsoft-OutputFormat": "raw-8khz-8bit-mono-mulaw",
            "User-Agent": "callagent",
        }
        body = self._ssml(text, settings).encode()
        return ulaw_chunks(self._client.audio(url, headers, max_audio_bytes(text, SECOND_OF_ULAW), data=body))

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


RECOGNIZER_URL = "https://eastus.stt.speech.microsoft.com"
ANSWER_LIMIT = 1 << 20
_NOTHING = ("NoMatch", "InitialSilenceTimeout", "BabbleTimeout")


class AzureRecognizer(UtteranceRecognizer):
    who = WHO

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> Understood:
        query = urlencode({"language": settings.language, "format": "detailed"})
        url = self._settings.url(RECOGNIZER_URL, f"/speech/recognition/conversation/cognitiveservices/v1?{query}")
        # One region, two hosts: settings name the voices'.
        url = url.replace(".tts.speech.", ".stt.speech.", 1)
        headers = {
            "Ocp-Apim-Subscription-Key": self._settings.api_key,
            "Content-Type": f"audio/wav; codecs=audio/pcm; samplerate={WIDE_RATE}",
            "Accept": "application/json",
        }
        body = await self._client.body(url, headers, ANSWER_LIMIT, data=wav(wide(pcm), WIDE_RATE))
        return _understood(parse_object(WHO, body, ANSWER_LIMIT))


def _understood(answer: Mapping[str, Any]) -> Understood:
    status = answer.get("RecognitionStatus")
    if status in _NOTHING:
        return Understood("")
    if status != "Success":
        raise ProviderError(f"{WHO} reported {str(status)[:100]}")
    try:
        best, *others = answer["NBest"]
        texts = tuple(str(one["Display"]) for one in others)
        return Understood(str(best["Display"]), float(best.get("Confidence") or 0.0), texts)
    except (KeyError, TypeError, ValueError):
        raise ProviderError(f"{WHO} sent a result without a transcript") from None


DECLARATIONS = (
    Declaration(
        "azure",
        "Azure; hears an utterance at a time",
        key="AZURE_SPEECH_KEY",
        environment={"AZURE_SPEECH_REGION": ("base_url", "https://{}.tts.speech.microsoft.com")},
        recognizer=AzureRecognizer,
        voice=AzureVoice,
        voice_languages=lambda model, voice: voice_name_languages(voice or VOICE),
    ),
)
