"""Azure: voices by `POST /cognitiveservices/v1`, recognisers by `POST /speech/recognition/…`, on a region's hosts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import urlencode

from callagent.errors import ProviderError
from callagent.json_values import JsonObject, objects_at, text_at
from callagent.speech import protocol
from callagent.speech.providers import connections
from callagent.speech.providers.recognizer_streams import (
    WIDEBAND_RATE,
    UtteranceRecognizer,
    UtteranceText,
    to_wav,
    to_wideband,
)

WHO = "Azure"
VOICE_URL = "https://eastus.tts.speech.microsoft.com"
VOICE = "en-US-JennyNeural"


class AzureVoice:
    """A voice over HTTP that reads SSML."""

    speaks_ssml = True
    max_text_bytes = 5000
    """Bytes, spoken in less than ten minutes, the longest answer (Azure: Speech service quotas and limits)."""

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings
        self._client = connections.ProviderClient(WHO, settings)

    def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        url = self._settings.url(VOICE_URL, "/cognitiveservices/v1")
        headers = {
            "Ocp-Apim-Subscription-Key": self._settings.api_key,
            "Content-Type": "application/ssml+xml",
            "X-Microsoft-OutputFormat": "raw-8khz-8bit-mono-mulaw",
            "User-Agent": "callagent",
        }
        body = self._ssml(text, settings).encode()
        return connections.ulaw_chunks(
            self._client.audio(url, headers, connections.max_audio_bytes(text, connections.ULAW_BYTES_PER_SECOND), body)
        )

    async def close(self) -> None:
        await self._client.close()

    def _ssml(self, text: str, settings: protocol.VoiceSettings) -> str:
        """Return the SSML of a request, also for text without markup: only SSML names the language and the voice."""
        from callagent.speech.text_processing import escape_attribute, ssml_content

        voice = settings.name or self._settings.voice or VOICE
        inner = ssml_content(text)
        # The rate is relative to the voice's own: +20% for a speed of 1.2.
        if settings.speed != 1.0:
            inner = f'<prosody rate="{settings.speed - 1:+.0%}">{inner}</prosody>'
        language = escape_attribute(settings.language)
        return (
            f'<speak version="1.0" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="{language}">'
            f'<voice name="{escape_attribute(voice)}">{inner}</voice></speak>'
        )


RECOGNIZER_URL = "https://eastus.stt.speech.microsoft.com"
ANSWER_LIMIT = 1 << 20
"""Bytes."""
# Statuses of an utterance in which Azure recognised no speech.
_NO_SPEECH = ("NoMatch", "InitialSilenceTimeout", "BabbleTimeout")


class AzureRecognizer(UtteranceRecognizer):
    """A recogniser over HTTP, an utterance at a time."""

    who = WHO

    async def transcribe(self, pcm: bytes, settings: protocol.RecognizerSettings) -> UtteranceText:
        query = urlencode({"language": settings.language, "format": "detailed"})
        url = self._settings.url(RECOGNIZER_URL, f"/speech/recognition/conversation/cognitiveservices/v1?{query}")
        # A region has a host for voices and another for recognisers; the settings name the first one.
        url = url.replace(".tts.speech.", ".stt.speech.", 1)
        headers = {
            "Ocp-Apim-Subscription-Key": self._settings.api_key,
            "Content-Type": f"audio/wav; codecs=audio/pcm; samplerate={WIDEBAND_RATE}",
            "Accept": "application/json",
        }
        body = await self._client.body(url, headers, ANSWER_LIMIT, to_wav(to_wideband(pcm), WIDEBAND_RATE))
        return _read_result(connections.parse_object(WHO, body, ANSWER_LIMIT))


def _read_result(answer: JsonObject) -> UtteranceText:
    """Return the text of an answer in the format `detailed`. Raises `ProviderError`."""
    status = answer.get("RecognitionStatus")
    if status in _NO_SPEECH:
        return UtteranceText("")
    if status != "Success":
        raise ProviderError(f"{WHO} reported {str(status)[:100]}")
    results = objects_at(answer, "NBest")
    if not results or any("Display" not in one for one in results):
        raise ProviderError(f"{WHO} sent a result without a transcript")
    best, *others = results
    alternatives = tuple(text_at(one, "Display") for one in others)
    return UtteranceText(text_at(best, "Display"), connections.confidence_at(WHO, best, "Confidence"), alternatives)


DECLARATIONS = (
    protocol.Declaration(
        "azure",
        "Azure; hears an utterance at a time",
        key="AZURE_SPEECH_KEY",
        environment={"AZURE_SPEECH_REGION": ("base_url", "https://{}.tts.speech.microsoft.com")},
        recognizer=AzureRecognizer,
        voice=AzureVoice,
        voice_languages=lambda model, voice: protocol.voice_name_languages(voice or VOICE),
    ),
)
