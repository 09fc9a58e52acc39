"""Azure speech to text: the REST interface for short audio, an utterance at a time. The base URL names the region.

The socket behind Microsoft's SDK is not documented; this is what they publish for up to 60 s of audio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from callagent.errors import ProviderError
from callagent.speech.protocol import RecognizerSettings
from callagent.speech.providers.refusal import parse_object
from callagent.speech.providers.settings import SpeechProvider
from callagent.speech.providers.utterance import WIDE_RATE, Understood, UtteranceRecognizer, wav, wide

WHO = "Azure"
BASE_URL = "https://eastus.stt.speech.microsoft.com"
ANSWER_LIMIT = 1 << 20
_NOTHING = ("NoMatch", "InitialSilenceTimeout", "BabbleTimeout")


class AzureRecognizer(UtteranceRecognizer):
    who = WHO

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> Understood:
        query = urlencode({"language": settings.language, "format": "detailed"})
        url = self._settings.url(BASE_URL, f"/speech/recognition/conversation/cognitiveservices/v1?{query}")
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


def open_recognizer(settings: SpeechProvider) -> AzureRecognizer:
    return AzureRecognizer(settings)
