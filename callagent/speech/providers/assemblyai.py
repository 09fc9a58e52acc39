"""AssemblyAI: universal streaming, a socket at `/v3/ws`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from callagent.errors import ProviderError
from callagent.json_values import objects_at, text_at
from callagent.speech.protocol import Declaration, RecognizerSettings, SpeechProvider, primary_language
from callagent.speech.providers.connections import mean_confidence, parse_object
from callagent.speech.providers.recognizer_streams import Message, RecognizedText, SocketRecognizer, TextKind

WHO = "AssemblyAI"
BASE_URL = "https://streaming.assemblyai.com"
ENGLISH_MODEL = "universal-streaming-english"
OTHER_MODEL = "universal-streaming-multilingual"
MESSAGE_LIMIT = 1 << 18
"""Bytes."""
MAX_KEYWORDS = 100


class AssemblyAiDialect:
    """The messages of universal streaming: a `Turn` has the words so far; `end_of_turn` answers our ForceEndpoint."""

    who: str = WHO
    joiner: str = " "
    keep_alive: str | None = None

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._requested_ends = 0
        """Ends of turns that we have asked for and that have not come yet."""

    def address(self, settings: RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        is_english = primary_language(settings.language) == "en"
        query = {
            "speech_model": self._settings.model or (ENGLISH_MODEL if is_english else OTHER_MODEL),
            "sample_rate": "8000",
            "encoding": "pcm_mulaw",
            "format_turns": "false",
            # The turn manager decides where an utterance ends. At 1.0 the model is never sure enough to end it, and
            # it waits through 10 s of silence.
            "end_of_turn_confidence_threshold": "1.0",
            "max_turn_silence": "10000",
        }
        if settings.keywords:
            query["keyterms_prompt"] = json.dumps(settings.keywords[:MAX_KEYWORDS])
        url = self._settings.url(BASE_URL, f"/v3/ws?{urlencode(query)}", socket=True)
        return url, {"Authorization": self._settings.api_key}

    def opening_messages(self, settings: RecognizerSettings) -> Sequence[Message]:
        return ()

    def audio_message(self, ulaw: bytes) -> Message:
        return ulaw

    def finish_messages(self) -> Sequence[Message]:
        self._requested_ends += 1
        return ('{"type":"ForceEndpoint"}',)

    def closing_messages(self) -> Sequence[Message]:
        return ('{"type":"Terminate"}',)

    def receive(self, message: Message) -> RecognizedText | None:
        data = parse_object(WHO, message, MESSAGE_LIMIT)
        if error := data.get("error"):
            raise ProviderError(f"{WHO} reported: {str(error)[:300]}")
        if data.get("type") != "Turn":
            return None
        if not isinstance(transcript := data.get("transcript"), str):
            raise ProviderError(f"{WHO} sent a turn without a transcript")
        if not data.get("end_of_turn"):
            # `transcript` has only the words that will not change, `words` has all.
            text = " ".join(text_at(word, "text") for word in objects_at(data, "words"))
            return RecognizedText(TextKind.PARTIAL, text or transcript)
        if not self._requested_ends:
            # The model has ended the turn by itself, after `max_turn_silence`; our utterance goes on.
            return RecognizedText(TextKind.COMMITTED, transcript)
        self._requested_ends -= 1
        return RecognizedText(TextKind.COMPLETE, transcript, mean_confidence(data, "words"))


def open_recognizer(settings: SpeechProvider) -> SocketRecognizer:
    return SocketRecognizer(lambda: AssemblyAiDialect(settings), settings.connect_timeout)


_ENGLISH = frozenset({"en"})
_MULTILINGUAL = frozenset({"de", "en", "es", "fr", "it", "pt"})


DECLARATIONS = (
    Declaration(
        "assemblyai",
        "AssemblyAI",
        key="ASSEMBLYAI_API_KEY",
        recognizer=open_recognizer,
        recognizer_languages=lambda model: _ENGLISH if model.endswith("english") else _MULTILINGUAL,
    ),
)
