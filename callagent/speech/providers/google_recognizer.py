"""Google Cloud speech-to-text: `POST /v1/speech:recognize` with an API key, an utterance at a time.

Its streaming interface is gRPC alone and takes no API key; a whole utterance of telephone audio is one small request.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError
from callagent.speech.protocol import RecognizerSettings
from callagent.speech.providers.audio import encode_ulaw
from callagent.speech.providers.refusal import parse_object
from callagent.speech.providers.settings import SpeechProvider
from callagent.speech.providers.utterance import Understood, UtteranceRecognizer

WHO = "Google"
BASE_URL = "https://speech.googleapis.com"
MODEL = "telephony_short"
ANSWER_LIMIT = 1 << 20
MOST_PHRASES = 500
MOST_ALTERNATIVES = 3


class GoogleRecognizer(UtteranceRecognizer):
    who = WHO

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> Understood:
        request = {
            "config": self._config(settings),
            "audio": {"content": base64.b64encode(encode_ulaw(pcm)).decode()},
        }
        url = self._settings.url(BASE_URL, "/v1/speech:recognize")
        headers = {"X-Goog-Api-Key": self._settings.api_key}
        answer = parse_object(WHO, await self._client.body(url, headers, ANSWER_LIMIT, json=request), ANSWER_LIMIT)
        return _understood(answer)

    def _config(self, settings: RecognizerSettings) -> Mapping[str, Any]:
        config: dict[str, Any] = {
            "encoding": "MULAW",
            "sampleRateHertz": SAMPLE_RATE,
            "languageCode": settings.language,
            "maxAlternatives": MOST_ALTERNATIVES,
            "model": self._settings.model or MODEL,
            "useEnhanced": True,
        }
        if settings.keywords:
            config["speechContexts"] = [{"phrases": list(settings.keywords[:MOST_PHRASES])}]
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


def open_recognizer(settings: SpeechProvider) -> GoogleRecognizer:
    return GoogleRecognizer(settings)
