"""Cartesia: `/tts/websocket` (one socket for all calls, a context for each utterance) and `/stt/websocket`."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at
from callagent.speech import protocol
from callagent.speech.providers import connections
from callagent.speech.providers.recognizer_streams import Message, RecognizedText, SocketRecognizer, TextKind

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

MessageQueue = asyncio.Queue[JsonObject | ProviderError]
"""Messages of one utterance, and the error that ended its socket."""

WHO = "Cartesia"
BASE_URL = "https://api.cartesia.ai"
VERSION = "2026-03-01"
"""The date of the API's version; a later one may change the messages."""
SPEAK_MODEL = "sonic-3.5"
# Voices are named by identifiers only; this is one of Cartesia's own.
VOICE = "a0e99841-438c-4a64-b679-ae501e7d6091"
ENGLISH_MODEL = "ink-2"
OTHER_MODEL = "ink-whisper"
MAX_KEYWORDS, KEYWORD_CHARACTERS = 100, 1200
"""Keywords of a request, and characters of all of them together."""
MAX_QUEUED_MESSAGES = 2000
"""Messages of one utterance that wait to be read by `speak()`; further ones are dropped."""


def _headers(settings: protocol.SpeechProvider) -> dict[str, str]:
    return {"X-API-Key": settings.api_key, "Cartesia-Version": VERSION}


class CartesiaVoice:
    """A voice over one socket for all calls, opened with the first utterance and again after it was closed.

    Each utterance has a context, whose identifier its messages carry; the reader of the socket puts them into the
    context's queue.
    """

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings
        self._socket: ClientConnection | None = None
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._contexts: dict[str, MessageQueue] = {}

    async def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        socket = await self._connect()
        context = uuid.uuid4().hex
        messages: MessageQueue = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._contexts[context] = messages
        done = False
        try:
            await connections.send_message(WHO, socket, json.dumps(self._request(context, text, settings)))
            # The whole utterance has one deadline, which messages that trickle in do not postpone.
            deadline = asyncio.get_running_loop().time() + self._settings.total_timeout
            size, limit = 0, connections.max_audio_bytes(text, connections.ULAW_BYTES_PER_SECOND)
            while not done:
                data = await self._next(messages, deadline)
                done = data.get("type") == "done"
                if (chunk := _chunk(data)) is None:
                    continue
                # The limit counts bytes of μ-law, each of which has become two of PCM.
                size += len(chunk.pcm) // 2
                if size > limit:
                    raise ProviderError(f"{WHO} sent more than {limit} bytes of audio")
                yield chunk
            if not size:
                raise ProviderError(f"{WHO} sent no audio")
        finally:
            del self._contexts[context]
            # After a barge-in or a failure, Cartesia is to synthesise, and charge for, nothing more.
            if not done:
                await self._cancel(socket, context)

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
        if self._socket is not None:
            await self._socket.close()

    def _request(self, context: str, text: str, settings: protocol.VoiceSettings) -> JsonObject:
        request: MutableJsonObject = {
            "context_id": context,
            "model_id": self._settings.model or SPEAK_MODEL,
            "transcript": text,
            "voice": {"mode": "id", "id": settings.name or self._settings.voice or VOICE},
            "language": protocol.primary_language(settings.language),
            "output_format": {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000},
            "add_timestamps": True,
            "continue": False,
        }
        if settings.speed != 1.0:
            request["generation_config"] = {"speed": min(max(settings.speed, 0.6), 1.5)}
        return request

    async def _connect(self) -> ClientConnection:
        # The lock makes two utterances that begin at the same time share one socket.
        async with self._opening:
            if self._socket is None or self._reader is None or self._reader.done():
                url = self._settings.url(BASE_URL, "/tts/websocket", socket=True)
                timeout = self._settings.connect_timeout
                self._socket = await connections.open_socket(WHO, url, _headers(self._settings), timeout)
                self._reader = asyncio.get_running_loop().create_task(self._read(self._socket), name="cartesia voice")
            return self._socket

    async def _read(self, socket: ClientConnection) -> None:
        """Deliver each message to its context until the socket is closed, then the error to all open contexts."""
        try:
            while True:
                data = connections.parse_object(
                    WHO, await connections.receive_message(WHO, socket), connections.MESSAGE_LIMIT
                )
                self._deliver(data.get("context_id"), data)
        except ProviderError as error:
            for context in list(self._contexts):
                self._deliver(context, error)
        finally:
            await socket.close()

    def _deliver(self, context: JsonValue, message: JsonObject | ProviderError) -> None:
        messages = self._contexts.get(context) if isinstance(context, str) else None
        if messages is not None and not messages.full():
            messages.put_nowait(message)

    async def _next(self, messages: MessageQueue, deadline: float) -> JsonObject:
        """Return the next message of an utterance. Raises `ProviderError`."""
        try:
            async with asyncio.timeout_at(deadline):
                data = await messages.get()
        except TimeoutError:
            raise ProviderTimeout(f"{WHO} did not finish in time") from None
        if isinstance(data, ProviderError):
            raise data
        return data

    async def _cancel(self, socket: ClientConnection, context: str) -> None:
        """Ask Cartesia to stop synthesising an utterance; with a closed socket, it has stopped already."""
        try:
            await connections.send_message(WHO, socket, json.dumps({"context_id": context, "cancel": True}))
        except ProviderError:
            pass


