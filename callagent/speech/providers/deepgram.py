"""Deepgram: `/v1/listen` (Nova) and `/v2/listen` (Flux) as sockets, `POST /v1/speak` (Aura)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from urllib.parse import urlencode

from callagent.errors import ProviderError
from callagent.json_values import object_at, objects_at, text_at
from callagent.speech import protocol
from callagent.speech.providers import connections
from callagent.speech.providers.recognizer_streams import Message, RecognizedText, SocketRecognizer, TextKind

WHO = "Deepgram"
BASE_URL = "https://api.deepgram.com"
LISTEN_MODEL = "nova-3"
SPEAK_MODEL = "aura-2-thalia-en"
MESSAGE_LIMIT = 1 << 18
"""Bytes."""
MAX_KEYWORDS = 50


class DeepgramDialect:
    """The messages of Nova: `is_final` marks a part that stays, `from_finalize` the answer to our Finalize."""

    who: str = WHO
    joiner: str = " "
    keep_alive: str | None = '{"type":"KeepAlive"}'

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings

    def address(self, settings: protocol.RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        model = self._settings.model or LISTEN_MODEL
        query = [
            ("model", model),
            ("language", settings.language),
            ("encoding", "mulaw"),
            ("sample_rate", "8000"),
            ("channels", "1"),
            ("interim_results", "true"),
            ("smart_format", "true"),
            # The turn manager decides where an utterance ends.
            ("endpointing", "false"),
        ]
        # Nova 3 has key terms in place of the weighted keywords of earlier models.
        name = "keyterm" if model.startswith("nova-3") else "keywords"
        query += [(name, word) for word in settings.keywords[:MAX_KEYWORDS]]
        url = self._settings.url(BASE_URL, f"/v1/listen?{urlencode(query)}", socket=True)
        return url, {"Authorization": f"Token {self._settings.api_key}"}

    def opening_messages(self, settings: protocol.RecognizerSettings) -> Sequence[Message]:
        return ()

    def audio_message(self, ulaw: bytes) -> Message:
        return ulaw

    def finish_messages(self) -> Sequence[Message]:
        return ('{"type":"Finalize"}',)

    def closing_messages(self) -> Sequence[Message]:
        return ('{"type":"CloseStream"}',)

    def receive(self, message: Message) -> RecognizedText | None:
        data = connections.parse_object(WHO, message, MESSAGE_LIMIT)
        if data.get("type") == "Error":
            raise ProviderError(f"{WHO} reported: {data.get('description') or data.get('message')}")
        if data.get("type") != "Results":
            return None
        alternatives = objects_at(object_at(data, "channel"), "alternatives")
        if not alternatives or "transcript" not in alternatives[0]:
            raise ProviderError(f"{WHO} sent results without a transcript")
        text = text_at(alternatives[0], "transcript")
        confidence = connections.confidence_at(WHO, alternatives[0], "confidence")
        kind = TextKind.COMMITTED if data.get("is_final") else TextKind.PARTIAL
        return RecognizedText(TextKind.COMPLETE if data.get("from_finalize") else kind, text, confidence)


def open_recognizer(settings: protocol.SpeechProvider) -> SocketRecognizer:
    """Open the recogniser; the models `flux-…` have a dialect of their own."""
    if settings.model.startswith("flux"):
        return SocketRecognizer(lambda: FluxDialect(settings), settings.connect_timeout)
    return SocketRecognizer(lambda: DeepgramDialect(settings), settings.connect_timeout)


class DeepgramVoice:
    """A voice over HTTP. Each voice is a model (`aura-2-thalia-en`); the speed cannot be chosen."""

    max_text_bytes = 1000
    """Bytes. Aura refuses more than 2000 characters, and reads more than 1000 badly (Text-to-Speech, limits)."""

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings
        self._client = connections.ProviderClient(WHO, settings)

    def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        model = settings.name or self._settings.voice or SPEAK_MODEL
        query = urlencode({"model": model, "encoding": "mulaw", "sample_rate": "8000", "container": "none"})
        url = self._settings.url(BASE_URL, f"/v1/speak?{query}")
        headers = {"Authorization": f"Token {self._settings.api_key}"}
        limit = connections.max_audio_bytes(text, connections.ULAW_BYTES_PER_SECOND)
        return connections.ulaw_chunks(self._client.audio(url, headers, limit, {"text": text}))

    async def close(self) -> None:
        await self._client.close()


FLUX = "Deepgram Flux"
MAX_TURN_MS = 60000
"""The longest turn that Flux allows."""
SILENCE = b"\xff" * 2400
"""0.3 s of μ-law silence, sent after the utterance so that Flux transcribes its last word before the end."""


class FluxDialect:
    """The messages of Flux: each TurnInfo has the whole turn so far; the last one has the event `EndOfTurn`."""

    who: str = FLUX
    joiner: str = " "
    keep_alive: str | None = None

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings
        self._requested_ends = 0
        """Ends of turns that we have asked for and that have not come yet."""

    def address(self, settings: protocol.RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        query = [
            ("model", self._settings.model),
            ("encoding", "mulaw"),
            ("sample_rate", "8000"),
            # At 1.0 the model is never sure enough: turns end by our ForceEndTurn, or after MAX_TURN_MS.
            ("eot_threshold", "1.0"),
            ("eot_timeout_ms", str(MAX_TURN_MS)),
        ]
        if self._settings.model.endswith("multi"):
            query.append(("language_hint", protocol.primary_language(settings.language)))
        query += [("keyterm", word) for word in settings.keywords[:MAX_KEYWORDS]]
        url = self._settings.url(BASE_URL, f"/v2/listen?{urlencode(query)}", socket=True)
        return url, {"Authorization": f"Token {self._settings.api_key}"}

    def opening_messages(self, settings: protocol.RecognizerSettings) -> Sequence[Message]:
        return ()

    def audio_message(self, ulaw: bytes) -> Message:
        return ulaw

    def finish_messages(self) -> Sequence[Message]:
        # Without the silence, Flux would end the turn before its last word, because it transcribes with a delay.
        self._requested_ends += 1
        return (SILENCE, '{"type":"ForceEndTurn"}')

    def closing_messages(self) -> Sequence[Message]:
        return ('{"type":"CloseStream"}',)

    def receive(self, message: Message) -> RecognizedText | None:
        data = connections.parse_object(FLUX, message, MESSAGE_LIMIT)
        if data.get("type") in ("Error", "FatalError"):
            raise ProviderError(f"{FLUX} reported: {data.get('description') or data.get('message')}")
        if data.get("type") != "TurnInfo":
            return None
        if not isinstance(text := data.get("transcript"), str):
            raise ProviderError(f"{FLUX} sent a turn without a transcript")
        if data.get("event") != "EndOfTurn":
            return RecognizedText(TextKind.PARTIAL, text)
        if not self._requested_ends:
            # Flux has ended the turn after MAX_TURN_MS; our utterance goes on.
            return RecognizedText(TextKind.COMMITTED, text)
        self._requested_ends -= 1
        return RecognizedText(TextKind.COMPLETE, text, connections.mean_confidence(data, "words"))


_FLUX_MULTILINGUAL = frozenset({"de", "en", "es", "fr", "hi", "it", "ja", "nl", "pt", "ru"})


def _recognizer_languages(model: str) -> protocol.Languages:
    if not model.startswith("flux"):
        return None
    return _FLUX_MULTILINGUAL if model.endswith("multi") else frozenset({"en"})


def _voice_languages(model: str, voice: str) -> protocol.Languages:
    """Return the language that the name of a voice ends with: `aura-2-thalia-en`."""
    ending = re.search(r"-([a-z]{2})$", voice or model or SPEAK_MODEL)
    return frozenset({ending[1]}) if ending else None


DECLARATIONS = (
    protocol.Declaration(
        "deepgram",
        "Deepgram; Nova, and Flux as `deepgram/flux-general-en`",
        key="DEEPGRAM_API_KEY",
        recognizer=open_recognizer,
        voice=DeepgramVoice,
        recognizer_languages=_recognizer_languages,
        voice_languages=_voice_languages,
    ),
)
