"""Connections to a provider: HTTP requests, WebSockets, JSON and audio formats.

Every failure is raised as a `ProviderError`, whose kind decides what a line-up does next: `ProviderRefused` (the
provider refuses the request), `ProviderTimeout` (it is too slow), or any other (the network or an answer is broken).
`who` is the provider's name in errors. Texts of providers end up in logs and records: they are bounded here, and
scrubbed of keys by `ProviderError`.
"""

from __future__ import annotations

import asyncio
import audioop
import base64
import binascii
import email.utils
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from callagent import json_values
from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.json_values import JsonObject, JsonValue, objects_at
from callagent.speech.protocol import SpeechChunk, SpeechProvider

if TYPE_CHECKING:
    import aiohttp
    from websockets.asyncio.client import ClientConnection

    Body = JsonObject | bytes | aiohttp.FormData
    """The body of a request: an object is sent as JSON, anything else unchanged."""

T = TypeVar("T")
MAX_REASON = 300
"""Characters of a provider's own text in an error."""


def refusal(who: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return the error for an answer that is not 2xx (RFC 9110 §15.5, §15.6)."""
    reason = reason_of(body)
    text = f"{who} answered {status}" + (f": {reason}" if reason else "")
    retry_after = parse_retry_after(headers.get("Retry-After", ""), time.time())
    if status in (408, 504):
        return ProviderTimeout(text)
    # A 5xx with Retry-After says as clearly as a 429 that asking again at once is of no use.
    if 400 <= status < 500 or retry_after is not None:
        return ProviderRefused(text, status, retry_after)
    return ProviderError(text)


def reason_of(body: bytes) -> str:
    """Return the text of an error from its JSON body, whichever field the provider uses; empty if there is none."""
    try:
        data = json_values.parse_json(body)
    except ValueError:
        return ""
    for key in ("error", "detail", "message", "err_msg", "reason", "title"):
        # An object under the key is searched with the same key, and then with those after it.
        while isinstance(data, Mapping) and data.get(key):
            data = data[key]
    return data[:MAX_REASON] if isinstance(data, str) else ""


def parse_retry_after(value: str, now: float) -> float | None:
    """Return the seconds of a Retry-After, a number or a date (RFC 9110 §10.2.3); None if it is neither."""
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (TypeError, ValueError):
        return None


def parse_object(who: str, message: str | bytes, limit: int) -> JsonObject:
    """Return a provider's JSON object. Raises `ProviderError` for anything else, and for more than `limit` bytes."""
    if len(message) > limit:
        raise ProviderError(f"{who} sent a message of {len(message)} bytes; at most {limit} are accepted")
    try:
        data = json_values.parse_json(message)
    except ValueError:
        raise ProviderError(f"{who} sent a message that is not JSON: {message[:80]!r}") from None
    if not isinstance(data, Mapping):
        raise ProviderError(f"{who} sent a message that is not a JSON object: {message[:80]!r}")
    return data


def decode_audio(who: str, encoded: JsonValue) -> bytes:
    """Return the audio of a base64 field of a message. Raises `ProviderError`."""
    try:
        if isinstance(encoded, str):
            return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise ProviderError(f"{who} sent audio that is not base64")


def confidence_at(who: str, data: JsonObject, key: str) -> float:
    """Return the confidence under `key`; 0.0 if there is none. Raises `ProviderError` if it is not a number."""
    found = data.get(key) or 0.0
    if not isinstance(found, int | float):
        raise ProviderError(f"{who} sent a confidence that is not a number")
    return float(found)


def mean_confidence(data: JsonObject, key: str) -> float | None:
    """Return the mean confidence of the words listed under `key`; None if they have none."""
    confidences = [word.get("confidence") for word in objects_at(data, key)]
    numbers = [float(one) for one in confidences if isinstance(one, int | float)]
    return sum(numbers) / len(numbers) if numbers else None


_MAX_ERROR_BODY = 4096
"""Bytes of a refusal's body that are read for its reason."""
_NOT_AUDIO = ("text/", "application/json", "application/xml", "application/problem+json")


class ProviderClient:
    """A client of one provider over HTTP; its requests share connections."""

    def __init__(self, who: str, settings: SpeechProvider) -> None:
        self._who = who
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def audio(self, url: str, headers: Mapping[str, str], limit: int, body: Body) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an audio answer as they come.

        Raises `ProviderError`, also for an answer that is not audio, is empty or has more than `limit` bytes.
        """
        async with self._post(url, headers, body) as (response, deadline):
            # Some providers report an error with status 200 and a text.
            if response.content_type.startswith(_NOT_AUDIO):
                raise ProviderError(f"{self._who} answered with {response.content_type} instead of audio")
            received = 0
            async for part in self._parts(response, deadline):
                received += len(part)
                if received > limit:
                    raise ProviderError(f"{self._who} sent more than {limit} bytes of audio")
                yield part
        if not received:
            raise ProviderError(f"{self._who} sent no audio")

    async def lines(self, url: str, headers: Mapping[str, str], limit: int, body: Body) -> AsyncGenerator[bytes, None]:
        """Yield the non-empty lines of an answer. Raises `ProviderError`, also for a line beyond `limit` bytes."""
        async with self._post(url, headers, body) as (response, deadline):
            rest = bytearray()
            async for part in self._parts(response, deadline):
                *lines, tail = (rest + part).split(b"\n")
                rest = bytearray(tail)
                if len(rest) > limit:
                    raise ProviderError(f"{self._who} sent a line of more than {limit} bytes")
                for line in filter(None, map(bytes, lines)):
                    yield line
        if rest.strip():
            yield bytes(rest)

    async def body(self, url: str, headers: Mapping[str, str], limit: int, body: Body) -> bytes:
        """Return a whole answer. Raises `ProviderError`, also for more than `limit` bytes."""
        whole = bytearray()
        async with self._post(url, headers, body) as (response, deadline):
            async for part in self._parts(response, deadline):
                whole += part
                if len(whole) > limit:
                    raise ProviderError(f"{self._who} answered with more than {limit} bytes")
        return bytes(whole)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _post(
        self, url: str, headers: Mapping[str, str], body: Body
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, float]]:
        """Send a request; yield its response with status 200 and unread body, and the deadline for the body."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.total_timeout
        data, json = (None, body) if isinstance(body, Mapping) else (body, None)
        # A redirection to another host must not get the key.
        request = self._open_session().post(url, headers=headers, allow_redirects=False, data=data, json=json)
        response = await self._wait(request, clock() + self._settings.connect_timeout, "answer")
        try:
            if response.status != 200:
                text = await self._wait(response.content.read(_MAX_ERROR_BODY), deadline, "say why it refused")
                raise refusal(self._who, response.status, response.headers, text)
            yield response, deadline
        finally:
            # A connection whose body was not read to its end is closed, because it cannot carry the next request.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def _parts(self, response: aiohttp.ClientResponse, deadline: float) -> AsyncIterator[bytes]:
        while part := await self._wait(response.content.readany(), deadline, "finish"):
            yield part

    async def _wait(self, request: Awaitable[T], deadline: float, what: str) -> T:
        """Await `request`. Raises `ProviderError` if it fails, `ProviderTimeout` ("did not `what` in time") if late."""
        import aiohttp

        try:
            async with asyncio.timeout_at(deadline):
                return await request
        except TimeoutError:
            raise ProviderTimeout(f"{self._who} did not {what} in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(f"{self._who} cannot be reached, or the connection was cut: {error}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # `_wait` has the deadlines; a limit on connections would make calls wait for one another.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            )
        return self._session


MESSAGE_LIMIT = 1 << 20
"""Bytes."""
PING_SECONDS = 5.0
"""Time between two pings; a lost peer is noticed within twice this time."""
CLOSE_SECONDS = 1.0
"""Time for the closing handshake of a socket."""


async def open_socket(who: str, url: str, headers: Mapping[str, str], timeout: float) -> ClientConnection:
    """Return an open socket. Raises `ProviderRefused`, `ProviderTimeout` or `ProviderError`."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    try:
        return await connect(
            url,
            additional_headers=headers,
            open_timeout=timeout,
            close_timeout=CLOSE_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            max_size=MESSAGE_LIMIT,
            # Audio hardly gets smaller, and compressing it would delay the event loop.
            compression=None,
            # As with HTTP above, a proxy of the environment is not used: the settings say how a provider is reached.
            proxy=None,
        )
    except InvalidStatus as error:
        answer = error.response
        raise refusal(who, answer.status_code, answer.headers, bytes(answer.body or b"")) from None
    except TimeoutError:
        raise ProviderTimeout(f"{who} did not open a socket within {timeout:g} s") from None
    except (InvalidHandshake, OSError, EOFError, ValueError) as error:
        raise ProviderError(f"{who} cannot be reached: {error}") from error


async def send_message(who: str, socket: ClientConnection, message: str | bytes) -> None:
    """Send a message. Raises `SocketClosed`."""
    from websockets.exceptions import ConnectionClosed

    try:
        await socket.send(message)
    except ConnectionClosed as error:
        raise _closed_error(who, error) from None


async def receive_message(who: str, socket: ClientConnection) -> str | bytes:
    """Return the next message. Raises `SocketClosed`."""
    from websockets.exceptions import ConnectionClosed

    try:
        return await socket.recv()
    except ConnectionClosed as error:
        raise _closed_error(who, error) from None


class SocketClosed(ProviderError):
    """The provider, or the network, closed the socket."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


def _closed_error(who: str, error: Exception) -> SocketClosed:
    frame = getattr(error, "rcvd", None)
    reason = f"{frame.code} {frame.reason}".strip() if frame else "without a close frame"
    return SocketClosed(f"{who} closed the socket: {reason}", frame.code if frame else None)


# Audio formats. Providers are asked for μ-law at 8 kHz where they have it: it needs neither resampling nor bandwidth.

ULAW_BYTES_PER_SECOND = 8000
MAX_SECONDS_PER_CHARACTER = 1.0
"""Audio that is accepted for each character, some 15 times as long as a voice needs."""
MIN_LIMIT_SECONDS = 10.0
"""Audio that is accepted for even the shortest text."""


def max_audio_bytes(text: str, bytes_per_second: int) -> int:
    """Return how many bytes of audio are accepted for `text`: no voice needs more, so any excess is garbage."""
    return round(max(MIN_LIMIT_SECONDS, len(text) * MAX_SECONDS_PER_CHARACTER) * bytes_per_second)


def decode_ulaw(ulaw: bytes) -> bytes:
    """Return G.711 μ-law as 16-bit PCM."""
    return audioop.ulaw2lin(ulaw, 2)


def encode_ulaw(pcm: bytes) -> bytes:
    """Return 16-bit PCM as G.711 μ-law."""
    return audioop.lin2ulaw(pcm, 2)


def strip_wav(who: str, audio: bytes) -> bytes:
    """Return the samples of a WAV file, or other audio unchanged. Raises `ProviderError` for a broken WAV file."""
    if not audio.startswith(b"RIFF"):
        return audio
    at = 12
    while at + 8 <= len(audio):
        size = int.from_bytes(audio[at + 4 : at + 8], "little")
        if audio[at : at + 4] == b"data":
            # The header of a file that was written as a stream has size 0: the samples go to its end.
            return audio[at + 8 : at + 8 + size] if size else audio[at + 8 :]
        # A chunk of an odd size is followed by a byte of padding.
        at += 8 + size + size % 2
    raise ProviderError(f"{who} sent a WAV file without samples")


async def ulaw_chunks(audio: AsyncGenerator[bytes, None]) -> AsyncGenerator[SpeechChunk, None]:
    """Yield pieces of μ-law audio, of any lengths, as chunks of PCM."""
    async with aclosing(audio) as parts:
        async for part in parts:
            yield SpeechChunk(decode_ulaw(part))
