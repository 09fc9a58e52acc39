"""OpenAI and servers that speak its protocol: `/audio/transcriptions`, `/audio/speech`, a socket at `/realtime`."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from callagent.audio import Decimator, prepare_decimators
from callagent.errors import ProviderError, ProviderRefused
from callagent.json_values import JsonObject, MutableJsonObject, object_at
from callagent.speech import protocol
from callagent.speech.providers import recognizer_streams as streams
from callagent.speech.providers.connections import ProviderClient, max_audio_bytes, parse_object

if TYPE_CHECKING:
    import aiohttp

WHO = "OpenAI"
BASE_URL = "https://api.openai.com/v1"
SPEAK_MODEL = "gpt-4o-mini-tts"
VOICE = "alloy"
LISTEN_MODEL = "gpt-4o-mini-transcribe"
ANSWER_LIMIT = 1 << 20
"""Bytes."""
SPEECH_BYTES_PER_SECOND = 48000
"""The format `pcm` has 16 bits at 24 kHz; OpenAI offers no 8 kHz."""


class OpenAiVoice:
    """A voice over HTTP."""

    max_text_bytes = 4000
    """Bytes. `input` has at most 4096 characters, 2000 tokens for gpt-4o-mini-tts (API reference, create speech)."""

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        # The resampler is imported now, because that takes longer than a frame and would be heard in a call.
        prepare_decimators()
        self._settings = settings
        self._client = ProviderClient(WHO, settings)

    async def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        body: MutableJsonObject = {
            "model": self._settings.model or SPEAK_MODEL,
            "voice": settings.name or self._settings.voice or VOICE,
            "input": text,
            "response_format": "pcm",
        }
        if settings.speed != 1.0:
            body["speed"] = min(max(settings.speed, 0.25), 4.0)
        url = self._settings.url(BASE_URL, "/audio/speech")
        limit = max_audio_bytes(text, SPEECH_BYTES_PER_SECOND)
        decimator = Decimator()
        async with aclosing(self._client.audio(url, _headers(self._settings), limit, body)) as audio:
            async for part in audio:
                if pcm := decimator.feed(part):
                    yield protocol.SpeechChunk(pcm)

    async def close(self) -> None:
        await self._client.close()


class OpenAiRecognizer(streams.UtteranceRecognizer):
    """A recogniser over HTTP, an utterance at a time; `openai-realtime` transcribes while the caller speaks."""

    who = WHO

    async def transcribe(self, pcm: bytes, settings: protocol.RecognizerSettings) -> streams.UtteranceText:
        url = self._settings.url(BASE_URL, "/audio/transcriptions")
        answer = await self._client.body(url, _headers(self._settings), ANSWER_LIMIT, self._form(pcm, settings))
        text = parse_object(WHO, answer, ANSWER_LIMIT).get("text")
        if not isinstance(text, str):
            raise ProviderError(f"{WHO} sent a transcription without text")
        return streams.UtteranceText(text)

    def _form(self, pcm: bytes, settings: protocol.RecognizerSettings) -> aiohttp.FormData:
        import aiohttp

        form = aiohttp.FormData()
        form.add_field("file", streams.to_wav(pcm), filename="utterance.wav", content_type="audio/wav")
        form.add_field("model", self._settings.model or LISTEN_MODEL)
        form.add_field("language", protocol.primary_language(settings.language))
        form.add_field("response_format", "json")
        if prompt := settings.expected or ", ".join(settings.keywords):
            form.add_field("prompt", prompt)
        return form


def _headers(settings: protocol.SpeechProvider) -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}


REALTIME = "OpenAI realtime"
REALTIME_MODEL = "gpt-4o-mini-transcribe"
MESSAGE_LIMIT = 1 << 18
"""Bytes."""
_EVENT_PREFIX = "conversation.item.input_audio_transcription."
# Error codes that mean the same as an HTTP status: they are raised as `ProviderRefused` with that status.
_REFUSALS = {"invalid_api_key": 401, "insufficient_quota": 429, "rate_limit_exceeded": 429}


class RealtimeDialect:
    """The messages of realtime transcription.

    Each of our commits makes an item, whose transcript comes in pieces and then whole. The transcripts of two items may
    come in any order; they are passed on in the order of speaking.
    """

    who: str = REALTIME
    joiner: str = " "
    keep_alive: str | None = None

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings
        self._items: list[str] = []
        """Committed items whose transcripts are not yet passed on, in the order of speaking."""
        self._done: dict[str, str] = {}
        """Item -> its transcript, which waits for that of an earlier item."""
        self._partial: dict[str, str] = {}
        """Item -> its transcript so far, from pieces."""

    def address(self, settings: protocol.RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        url = self._settings.url(BASE_URL, "/realtime?intent=transcription", socket=True)
        return url, {"Authorization": f"Bearer {self._settings.api_key}"}

    def opening_messages(self, settings: protocol.RecognizerSettings) -> Sequence[streams.Message]:
        return (json.dumps({"type": "session.update", "session": self._session(settings)}),)

    def audio_message(self, ulaw: bytes) -> streams.Message:
        return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(ulaw).decode()})

    def finish_messages(self) -> Sequence[streams.Message]:
        return ('{"type":"input_audio_buffer.commit"}',)

    def closing_messages(self) -> Sequence[streams.Message]:
        return ()

    def receive(self, message: streams.Message) -> streams.RecognizedText | tuple[streams.RecognizedText, ...] | None:
        data = parse_object(REALTIME, message, MESSAGE_LIMIT)
        kind = str(data.get("type"))
        item = str(data.get("item_id"))
        if kind == "error" or kind == _EVENT_PREFIX + "failed":
            raise _realtime_error(object_at(data, "error"))
        if kind == "session.created":
            # The socket is new: transcripts that the previous one owed do not come any more.
            self._items.clear()
            self._done.clear()
            self._partial.clear()
        elif kind == "input_audio_buffer.committed":
            self._items.append(item)
        elif kind == _EVENT_PREFIX + "delta":
            return self._read_piece(item, data.get("delta"))
        elif kind == _EVENT_PREFIX + "completed":
            return self._read_transcript(item, data.get("transcript"))
        return None

    def _read_piece(self, item: str, text: object) -> streams.RecognizedText | None:
        """Add a piece to the transcript of an item; return what is recognised if the item is the oldest."""
        if not isinstance(text, str):
            raise ProviderError(f"{REALTIME} sent a piece of a transcript without text")
        self._partial[item] = self._partial.get(item, "") + text
        # A partial transcript counts for the oldest utterance without a final one, so pieces of a later item wait.
        # Pieces may also come before OpenAI confirms the commit.
        is_oldest = self._items[:1] in ([], [item])
        return streams.RecognizedText(streams.TextKind.PARTIAL, self._partial[item].strip()) if is_oldest else None

    def _read_transcript(self, item: str, text: object) -> tuple[streams.RecognizedText, ...]:
        """Store the transcript of an item; return the transcripts that are next in the order of speaking."""
        if not isinstance(text, str):
            raise ProviderError(f"{REALTIME} sent a transcript without text")
        if item not in self._items:
            # Without the item's place in the order, no utterance can be found for the text.
            raise ProviderError(f"{REALTIME} sent the transcript of an item that was not committed")
        self._partial.pop(item, None)
        self._done[item] = text
        found = []
        while self._items and self._items[0] in self._done:
            found.append(streams.RecognizedText(streams.TextKind.COMPLETE, self._done.pop(self._items.pop(0)).strip()))
        return tuple(found)

    def _session(self, settings: protocol.RecognizerSettings) -> JsonObject:
        transcription = {
            "model": self._settings.model or REALTIME_MODEL,
            "language": protocol.primary_language(settings.language),
        }
        if prompt := settings.expected or ", ".join(settings.keywords):
            transcription["prompt"] = prompt
        # No turn detection: the turn manager decides where an utterance ends.
        audio = {"format": {"type": "audio/pcmu"}, "transcription": transcription, "turn_detection": None}
        return {"type": "transcription", "audio": {"input": audio}}


def _realtime_error(details: JsonObject) -> ProviderError:
    text = f"{REALTIME} reported: {str(details.get('message'))[:300]}"
    status = _REFUSALS.get(str(details.get("code")))
    return ProviderRefused(text, status) if status else ProviderError(text)


def open_realtime_recognizer(settings: protocol.SpeechProvider) -> streams.SocketRecognizer:
    return streams.SocketRecognizer(lambda: RealtimeDialect(settings), settings.connect_timeout)


DECLARATIONS = (
    protocol.Declaration(
        "openai",
        "OpenAI, and servers that speak its protocol; hears an utterance at a time",
        key="OPENAI_API_KEY",
        recognizer=OpenAiRecognizer,
        voice=OpenAiVoice,
    ),
    protocol.Declaration(
        "openai-realtime",
        "OpenAI; hears while the caller speaks",
        key="OPENAI_API_KEY",
        recognizer=open_realtime_recognizer,
    ),
)
