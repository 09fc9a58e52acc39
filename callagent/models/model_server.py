"""Streamed answers of model servers over HTTP: connections, deadlines, server-sent events, and what an error means.

Of server-sent events (WHATWG HTML §9.2) model servers use data fields only, so that other fields are passed over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.json_values import JsonObject, JsonValue, parse_object
from callagent.log import get_logger
from callagent.models.protocol import Delta, ProviderSettings

if TYPE_CHECKING:
    import aiohttp


class EventTooLong(ValueError):
    """A line or an event is longer than allowed."""


class EventParser:
    """Turns bytes into the data of complete events."""

    def __init__(self, limit: int) -> None:
        """`limit`: the longest line in bytes, and the longest event in characters."""
        self._limit = limit
        self._line = bytearray()
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of the events that `chunk` completes.

        Raises `EventTooLong` beyond the limit and `UnicodeDecodeError` for what is not UTF-8.
        """
        # Bytes are kept, not text: a chunk may end within a character.
        self._line += chunk
        found: list[str] = []
        # A trailing CR may be the first half of a line's end: it waits for the next chunk.
        *lines, rest = _split_lines(self._line)
        self._line = bytearray(rest)
        for line in lines:
            if event := self._end_line(line.decode()):
                found.append(event)
        if len(self._line) > self._limit:
            raise EventTooLong(f"a line is longer than {self._limit} bytes")
        return found

    def _end_line(self, line: str) -> str:
        """Return the event that the line completes; empty: none."""
        # An empty line ends the event; a comment line begins with a colon, and so has an empty name.
        if not line:
            event, self._data, self._size = "\n".join(self._data), [], 0
            return event
        name, _, value = line.partition(":")
        if name == "data":
            self._size += len(value)
            if self._size > self._limit:
                raise EventTooLong(f"an event is longer than {self._limit} characters")
            self._data.append(value.removeprefix(" "))
        return ""


