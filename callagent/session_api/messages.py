"""Messages of the Session API: their JSON, errors, and audio in base64.

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
"""Bytes of a request, enough for a minute of audio in any format."""

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
    """Return the HTTP status that reports the error to a client."""
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


def camel_keys(value: JsonValue) -> JsonValue:
    """Return an object with its field names in camel case; anything else unchanged.

    Deeper names need no change: they are the client's own or have one word.
    """
    return camel_object(value) if isinstance(value, Mapping) else value


def camel_object(data: JsonObject) -> MutableJsonObject:
    """Return an object with its field names in camel case."""
    return {_camel(key): value for key, value in data.items()}


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(map(str.capitalize, more))


def error_response(status: int, text: str) -> web.Response:
    """Return the response with which a handler answers an error."""
    return web.json_response(error_message(status, text), status=status)


def http_error(status: int, text: str) -> web.HTTPException:
    """Return the exception that a handler raises for an error."""
    kinds = {400: web.HTTPBadRequest, 404: web.HTTPNotFound}
    return kinds[status](text=dumps(error_message(status, text)), content_type="application/json")


def error_message(status: int, text: str) -> MutableJsonObject:
    """Return an error as the API writes it (https://cloud.google.com/apis/design/errors)."""
    return {"error": {"code": status, "message": text, "status": _STATUSES[status]}}


def dumps(data: object) -> str:
    """Return the data as JSON. Values of project code that JSON does not have are written as their `str`."""
    return json.dumps(data, ensure_ascii=False, default=str)


ENCODINGS: Final = {"LINEAR16": 2, "MULAW": 1, "ALAW": 1}
"""Encoding -> bytes of one sample."""
_ENCODING_NUMBERS: Final = ("AUDIO_ENCODING_UNSPECIFIED", "LINEAR16", "MULAW", "ALAW")
"""The encodings in the order of their numbers in the API's enumeration."""
RATES: Final = (8000, 16000, 24000)
"""Supported sample rates in Hz."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """Encoding and sample rate (Hz) of a client's audio in one direction."""

    encoding: str
    rate: int

    @classmethod
    def of(cls, config: JsonObject, name: str) -> AudioFormat | None:
        """Return the format that a configuration has under `name`, None without one. Raises `InputRefused`."""
        value = config.get(name)
        return cls.parse(value, name) if value else None

    @classmethod
    def parse(cls, value: JsonValue, name: str) -> AudioFormat:
        """Return the format in an `inputAudioConfig` or `outputAudioConfig`. Raises `InputRefused`."""
        if not isinstance(value, Mapping):
            raise InputRefused(f"'{name}' should be an object")
        encoding = value.get("audioEncoding", value.get("audio_encoding"))
        rate = value.get("sampleRateHertz", value.get("sample_rate_hertz"))
        # An enumeration's value may be given by its number.
        if isinstance(encoding, int) and 0 <= encoding < len(_ENCODING_NUMBERS):
            encoding = _ENCODING_NUMBERS[encoding]
        # A number may also come as text, as protocol buffers write large ones.
        if encoding not in ENCODINGS or str(rate) not in map(str, RATES):
            supported = f"audioEncoding {', '.join(ENCODINGS)}; sampleRateHertz {', '.join(map(str, RATES))}"
            raise InputRefused(f"'{name}' is not supported; choose {supported}")
        return cls(str(encoding), int(str(rate)))


class AudioDecoder:
    """Converts a client's audio to 16-bit PCM at the call's rate, in pieces of any length."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._decimator = Decimator(audio_format.rate // SAMPLE_RATE) if audio_format.rate > SAMPLE_RATE else None
        self._half_sample = b""
        """Half of a 16-bit sample that the last piece ended with."""

    def feed(self, payload: bytes) -> bytes:
        pcm = self._to_pcm(payload)
        return self._decimator.feed(pcm) if self._decimator else pcm

    def _to_pcm(self, payload: bytes) -> bytes:
        match self._format.encoding:
            case "MULAW":
                return audioop.ulaw2lin(payload, 2)
            case "ALAW":
                return audioop.alaw2lin(payload, 2)
        # A piece may end in the middle of a 16-bit sample.
        payload = self._half_sample + payload
        whole = len(payload) - len(payload) % 2
        self._half_sample = payload[whole:]
        return payload[:whole]


class AudioEncoder:
    """Converts 16-bit PCM at the call's rate to a client's audio in base64."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._state: tuple[int, tuple[tuple[int, int], ...]] | None = None
        """The state of `audioop.ratecv` between two pieces."""

    def feed(self, pcm: bytes) -> str:
        if self._format.rate != SAMPLE_RATE:
            pcm, self._state = audioop.ratecv(pcm, 2, 1, SAMPLE_RATE, self._format.rate, self._state)
        match self._format.encoding:
            case "MULAW":
                pcm = audioop.lin2ulaw(pcm, 2)
            case "ALAW":
                pcm = audioop.lin2alaw(pcm, 2)
        return base64.b64encode(pcm).decode("ascii")


def decode_base64(value: JsonValue) -> bytes:
    """Return the bytes of an `audio` field, in either alphabet and with or without padding. Raises `InputRefused`."""
    if not isinstance(value, str):
        raise InputRefused("'audio' should be base64")
    # "-" and "_" are the URL-safe alphabet's (RFC 4648 §5); padding is made anew, as it may be missing.
    text = value.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise InputRefused("'audio' is not base64") from None


class RequestSpeech:
    """Audio of one request: its inputs hold whole utterances, its answers are spoken text by text."""

    def __init__(self, utterances: Utterances, project: CxProject, config: JsonObject) -> None:
        """Read the audio formats of the configuration. Raises `InputRefused` for one that is not supported."""
        self._utterances = utterances
        self._project = project
        self._input_format, self._output_format = (
            AudioFormat.of(config, name) for name in ("inputAudioConfig", "outputAudioConfig")
        )

    async def transcribe(self, inputs: Sequence[JsonObject]) -> list[JsonObject]:
        """Return the inputs with text in the place of audio. Raises `InputRefused` and `ProviderError`."""
        transcribed: list[JsonObject] = []
        audio = b""
        for each in inputs:
            # Pieces of audio that follow each other are one utterance.
            if "audio" in each:
                audio += decode_base64(each["audio"])
                continue
            transcribed += await self._recognise(audio)
            audio = b""
            transcribed.append(each)
        return [*transcribed, *await self._recognise(audio)]

    def speaker(self) -> Speak | None:
        """Return the function that speaks a text of the answer; None for a client that wants no audio."""
        if self._output_format is None:
            return None
        encoder = AudioEncoder(self._output_format)

        async def speak(say: Say) -> str:
            pcm = say.pcm if say.pcm is not None else await self._utterances.speak(self._project, say.text)
            # In a thread: half a minute of audio takes longer than a frame, and calls share this loop.
            return await asyncio.to_thread(encoder.feed, pcm)

        return speak

    async def _recognise(self, audio: bytes) -> list[JsonObject]:
        if not audio:
            return []
        if self._input_format is None:
            raise InputRefused("audio needs 'inputAudioConfig' in the configuration")
        pcm = await asyncio.to_thread(AudioDecoder(self._input_format).feed, audio)
        return [{"text": await self._utterances.recognise(pcm)}]