def _chunk(data: JsonObject) -> protocol.SpeechChunk | None:
    """Return the audio or the words of a message; None if it has neither. Raises `ProviderError`."""
    match data.get("type"):
        case "chunk":
            return protocol.SpeechChunk(connections.decode_ulaw(connections.decode_audio(WHO, data.get("data"))))
        case "timestamps":
            return protocol.SpeechChunk(b"", _words(object_at(data, "word_timestamps")))
        case "error":
            raise _error(data)
        case _:
            return None


def _words(times: JsonObject) -> tuple[protocol.WordTime, ...]:
    """Return the times of words, which come in three lists side by side."""
    rows = zip(*(list_at(times, name) for name in ("words", "start", "end")), strict=False)
    return tuple(
        protocol.WordTime(str(word), float(start), float(end))
        for word, start, end in rows
        if isinstance(start, int | float) and isinstance(end, int | float)
    )


def _error(data: JsonObject) -> ProviderError:
    reason = str(data.get("message") or data.get("error") or data.get("title") or "an error")[:300]
    status = data.get("status_code")
    text = f"{WHO} reported: {reason}"
    if isinstance(status, int) and 400 <= status < 500:
        return ProviderRefused(text, status)
    return ProviderError(text)


class CartesiaDialect:
    """The messages of Cartesia's recogniser; the answer to `finalize` is the rest of the text, then `flush_done`."""

    who: str = WHO
    joiner: str = ""
    keep_alive: str | None = None

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings

    def address(self, settings: protocol.RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        language = protocol.primary_language(settings.language)
        model = self._settings.model or (ENGLISH_MODEL if language == "en" else OTHER_MODEL)
        query = [("model", model), ("language", language), ("encoding", "pcm_mulaw"), ("sample_rate", "8000")]
        query += [
            ("keyterm", word)
            for word in protocol.accepted_keywords(settings.keywords, MAX_KEYWORDS, max_total=KEYWORD_CHARACTERS)
        ]
        url = self._settings.url(BASE_URL, f"/stt/websocket?{urlencode(query)}", socket=True)
        return url, _headers(self._settings)

    def opening_messages(self, settings: protocol.RecognizerSettings) -> Sequence[Message]:
        return ()

    def audio_message(self, ulaw: bytes) -> Message:
        return ulaw

    def finish_messages(self) -> Sequence[Message]:
        return ("finalize",)

    def closing_messages(self) -> Sequence[Message]:
        return ("done",)

    def receive(self, message: Message) -> RecognizedText | None:
        data = connections.parse_object(WHO, message, connections.MESSAGE_LIMIT)
        match data.get("type"):
            case "transcript" if isinstance(text := data.get("text"), str):
                return RecognizedText(TextKind.COMMITTED if data.get("is_final") else TextKind.PARTIAL, text)
            case "flush_done":
                return RecognizedText(TextKind.COMPLETE)
            case "error":
                raise _error(data)
            case "transcript":
                raise ProviderError(f"{WHO} sent a transcript without text")
            case _:
                return None


def open_recognizer(settings: protocol.SpeechProvider) -> SocketRecognizer:
    return SocketRecognizer(lambda: CartesiaDialect(settings), settings.connect_timeout)


DECLARATIONS = (
    protocol.Declaration(
        "cartesia",
        "Cartesia",
        key="CARTESIA_API_KEY",
        recognizer=open_recognizer,
        voice=CartesiaVoice,
        recognizer_languages=lambda model: frozenset({"en"}) if model == ENGLISH_MODEL else None,
    ),
)
