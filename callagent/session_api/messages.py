"""What the Session API's requests and sockets carry: JSON, errors, and audio in base64.

JSON follows the rules of protocol buffers (https://protobuf.dev/programming-guides/json): names in camel case, of which
snake case is accepted, too; enumerations by name or number; bytes in either alphabet of base64. Audio is LINEAR16,
MULAW or ALAW at 8, 16 or 24 kHz.
"""

from __future__ import annotations

import asyncio
import audioop
import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import WSMessage, WSMsgType, web

from callagent.agents import Say
from callagent.agents.cx import CxProject, InputRefused, NotFound, Speak
from callagent.audio import SAMPLE_RATE, Decimator
from callagent.errors import ProviderError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, parse_json
from callagent.web import Utterances

MAX_REQUEST: Final = 4 * 1024 * 1024
"""Bytes of a request: a minute of audio in any form."""

_STATUSES: Final[Mapping[int, str]] = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""HTTP status -> the API's name for it (google.rpc.Code)."""


async def read_request(request: web.Request) -> bytes:
    """Return the body, up to `MAX_REQUEST`; the bound of other requests is too low for audio. Raises 413."""
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > MAX_REQUEST:
            raise web.HTTPRequestEntityTooLarge(MAX_REQUEST, len(body))
    return bytes(body)


def status_of(error: Exception) -> int:
    """Return the HTTP status by which a client is told of the error."""
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, TimeoutError):
        return 504
    return 503 if isinstance(error, ProviderError) else 400


def message_object(message: WSMessage) -> MutableJsonObject:
    """Return the fields of a socket's message, in camel case. Raises `InputRefused`."""
    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
        raise InputRefused("a message should be JSON")
    try:
        data = parse_json(message.data)
    except ValueError:
        raise InputRefused("the message is not JSON") from None
    if not isinstance(data, Mapping):
        raise InputRefused("the message should be a JSON object")
    return {_camel(key): camel_keys(value) for key, value in data.items()}


def camel_keys(given: JsonValue) -> JsonValue:
    """Return an object with its field names in camel case; anything else unchanged.

    Deeper names need no change: they are the client's own or have one word.
    """
    return camel_object(given) if isinstance(given, Mapping) else given


def camel_object(given: JsonObject) -> MutableJsonObject:
    """Return an object with its field names in camel case."""
    return {_camel(key): value for key, value in given.items()}


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(map(str.capitalize, more))


def refusal(status: int, text: str) -> web.Response:
    """Return the response of a handler for an error."""
    return web.json_response(error_message(status, text), status=status)


def refused(status: int, text: str) -> web.HTTPException:
    """Return the exception that a handler raises for an error."""
    kinds = {400: web.HTTPBadRequest, 404: web.HTTPNotFound}
    return kinds[status](text=dumps(error_message(status, text)), content_type="application/json")


def error_message(status: int, text: str) -> MutableJsonObject:
    """Return an error as the API writes it (https://cloud.google.com/apis/design/errors)."""
    return {"error": {"code": status, "message": text, "status": _STATUSES[status]}}


def dumps(data: object) -> str:
    """Return JSON; what project code puts into an output that is no JSON value becomes its text."""
    return json.dumps(data, ensure_ascii=False, default=str)


ENCODINGS: Final = {"LINEAR16": 2, "MULAW": 1, "ALAW": 1}
"""Encoding -> bytes of one sample."""
_BY_NUMBER: Final = ("AUDIO_ENCODING_UNSPECIFIED", "LINEAR16", "MULAW", "ALAW")
RATES: Final = (8000, 16000, 24000)


@dataclass(frozen=True, slots=True)
class AudioForm:
    """The form of a client's audio in one direction."""

    encoding: str
    rate: int

    @classmethod
    def of(cls, config: JsonObject, name: str) -> AudioForm | None:
        """Return the form that a session's configuration names; None where it names none. Raises `InputRefused`."""
        given = config.get(name)
        return cls.parse(given, name) if given else None

    @classmethod
    def parse(cls, given: JsonValue, name: str) -> AudioForm:
        """Return the form in an `inputAudioConfig` or `outputAudioConfig`. Raises `InputRefused`."""
        if not isinstance(given, Mapping):
            raise InputRefused(f"'{name}' should be an object")
        encoding = given.get("audioEncoding", given.get("audio_encoding"))
        rate = given.get("sampleRateHertz", given.get("sample_rate_hertz"))
        # An enumeration's value may be given by its number.
        if isinstance(encoding, int) and 0 <= encoding < len(_BY_NUMBER):
            encoding = _BY_NUMBER[encoding]
        # A number may also come as text, as protocol buffers write large ones.
        if encoding not in ENCODINGS or str(rate) not in map(str, RATES):
            known = f"audioEncoding {', '.join(ENCODINGS)}; sampleRateHertz {', '.join(map(str, RATES))}"
            raise InputRefused(f"'{name}' is not supported; choose {known}")
        return cls(str(encoding), int(str(rate)))