def _split_lines(data: bytearray) -> list[bytes]:
    """Return the complete lines, then the rest; lines end in LF, CRLF or CR."""
    if data.endswith(b"\r"):
        *lines, rest = bytes(data[:-1]).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return [*lines, rest + b"\r"]
    return bytes(data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


log = get_logger(__name__)

EVENT_LIMIT = 1 << 16
"""Bytes of one event; a longer JSON text would hold up the media loop while it is read."""
_BODY_LIMIT = 4 << 20
"""Bytes of a whole answer."""
_OPTIONAL = {"temperature": "temperature", "reasoning_effort": "reasoning_effort", "output_config": "effort"}
"""Fields that not every model takes -> the word by which a refusal (400) names them."""
_ERROR_BODY_LIMIT = 4096


@dataclass(slots=True)
class Deadlines:
    """Until when one answer's tokens must come, as instants of the loop's clock."""

    token: float
    """Until when the next token must come."""
    total: float
    """Until when the answer must be whole."""
    next_token_timeout: float
    """Seconds from one token to the next."""
    answered: bool = False
    """Whether the first token has come."""

    @classmethod
    def from_now(cls, first_token_timeout: float, next_token_timeout: float, total_timeout: float) -> Deadlines:
        """Return deadlines that count from now on; the arguments are seconds."""
        now = asyncio.get_running_loop().time()
        return cls(now + first_token_timeout, now + total_timeout, next_token_timeout)

    @classmethod
    def of(cls, settings: ProviderSettings) -> Deadlines:
        """Return the deadlines of a provider's settings, counted from now on."""
        return cls.from_now(settings.first_token_timeout, settings.next_token_timeout, settings.total_timeout)

    def progress(self) -> None:
        """Note that a token has come. Whoever reads the events calls it: only there it is known which are tokens."""
        self.answered = True
        self.token = asyncio.get_running_loop().time() + self.next_token_timeout

    @property
    def next(self) -> float:
        """The instant at which to stop waiting."""
        # Tokens that keep coming do not put off the end of the whole answer.
        return min(self.token, self.total)

    def missed(self) -> ProviderTimeout:
        """Return the error for a deadline that has passed."""
        what = "begin to answer" if not self.answered else "finish its answer"
        if self.answered and self.token < self.total:
            what = "go on with its answer"
        return ProviderTimeout(f"the model's server did not {what} in time")


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model server."""

    url: str
    headers: Mapping[str, str]
    body: Mapping[str, object]
    """JSON data."""


class Splitter(Protocol):
    """How a stream's bytes become events."""

    def feed(self, chunk: bytes) -> list[str]:
        """Return the events that the chunk completes. Raises `ValueError`."""


class Answer(Protocol):
    """One answer in a provider's protocol, put together from the stream's events. No I/O."""

    @property
    def over(self) -> bool:
        """Whether no further event is of interest."""

    def feed(self, event: str) -> str | None:
        """Return the text that an event adds; empty for a part of a tool call or a thought, None for none of these.

        Raises `ProviderError` for an error event and for what is no event.
        """

    def rest(self) -> Iterable[Delta]:
        """Return what is passed on at the end: tool calls, usage. Raises `ProviderError` where it was cut off."""


class ModelServer:
    """The connections to one provider; `close()` ends them."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._refused: set[tuple[str, str]] = set()
        """Models, each with a field that it refuses: a temperature where it reasons, an effort where it does not."""

    async def deltas(self, request: Request, deadlines: Deadlines, answer: Answer) -> AsyncGenerator[Delta, None]:
        """Yield the answer, its text as it comes. Closing the generator closes the socket; raises as `events` does."""
        async with aclosing(self.events(request, deadlines)) as events:
            async for event in events:
                text = answer.feed(event)
                if text is not None:
                    deadlines.progress()
                    yield Delta(text=text, progress=not text)
                if answer.over:
                    break
        for delta in answer.rest():
            yield delta

    async def events(
        self, request: Request, deadlines: Deadlines, splitter: Splitter | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the events of the answer, server-sent unless `splitter` knows others. Closing it closes the socket.

        Raises `ProviderError`; `ProviderRefused` with the status for 4xx.
        """
        response = await self._answered(request, deadlines)
        try:
            parser, received = splitter or EventParser(EVENT_LIMIT), 0
            while chunk := await _chunk(response, deadlines):
                received += len(chunk)
                if received > _BODY_LIMIT:
                    raise ProviderError(f"the model's answer is longer than {_BODY_LIMIT} bytes")
                for event in _split(parser, chunk):
                    yield event
            # A last line may come without its end, which the parser waits for.
            for event in _split(parser, b"\n\n"):
                yield event
        finally:
            # A stream that was not read to its end is no use to the next request; one that was goes back by itself.
            response.close()

    async def close(self) -> None:
        """End the connections."""
        if self._session:
            await self._session.close()
            self._session = None

    async def _answered(self, request: Request, deadlines: Deadlines) -> aiohttp.ClientResponse:
        """Return the response. The request is repeated without each field that the model turns out not to take."""
        model = str(request.body.get("model"))
        # Ends, because each round leaves out one more of the three fields.
        while True:
            body = {key: value for key, value in request.body.items() if (model, key) not in self._refused}
            try:
                return await self._post(replace(request, body=body), deadlines)
            except ProviderRefused as refusal:
                refused = next((key for key, word in _OPTIONAL.items() if key in body and word in str(refusal)), None)
                if refusal.status != 400 or refused is None:
                    raise
                log.warning("model_setting_refused", model=model, setting=refused)
            # Kept for the model, so that later requests leave the field out at once.
            self._refused.add((model, refused))

    async def _post(self, request: Request, deadlines: Deadlines) -> aiohttp.ClientResponse:
        """Return the response with status 200, its body unread."""
        import aiohttp

        headers = dict(request.headers)
        try:
            async with asyncio.timeout_at(deadlines.next):
                # A redirection is not followed: it would take the key to another host.
                response = await self._open_session().post(
                    request.url, json=request.body, headers=headers, allow_redirects=False
                )
        except TimeoutError:
            raise deadlines.missed() from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(f"the model's server at {request.url} cannot be reached: {error}") from error
        # The body of a refusal says which field was wrong, so it is read before the socket is closed.
        if response.status != 200:
            try:
                raise await _refusal(response, deadlines)
            finally:
                response.close()
        return response

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # The deadlines are ours; aiohttp's limit on connections would make calls wait for one another.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session


def read_event(event: str, what: str) -> JsonObject:
    """Return an event's JSON object; `what` names the protocol.

    Raises `ProviderError`, also for an event by which the server reports an error.
    """
    try:
        data = parse_object(event)
    except ValueError as error:
        raise not_of(what, event) from error
    if reported := data.get("error"):
        raise ProviderError(f"the model's server reported: {error_text(reported)}")
    return data


# Of a provider's events, what has another type than documented is an error; `json_values` would pass over it.


def as_object(value: JsonValue) -> JsonObject:
    """Return `value`, a JSON object. Raises `ValueError` where it is none."""
    if not isinstance(value, Mapping):
        raise ValueError(f"not a JSON object: {value!r}")
    return value


def as_list(value: JsonValue) -> Sequence[JsonValue]:
    """Return `value`, a JSON array. Raises `ValueError` where it is none."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"not a JSON array: {value!r}")
    return value


def as_int(value: JsonValue) -> int:
    """Return `value`, a whole number or its digits. Raises `ValueError` where it is none."""
    if not isinstance(value, int | float | str):
        raise ValueError(f"not a number: {value!r}")
    return int(value)


def not_of(what: str, event: str) -> ProviderError:
    """Return the error for an event that is none of the protocol `what`."""
    return ProviderError(f"the model's server sent what is no {what}: {event[:200]!r}")


def error_text(error: object) -> str:
    """Return the message of an error as servers report it: an object with a `message`, or a text."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "")[:500]


async def _chunk(response: aiohttp.ClientResponse, deadlines: Deadlines) -> bytes:
    """Return what has arrived; empty at the end."""
    import aiohttp

    try:
        async with asyncio.timeout_at(deadlines.next):
            return await response.content.readany()
    except TimeoutError:
        raise deadlines.missed() from None
    except (aiohttp.ClientError, OSError) as error:
        raise ProviderError(f"the connection to the model's server was cut: {error}") from error


def _split(parser: Splitter, chunk: bytes) -> list[str]:
    try:
        return parser.feed(chunk)
    except ValueError as error:
        raise ProviderError(f"the model's server sent what is no event stream: {error}") from error


async def _refusal(response: aiohttp.ClientResponse, deadlines: Deadlines) -> ProviderError:
    """Return the error that an HTTP status means, with the reason that the body gives."""
    import aiohttp

    try:
        async with asyncio.timeout_at(deadlines.next):
            body = await response.content.read(_ERROR_BODY_LIMIT)
        reason = error_text(json.loads(body).get("error"))
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, AttributeError, RecursionError):
        reason = ""
    text = f"the model's server answered {response.status} {response.reason or ''}".rstrip()
    text = f"{text}: {reason}" if reason else text
    log.warning("model_refused", status=response.status, reason=reason)
    # A server's own timeout, or that of a proxy before it, is a timeout here too: it counts as one at the breaker.
    if response.status in (408, 504):
        return ProviderTimeout(text)
    if not 400 <= response.status < 500:
        return ProviderError(text)
    return ProviderRefused(text, response.status, _retry_after(response.headers.get("Retry-After", "")))


def _retry_after(value: str) -> float | None:
    """Return the seconds of a Retry-After (RFC 9110 §10.2.3); these servers do not use its other form, a date."""
    return float(value) if value.isascii() and value.isdigit() and len(value) < 8 else None
