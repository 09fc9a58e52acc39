"""OpenAI's realtime transcription: `/realtime?intent=transcription` as a socket, turns ended by us."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from callagent.errors import ProviderError, ProviderRefused
from callagent.speech.protocol import RecognizerSettings
from callagent.speech.providers.refusal import parse_object
from callagent.speech.providers.settings import SpeechProvider, primary_language
from callagent.speech.providers.stream import Heard, HeardKind, Message, SocketRecognizer

WHO = "OpenAI realtime"
BASE_URL = "https://api.openai.com/v1"
MODEL = "gpt-4o-mini-transcribe"
MESSAGE_LIMIT = 1 << 18
_EVENT = "conversation.item.input_audio_transcription."
_REFUSALS = {"invalid_api_key": 401, "insufficient_quota": 429, "rate_limit_exceeded": 429}


class RealtimeDialect:
    """Each commit makes an item; its transcript comes in pieces and then whole, items in any order."""

    who: str = WHO
    joiner: str = " "
    keep_alive: str | None = None

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._items: list[str] = []
        """Committed and not yet transcribed, in order."""
        self._done: dict[str, str] = {}
        """Transcribed before an earlier one."""
        self._partial: dict[str, str] = {}

    def address(self, settings: RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        url = self._settings.url(BASE_URL, "/realtime?intent=transcription", socket=True)
        return url, {"Authorization": f"Bearer {self._settings.api_key}"}

    def hello(self, settings: RecognizerSettings) -> Sequence[Message]:
        return (json.dumps({"type": "session.update", "session": self._session(settings)}),)

    def audio(self, ulaw: bytes) -> Message:
        return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(ulaw).decode()})

    def finish(self) -> Sequence[Message]:
        return ('{"type":"input_audio_buffer.commit"}',)

    def farewell(self) -> Sequence[Message]:
        return ()

    def receive(self, message: Message) -> Heard | tuple[Heard, ...] | None:
        data = parse_object(WHO, message, MESSAGE_LIMIT)
        kind = str(data.get("type"))
        item = str(data.get("item_id"))
        if kind == "error" or kind == _EVENT + "failed":
            raise _error(data.get("error"))
        if kind == "session.created":
            # A new socket: what the one before still owed does not come.
            for table in (self._items, self._done, self._partial):
                table.clear()
        elif kind == "input_audio_buffer.committed":
            self._items.append(item)
        elif kind == _EVENT + "delta":
            return self._delta(item, data.get("delta"))
        elif kind == _EVENT + "completed":
            return self._completed(item, data.get("transcript"))
        return None

    def _delta(self, item: str, text: object) -> Heard | None:
        if not isinstance(text, str):
            raise ProviderError(f"{WHO} sent a piece without text")
        self._partial[item] = self._partial.get(item, "") + text
        oldest = self._items[:1] in ([], [item])
        return Heard(HeardKind.PARTIAL, self._partial[item].strip()) if oldest else None

    def _completed(self, item: str, text: object) -> tuple[Heard, ...]:
        """What is complete in the order of speaking."""
        if not isinstance(text, str):
            raise ProviderError(f"{WHO} sent a transcript without text")
        if item not in self._items:
            raise ProviderError(f"{WHO} transcribed what was not committed")
        self._partial.pop(item, None)
        self._done[item] = text
        found = []
        while self._items and self._items[0] in self._done:
            found.append(Heard(HeardKind.COMPLETE, self._done.pop(self._items.pop(0)).strip()))
        return tuple(found)

    def _session(self, settings: RecognizerSettings) -> dict[str, Any]:
        transcription = {
            "model": self._settings.model or MODEL,
            "language": primary_language(settings.language),
        }
        if prompt := settings.expected or ", ".join(settings.keywords):
            transcription["prompt"] = prompt
        audio = {"format": {"type": "audio/pcmu"}, "transcription": transcription, "turn_detection": None}
        return {"type": "transcription", "audio": {"input": audio}}


def _error(error: object) -> ProviderError:
    details = error if isinstance(error, dict) else {}
    text = f"{WHO} reported: {str(details.get('message'))[:300]}"
    status = _REFUSALS.get(str(details.get("code")))
    return ProviderRefused(text, status) if status else ProviderError(text)


def open_recognizer(settings: SpeechProvider) -> SocketRecognizer:
    return SocketRecognizer(lambda: RealtimeDialect(settings), settings.connect_timeout)
