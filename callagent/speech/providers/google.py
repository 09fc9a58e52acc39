"""Google Cloud text-to-speech: `POST /v1/text:synthesize` with an API key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator
from typing import Any

from callagent.errors import ProviderError
from callagent.speech.protocol import SpeechChunk, VoiceSettings
from callagent.speech.providers.audio import SECOND_OF_ULAW, decode_ulaw, most_audio, strip_wav
from callagent.speech.providers.http import ProviderClient
from callagent.speech.providers.refusal import parse_object
from callagent.speech.providers.settings import SpeechProvider
from callagent.speech.ssml import is_ssml, markup

WHO = "Google"
BASE_URL = "https://texttospeech.googleapis.com"
ANSWER_LIMIT = 4 << 20


class GoogleVoice:
    """An utterance comes in one piece. Without a name the language's default voice speaks."""

    speaks_ssml = True
    most_text = 4500
    """Bytes. A request has at most 5000 with its escapes (Cloud Text-to-Speech, quotas and limits)."""

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        url = self._settings.url(BASE_URL, "/v1/text:synthesize")
        headers = {"X-Goog-Api-Key": self._settings.api_key}
        answer = await self._client.body(url, headers, ANSWER_LIMIT, json=self._request(text, settings))
        content = parse_object(WHO, answer, ANSWER_LIMIT).get("audioContent")
        try:
            audio = strip_wav(WHO, base64.b64decode(content or "", validate=True))
        except (TypeError, binascii.Error, ValueError):
            raise ProviderError(f"{WHO} sent audio that is not base64") from None
        if not audio:
            raise ProviderError(f"{WHO} sent no audio")
        if len(audio) > most_audio(text, SECOND_OF_ULAW):
            raise ProviderError(f"{WHO} sent {len(audio)} bytes of audio")
        yield SpeechChunk(decode_ulaw(audio))

    async def close(self) -> None:
        await self._client.close()

    def _request(self, text: str, settings: VoiceSettings) -> dict[str, Any]:
        voice = {"languageCode": settings.language}
        if name := settings.name or self._settings.voice:
            voice["name"] = name
        audio: dict[str, Any] = {"audioEncoding": "MULAW", "sampleRateHertz": 8000}
        if settings.speed != 1.0:
            audio["speakingRate"] = min(max(settings.speed, 0.25), 2.0)
        said = {"ssml": f"<speak>{markup(text)}</speak>"} if is_ssml(text) else {"text": text}
        return {"input": said, "voice": voice, "audioConfig": audio}
