"""Streamed answers of model servers over HTTP: connections, deadlines, server-sent events, and what an error means.

Model servers use only the data fields of server-sent events (WHATWG HTML §9.2), so other fields are ignored.
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
    """A parser that turns bytes into the data of complete server-sent events."""

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
        # A trailing CR may be the first half of CRLF, so it waits for the next chunk.
        *lines, rest = _split_lines(self._line)
        self._line = bytearray(rest)
        for line in lines:
            if event := self._end_line(line.decode()):
                found.append(event)
        if len(self._line) > self._limit:
            raise EventTooLong(f"a line is longer than {self._limit} bytes")
        return found

    def _end_line(self, line: str) -> str:
        """Take one line and return the event that it completes; empty: none."""
        # An empty line ends the event. A comment line begins with a colon, so its name is empty and it is ignored.
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
_OPTIONAL_FIELDS = {"temperature": "temperature", "reasoning_effort": "reasoning_effort", "output_config": "effort"}
"""Fields that not every model takes -> the word by which a refusal (400) names them."""
_ERROR_BODY_LIMIT = 4096


@dataclass(slots=True)
class Deadlines:
    """The deadlines of one answer, as instants of the loop's clock."""

    next_token_due: float
    """Until when the next token must come."""
    answer_due: float
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
        """Note that a token has come. The reader of events calls this, because only it can tell which are tokens."""
        self.answered = True
        self.next_token_due = asyncio.get_running_loop().time() + self.next_token_timeout

    @property
    def next(self) -> float:
        """The instant at which to stop waiting."""
        # Tokens that keep coming do not postpone the end of the whole answer.
        return min(self.next_token_due, self.answer_due)

    def timeout_error(self) -> ProviderTimeout:
        """Return the error for a deadline that has passed."""
        missed = "begin to answer" if not self.answered else "finish its answer"
        if self.answered and self.next_token_due < self.answer_due:
            missed = "go on with its answer"
        return ProviderTimeout(f"the model's server did not {missed} in time")


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model server."""

    url: str
    headers: Mapping[str, str]
    body: Mapping[str, object]
    """JSON data."""


class Splitter(Protocol):
    """A parser that splits a stream's bytes into events."""

    def feed(self, chunk: bytes) -> list[str]:
        """Return the events that the chunk completes. Raises `ValueError`."""


class Answer(Protocol):
    """One answer in a provider's protocol, assembled from the stream's events. No I/O."""

    @property
    def over(self) -> bool:
        """Whether no further event is needed."""

    def feed(self, event: str) -> str | None:
        """Return the text that an event adds; empty for part of a tool call or a thought, None for any other event.

        Raises `ProviderError` for an error event and for one that the protocol does not allow.
        """

    def rest(self) -> Iterable[Delta]:
        """Return the last deltas, with tool calls and usage. Raises `ProviderError` if the answer was cut off."""


class ModelServer:
    """The connections to one provider; `close()` ends them."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._refused_fields: set[tuple[str, str]] = set()
        """Pairs of a model and a field that it refuses: reasoning models refuse a temperature, others an effort."""

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
        """Yield the answer's events, server-sent unless `splitter` is given. Closing the generator closes the socket.

        Raises `ProviderError`; `ProviderRefused` with the status for 4xx.
        """
        response = await self._open_response(request, deadlines)
        try:
            parser, received = splitter or EventParser(EVENT_LIMIT), 0
            while chunk := await _read_chunk(response, deadlines):
                received += len(chunk)
                if received > _BODY_LIMIT:
                    raise ProviderError(f"the model's answer is longer than {_BODY_LIMIT} bytes")
                for event in _split(parser, chunk):
                    yield event
            # The last line may lack its end, which the parser waits for.
            for event in _split(parser, b"\n\n"):
                yield event
        finally:
            # This drops a connection whose stream was not read to the end; others are back in the pool already.
            response.close()

    async def close(self) -> None:
        """End the connections."""
        if self._session:
            await self._session.close()
            self._session = None

    async def _open_response(self, request: Request, deadlines: Deadlines) -> aiohttp.ClientResponse:
        """Return the response. After a refusal the request is repeated without the field that the model refused."""
        model = str(request.body.get("model"))
        # The loop ends, because each round leaves out one more of the three fields.
        while True:
            body = {key: value for key, value in request.body.items() if (model, key) not in self._refused_fields}
            try:
                return await self._post(replace(request, body=body), deadlines)
            except ProviderRefused as refusal:
                refused = next(
                    (key for key, word in _OPTIONAL_FIELDS.items() if key in body and word in str(refusal)), None
                )
                if refusal.status != 400 or refused is None:
                    raise
                log.warning("model_setting_refused", model=model, setting=refused)
            # Later requests to the model leave the field out from the start.
            self._refused_fields.add((model, refused))

    async def _post(self, request: Request, deadlines: Deadlines) -> aiohttp.ClientResponse:
        """Return the response with status 200, its body unread."""
        import aiohttp

        headers = dict(request.headers)
        try:
            async with asyncio.timeout_at(deadlines.next):
                # A redirection is not followed, because it would send the key to another host.
                response = await self._open_session().post(
                    request.url, json=request.body, headers=headers, allow_redirects=False
                )
        except TimeoutError:
            raise deadlines.timeout_error() from None
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
            # `Deadlines` replaces aiohttp's timeouts; its limit on connections would make calls wait for one another.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session


def read_event(event: str, expected: str) -> JsonObject:
    """Return an event's JSON object; `expected` names its kind for error messages.

    Raises `ProviderError`, also for an event by which the server reports an error.
    """
    try:
        data = parse_object(event)
    except ValueError as error:
        raise unexpected_event(expected, event) from error
    if reported := data.get("error"):
        raise ProviderError(f"the model's server reported: {error_text(reported)}")
    return data


# A value of another type than the provider documents is an error here; `json_values` would ignore it.


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


def unexpected_event(expected: str, event: str) -> ProviderError:
    """Return the error for an event that is not of the kind `expected`."""
    return ProviderError(f"the model's server sent something that is no {expected}: {event[:200]!r}")


def error_text(error: object) -> str:
    """Return the message of an error as servers report it: an object with a `message`, or a text."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "")[:500]


async def _read_chunk(response: aiohttp.ClientResponse, deadlines: Deadlines) -> bytes:
    """Return the bytes that have arrived; empty at the end."""
    import aiohttp

    try:
        async with asyncio.timeout_at(deadlines.next):
            return await response.content.readany()
    except TimeoutError:
        raise deadlines.timeout_error() from None
    except (aiohttp.ClientError, OSError) as error:
        raise ProviderError(f"the connection to the model's server was cut: {error}") from error


def _split(parser: Splitter, chunk: bytes) -> list[str]:
    try:
        return parser.feed(chunk)
    except ValueError as error:
        raise ProviderError(f"the model's server sent something that is no event stream: {error}") from error


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
    # The circuit breaker counts timeouts, also those that the server or a proxy before it reports.
    if response.status in (408, 504):
        return ProviderTimeout(text)
    if not 400 <= response.status < 500:
        return ProviderError(text)
    return ProviderRefused(text, response.status, _retry_after(response.headers.get("Retry-After", "")))


def _retry_after(value: str) -> float | None:
    """Return the seconds of a Retry-After (RFC 9110 §10.2.3); its other form, a date, is ignored."""
    return float(value) if value.isascii() and value.isdigit() and len(value) < 8 else None
