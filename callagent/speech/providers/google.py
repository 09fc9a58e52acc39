"""Google Cloud: `POST /v1/text:synthesize` and `POST /v1/speech:recognize`, with an API key."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError
from callagent.json_values import JsonObject, MutableJsonObject, list_at, objects_at, text_at
from callagent.speech import protocol
from callagent.speech.providers import connections
from callagent.speech.providers.recognizer_streams import UtteranceRecognizer, UtteranceText

WHO = "Google"
VOICE_URL = "https://texttospeech.googleapis.com"
VOICE_ANSWER_LIMIT = 4 << 20
"""Bytes."""


class GoogleVoice:
    """A voice over HTTP that answers with the whole utterance; without a name the language's default voice speaks."""

    speaks_ssml = True
    max_text_bytes = 4500
    """Bytes. A request has at most 5000, escapes included (Cloud Text-to-Speech, quotas and limits)."""

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings
        self._client = connections.ProviderClient(WHO, settings)

    async def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        url = self._settings.url(VOICE_URL, "/v1/text:synthesize")
        headers = {"X-Goog-Api-Key": self._settings.api_key}
        answer = await self._client.body(url, headers, VOICE_ANSWER_LIMIT, self._request(text, settings))
        content = connections.parse_object(WHO, answer, VOICE_ANSWER_LIMIT).get("audioContent")
        # Google sends a WAV file even for the encoding MULAW.
        audio = connections.strip_wav(WHO, connections.decode_audio(WHO, content or ""))
        if not audio:
            raise ProviderError(f"{WHO} sent no audio")
        if len(audio) > connections.max_audio_bytes(text, connections.ULAW_BYTES_PER_SECOND):
            raise ProviderError(f"{WHO} sent {len(audio)} bytes of audio")
        yield protocol.SpeechChunk(connections.decode_ulaw(audio))

    async def close(self) -> None:
        await self._client.close()

    def _request(self, text: str, settings: protocol.VoiceSettings) -> JsonObject:
        from callagent.speech.text_processing import is_ssml, ssml_content

        voice = {"languageCode": settings.language}
        if name := settings.name or self._settings.voice:
            voice["name"] = name
        audio: MutableJsonObject = {"audioEncoding": "MULAW", "sampleRateHertz": 8000}
        if settings.speed != 1.0:
            audio["speakingRate"] = min(max(settings.speed, 0.25), 2.0)
        source = {"ssml": f"<speak>{ssml_content(text)}</speak>"} if is_ssml(text) else {"text": text}
        return {"input": source, "voice": voice, "audioConfig": audio}


RECOGNIZER_URL = "https://speech.googleapis.com"
# The model is made for single utterances on the telephone.
LISTEN_MODEL = "telephony_short"
TRANSCRIPT_LIMIT = 1 << 20
"""Bytes."""
MAX_PHRASES = 500
MAX_ALTERNATIVES = 3


class GoogleRecognizer(UtteranceRecognizer):
    """A recogniser over HTTP, an utterance at a time."""

    who = WHO

    async def transcribe(self, pcm: bytes, settings: protocol.RecognizerSettings) -> UtteranceText:
        request = {
            "config": self._config(settings),
            "audio": {"content": base64.b64encode(connections.encode_ulaw(pcm)).decode()},
        }
        url = self._settings.url(RECOGNIZER_URL, "/v1/speech:recognize")
        headers = {"X-Goog-Api-Key": self._settings.api_key}
        answer = connections.parse_object(
            WHO, await self._client.body(url, headers, TRANSCRIPT_LIMIT, request), TRANSCRIPT_LIMIT
        )
        return _read_results(answer)

    def _config(self, settings: protocol.RecognizerSettings) -> JsonObject:
        config: MutableJsonObject = {
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


def _read_results(answer: JsonObject) -> UtteranceText:
    """Join the results, which are consecutive parts of the utterance; there are none if nothing was said."""
    parts = [part for result in _objects(answer, "results") if (part := _objects(result, "alternatives"))]
    if any("transcript" not in one for part in parts for one in part):
        raise ProviderError(f"{WHO} sent results without a transcript")
    text = " ".join(text_at(part[0], "transcript").strip() for part in parts)
    # Each part has its own alternatives: they are alternatives of the utterance only if it has a single part.
    others = tuple(text_at(one, "transcript").strip() for one in parts[0][1:]) if len(parts) == 1 else ()
    confidences = [
        confidence for part in parts if (confidence := connections.confidence_at(WHO, part[0], "confidence"))
    ]
    return UtteranceText(text, sum(confidences) / len(confidences) if confidences else None, others)


def _objects(data: JsonObject, key: str) -> list[JsonObject]:
    """Return the list of objects under `key`; empty if it is missing. Raises `ProviderError` for anything else."""
    found = objects_at(data, key)
    if data.get(key) and (not found or len(found) != len(list_at(data, key))):
        raise ProviderError(f"{WHO} sent `{key}` that is not a list of objects")
    return found


DECLARATIONS = (
    protocol.Declaration(
        "google",
        "Google; hears an utterance at a time",
        key="GOOGLE_API_KEY",
        recognizer=GoogleRecognizer,
        voice=GoogleVoice,
        voice_languages=lambda model, voice: protocol.voice_name_languages(voice),
    ),
)
