"""HTTP requests and WebSockets to a provider. Whatever fails is raised as one of our `ProviderError`s."""

from __future__ import annotations

import asyncio
import audioop
import email.utils
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.speech.protocol import SpeechChunk, SpeechProvider

if TYPE_CHECKING:
    import aiohttp
    from websockets.asyncio.client import ClientConnection

REASON_LIMIT = 300


def refusal(who: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """The error for an answer that is not 2xx (RFC 9110 §15.5, §15.6)."""
    reason = reason_of(body)
    text = f"{who} answered {status}" + (f": {reason}" if reason else "")
    retry_after = parse_retry_after(headers.get("Retry-After", ""), time.time())
    if status in (408, 504):
        return ProviderTimeout(text)
    if 400 <= status < 500 or retry_after is not None:
        return ProviderRefused(text, status, retry_after)
    return ProviderError(text)


def reason_of(body: bytes) -> str:
    """The words of an error body, wherever the provider puts them."""
    try:
        data = json.loads(body)
    except ValueError:
        return ""
    for key in ("error", "detail", "message", "err_msg", "reason", "title"):
        while isinstance(data, dict) and data.get(key):
            data = data[key]
    return data[:REASON_LIMIT] if isinstance(data, str) else ""


def parse_retry_after(value: str, now: float) -> float | None:
    """Seconds, from a number or a date (RFC 9110 §10.2.3); None for what is neither."""
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (TypeError, ValueError):
        return None


def parse_object(who: str, message: str | bytes, limit: int) -> dict[str, Any]:
    """A provider's JSON object. Raises `ProviderError` for anything else, and for what is longer than `limit`."""
    if len(message) > limit:
        raise ProviderError(f"{who} sent a message of {len(message)} bytes")
    try:
        data = json.loads(message)
    except (ValueError, RecursionError):
        raise ProviderError(f"{who} sent what is no JSON: {message[:80]!r}") from None
    if not isinstance(data, dict):
        raise ProviderError(f"{who} sent what is no JSON object: {message[:80]!r}")
    return data


_ERROR_BODY_LIMIT = 4096
_NOT_AUDIO = ("text/", "application/json", "application/xml", "application/problem+json")


class ProviderClient:
    """One provider's HTTP connections; `close()` ends them."""

    def __init__(self, who: str, settings: SpeechProvider) -> None:
        self._who = who
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def audio(self, url: str, headers: Mapping[str, str], limit: int, **body: Any) -> AsyncIterator[bytes]:
        """The bytes of an audio answer as they come. Raises `ProviderError`, also for what is no audio or too much."""
        async with self._post(url, headers, body) as (response, deadline):
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

    async def lines(self, url: str, headers: Mapping[str, str], limit: int, **body: Any) -> AsyncIterator[bytes]:
        """The lines of an answer, empty ones left out. Raises `ProviderError`, also for a line beyond `limit`."""
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

    async def body(self, url: str, headers: Mapping[str, str], limit: int, **body: Any) -> bytes:
        """A whole answer. Raises `ProviderError`."""
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
        self, url: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, float]]:
        """The response with status 200, its body unread, and when it has to be over."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.total_timeout
        # The key must not follow a redirection to another host.
        asked = self._open_session().post(url, headers=headers, allow_redirects=False, **body)
        response = await self._wait(asked, clock() + self._settings.connect_timeout, "answer")
        try:
            if response.status != 200:
                text = await self._wait(response.content.read(_ERROR_BODY_LIMIT), deadline, "say why it refused")
                raise refusal(self._who, response.status, response.headers, text)
            yield response, deadline
        finally:
            # A body that was not read to its end is no use to the next request.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def _parts(self, response: aiohttp.ClientResponse, deadline: float) -> AsyncIterator[bytes]:
        while part := await self._wait(response.content.readany(), deadline, "finish"):
            yield part

    async def _wait(self, asked: Any, deadline: float, what: str) -> Any:
        import aiohttp

        try:
            async with asyncio.timeout_at(deadline):
                return await asked
        except TimeoutError:
            raise ProviderTimeout(f"{self._who} did not {what} in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(f"{self._who} cannot be reached, or the connection was cut: {error}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # The deadlines are ours; a limit on connections would make calls wait for one another.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            )
        return self._session


MESSAGE_LIMIT = 1 << 20
PING_SECONDS = 5.0
"""A peer that is gone is noticed within two of them."""
CLOSE_SECONDS = 1.0


async def open_socket(who: str, url: str, headers: Mapping[str, str], timeout: float) -> ClientConnection:
    """An open socket. Raises `ProviderRefused`, `ProviderTimeout` or `ProviderError`."""
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
            # Audio does not get smaller, and compressing it takes the loop's time.
            compression=None,
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
    """Raises `ProviderError` where the socket is closed."""
    from websockets.exceptions import ConnectionClosed

    try:
        await socket.send(message)
    except ConnectionClosed as error:
        raise closed(who, error) from None


async def receive_message(who: str, socket: ClientConnection) -> str | bytes:
    """The next message. Raises `ProviderError` where the socket is closed."""
    from websockets.exceptions import ConnectionClosed

    try:
        return await socket.recv()
    except ConnectionClosed as error:
        raise closed(who, error) from None


class SocketClosed(ProviderError):
    """The provider, or the network, closed the socket."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


def closed(who: str, error: Exception) -> SocketClosed:
    frame = getattr(error, "rcvd", None)
    reason = f"{frame.code} {frame.reason}".strip() if frame else "without a word"
    return SocketClosed(f"{who} closed the socket: {reason}", frame.code if frame else None)


SECOND_OF_ULAW = 8000
MAX_SECONDS_PER_CHARACTER = 1.0
MIN_SECONDS = 10.0


def max_audio_bytes(text: str, bytes_per_second: int) -> int:
    """Bytes that no voice needs to say `text`: more is garbage."""
    return round(max(MIN_SECONDS, len(text) * MAX_SECONDS_PER_CHARACTER) * bytes_per_second)


def decode_ulaw(ulaw: bytes) -> bytes:
    return audioop.ulaw2lin(ulaw, 2)


def encode_ulaw(pcm: bytes) -> bytes:
    return audioop.lin2ulaw(pcm, 2)


def strip_wav(who: str, audio: bytes) -> bytes:
    """The samples of a WAV file; what is none is samples already. Raises `ProviderError` for a broken one."""
    if not audio.startswith(b"RIFF"):
        return audio
    at = 12
    while at + 8 <= len(audio):
        size = int.from_bytes(audio[at + 4 : at + 8], "little")
        if audio[at : at + 4] == b"data":
            return audio[at + 8 : at + 8 + size] if size else audio[at + 8 :]
        at += 8 + size + size % 2
    raise ProviderError(f"{who} sent a WAV file without samples")


async def ulaw_chunks(audio: AsyncIterator[bytes]) -> AsyncIterator[SpeechChunk]:
    """μ-law bytes of any lengths as chunks."""
    try:
        async for part in audio:
            yield SpeechChunk(decode_ulaw(part))
    finally:
        await audio.aclose()  # type: ignore[attr-defined]