class AudioDecoder:
    """Converts a client's audio to 16-bit PCM at the call's rate, in pieces of any length."""

    def __init__(self, form: AudioForm) -> None:
        self._form = form
        self._decimator = Decimator(form.rate // SAMPLE_RATE) if form.rate > SAMPLE_RATE else None
        self._odd = b""
        """Half of a 16-bit sample that the last piece ended with."""

    def feed(self, payload: bytes) -> bytes:
        pcm = self._linear(payload)
        return self._decimator.feed(pcm) if self._decimator else pcm

    def _linear(self, payload: bytes) -> bytes:
        match self._form.encoding:
            case "MULAW":
                return audioop.ulaw2lin(payload, 2)
            case "ALAW":
                return audioop.alaw2lin(payload, 2)
        # A piece may end in the middle of a 16-bit sample.
        payload = self._odd + payload
        whole = len(payload) - len(payload) % 2
        self._odd = payload[whole:]
        return payload[:whole]


class AudioEncoder:
    """Converts 16-bit PCM at the call's rate to a client's audio in base64."""

    def __init__(self, form: AudioForm) -> None:
        self._form = form
        self._state: tuple[int, tuple[tuple[int, int], ...]] | None = None
        """The state of `audioop.ratecv` between two pieces."""

    def feed(self, pcm: bytes) -> str:
        if self._form.rate != SAMPLE_RATE:
            pcm, self._state = audioop.ratecv(pcm, 2, 1, SAMPLE_RATE, self._form.rate, self._state)
        match self._form.encoding:
            case "MULAW":
                pcm = audioop.lin2ulaw(pcm, 2)
            case "ALAW":
                pcm = audioop.lin2alaw(pcm, 2)
        return base64.b64encode(pcm).decode("ascii")


def decode_base64(given: JsonValue) -> bytes:
    """Return the bytes of an `audio` field, in either alphabet and with or without padding. Raises `InputRefused`."""
    if not isinstance(given, str):
        raise InputRefused("'audio' should be base64")
    # "-" and "_" are the URL-safe alphabet's (RFC 4648 §5); padding is made anew, as it may be missing.
    text = given.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise InputRefused("'audio' is not base64") from None


class RequestSpeech:
    """Audio of one request: its inputs hold whole utterances, its answers are spoken text by text."""

    def __init__(self, utterances: Utterances, project: CxProject, config: JsonObject) -> None:
        """Raises `InputRefused` for a form of audio that is not supported."""
        self._utterances = utterances
        self._project = project
        self._input_form, self._output_form = (
            AudioForm.of(config, name) for name in ("inputAudioConfig", "outputAudioConfig")
        )

    async def transcribe(self, inputs: Sequence[JsonObject]) -> list[JsonObject]:
        """Return the inputs with text in the place of audio. Raises `InputRefused` and `ProviderError`."""
        found: list[JsonObject] = []
        audio = b""
        for given in inputs:
            # Pieces of audio that follow each other are one utterance.
            if "audio" in given:
                audio += decode_base64(given["audio"])
                continue
            found += await self._recognise(audio)
            audio = b""
            found.append(given)
        return [*found, *await self._recognise(audio)]

    def speaker(self) -> Speak | None:
        """Return what speaks a text of the answer; None for a client that wants no audio."""
        if self._output_form is None:
            return None
        encoder = AudioEncoder(self._output_form)

        async def speak(say: Say) -> str:
            pcm = say.pcm if say.pcm is not None else await self._utterances.speak(self._project, say.text)
            # In a thread: half a minute of audio takes longer than a frame, and calls share this loop.
            return await asyncio.to_thread(encoder.feed, pcm)

        return speak

    async def _recognise(self, audio: bytes) -> list[JsonObject]:
        if not audio:
            return []
        if self._input_form is None:
            raise InputRefused("audio is taken where the configuration has 'inputAudioConfig'")
        pcm = await asyncio.to_thread(AudioDecoder(self._input_form).feed, audio)
        return [{"text": await self._utterances.recognise(pcm)}]
