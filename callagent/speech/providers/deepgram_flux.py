"""Deepgram Flux: `GET /v2/listen` as a socket. Where the caller's turn ends is ours to say (ForceEndTurn)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from callagent.errors import ProviderError
from callagent.speech.protocol import RecognizerSettings
from callagent.speech.providers.refusal import parse_object
from callagent.speech.providers.settings import SpeechProvider, primary_language
from callagent.speech.providers.stream import Heard, HeardKind, Message

WHO = "Deepgram Flux"
BASE_URL = "https://api.deepgram.com"
MESSAGE_LIMIT = 1 << 18
MOST_KEYWORDS = 50
LONGEST_TURN_MS = 60000
SILENCE = b"\xff" * 2400
"""0.3 s after the last word, so that all of it is transcribed when the end is asked for."""


class FluxDialect:
    """TurnInfo tells the turn as far as it is; the one with `EndOfTurn` is its last."""

    who: str = WHO
    joiner: str = " "
    keep_alive: str | None = None

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._forced = 0

    def address(self, settings: RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        query = [
            ("model", self._settings.model),
            ("encoding", "mulaw"),
            ("sample_rate", "8000"),
            # 1.0: turns end by ForceEndTurn alone.
            ("eot_threshold", "1.0"),
            ("eot_timeout_ms", str(LONGEST_TURN_MS)),
        ]
        if self._settings.model.endswith("multi"):
            query.append(("language_hint", primary_language(settings.language)))
        query += [("keyterm", word) for word in settings.keywords[:MOST_KEYWORDS]]
        url = self._settings.url(BASE_URL, f"/v2/listen?{urlencode(query)}", socket=True)
        return url, {"Authorization": f"Token {self._settings.api_key}"}

    def hello(self, settings: RecognizerSettings) -> Sequence[Message]:
        return ()

    def audio(self, ulaw: bytes) -> Message:
        return ulaw

    def finish(self) -> Sequence[Message]:
        self._forced += 1
        return (SILENCE, '{"type":"ForceEndTurn"}')

    def farewell(self) -> Sequence[Message]:
        return ('{"type":"CloseStream"}',)

    def receive(self, message: Message) -> Heard | None:
        data = parse_object(WHO, message, MESSAGE_LIMIT)
        if data.get("type") in ("Error", "FatalError"):
            raise ProviderError(f"{WHO} reported: {data.get('description') or data.get('message')}")
        if data.get("type") != "TurnInfo":
            return None
        if not isinstance(text := data.get("transcript"), str):
            raise ProviderError(f"{WHO} sent a turn without a transcript")
        if data.get("event") != "EndOfTurn":
            return Heard(HeardKind.PARTIAL, text)
        if not self._forced:
            # The longest turn it allows is over, ours is not.
            return Heard(HeardKind.COMMITTED, text)
        self._forced -= 1
        return Heard(HeardKind.COMPLETE, text, _confidence(data.get("words")))


def _confidence(words: object) -> float | None:
    """Mean of the words'."""
    found = [word.get("confidence") for word in words if isinstance(word, dict)] if isinstance(words, list) else []
    numbers = [float(one) for one in found if isinstance(one, int | float)]
    return sum(numbers) / len(numbers) if numbers else None
