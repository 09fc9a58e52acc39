"""Google Cloud text-to-speech: `POST /v1/text:synthesize` with an API key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from typing import Any

from callagent.audio import SAMPLE_RATE
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
    decode_ulaw,
    encode_ulaw,
    max_audio_bytes,
    parse_object,
    strip_wav,
)
from callagent.speech.providers.recognizer_streams import Understood, UtteranceRecognizer
from callagent.speech.text_processing import is_ssml, markup

WHO = "Google"
VOICE_URL = "https://texttospeech.googleapis.com"
VOICE_ANSWER_LIMIT = 4 << 20


class GoogleVoice:
    """An utterance comes in one piece. Without a name the language's default voice speaks."""

    speaks_ssml = True
    max_text_bytes = 4500
    """Bytes. A request has at most 5000 with its escapes (Cloud Text-to-Speech, quotas and limits)."""

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        url = self._settings.url(VOICE_URL, "/v1/text:synthesize")
        headers = {"X-Goog-Api-Key": self._settings.api_key}
        answer = await self._client.body(url, headers, VOICE_ANSWER_LIMIT, json=self._request(text, settings))
        content = parse_object(WHO, answer, VOICE_ANSWER_LIMIT).get("audioContent")
        try:
            audio = strip_wav(WHO, base64.b64decode(content or "", validate=True))
        except (TypeError, binascii.Error, ValueError):
            raise ProviderError(f"{WHO} sent audio that is not base64") from None
        if not audio:
            raise ProviderError(f"{WHO} sent no audio")
        if len(audio) > max_audio_bytes(text, SECOND_OF_ULAW):
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


RECOGNIZER_URL = "https://speech.googleapis.com"
LISTEN_MODEL = "telephony_short"
TRANSCRIPT_LIMIT = 1 << 20
MAX_PHRASES = 500
MAX_ALTERNATIVES = 3


class GoogleRecognizer(UtteranceRecognizer):
    who = WHO

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> Understood:
        request = {
            "config": self._config(settings),
            "audio": {"content": base64.b64encode(encode_ulaw(pcm)).decode()},
        }
        url = self._settings.url(RECOGNIZER_URL, "/v1/speech:recognize")
        headers = {"X-Goog-Api-Key": self._settings.api_key}
        answer = parse_object(
            WHO, await self._client.body(url, headers, TRANSCRIPT_LIMIT, json=request), TRANSCRIPT_LIMIT
        )
        return _understood(answer)

    def _config(self, settings: RecognizerSettings) -> Mapping[str, Any]:
        config: dict[str, Any] = {
            "encoding": "MULAW",
            "sampleRateHertz": SAMPLE_RATE,
            "languageCode": settings.language,
            "maxAlternatives": MAX_ALTERNATIVES,
            "model": self._settings.model or LISTEN_MODEL,
            "useEnhanced": True,
        }
        if settings.keywords:
            config["speechContexts"] = [{"phrases": list(settings.keywords[:MAX_PHRASES])}]
        return config


def _understood(answer: Mapping[str, Any]) -> Understood:
    """Results are consecutive parts of the utterance; where nothing was said there are none."""
    try:
        parts = [result["alternatives"] for result in answer.get("results", []) if result.get("alternatives")]
        text = " ".join(str(part[0]["transcript"]).strip() for part in parts)
        others = tuple(str(one["transcript"]).strip() for one in parts[0][1:]) if len(parts) == 1 else ()
        confidences = [float(part[0]["confidence"]) for part in parts if part[0].get("confidence")]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise ProviderError(f"{WHO} sent results without a transcript") from None
    return Understood(text, sum(confidences) / len(confidences) if confidences else None, others)


DECLARATIONS = (
    Declaration(
        "google",
        "Google; hears an utterance at a time",
        key="GOOGLE_API_KEY",
        recognizer=GoogleRecognizer,
        voice=GoogleVoice,
        voice_languages=lambda model, voice: voice_name_languages(voice),
    ),
)
