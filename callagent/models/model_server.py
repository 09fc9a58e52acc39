"""Server-sent events (WHATWG HTML §9.2), as far as model servers use them: data fields only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.log import get_logger
from callagent.models.protocol import Delta

if TYPE_CHECKING:
    import aiohttp

    from callagent.models.protocol import ProviderSettings


class EventTooLong(ValueError):
    """A line or an event is longer than allowed."""


class EventParser:
    """Bytes in, the data of complete events out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that `chunk` completes.

        Raises `EventTooLong` beyond the limit and `UnicodeDecodeError` for what is not UTF-8.
        """
        self._line += chunk
        found: list[str] = []
        # A trailing CR may be the first half of a line's end: it waits for the next chunk.
        *lines, rest = _split_lines(self._line)
        self._line = bytearray(rest)
        for line in lines:
            if event := self._take(line.decode()):
                found.append(event)
        if len(self._line) > self._limit:
            raise EventTooLong(f"a line is longer than {self._limit} bytes")
        return found

    def _take(self, line: str) -> str:
        """The event that the line ends; empty: none."""
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
    """Complete lines, then the rest; lines end in LF, CRLF or CR."""
    if data.endswith(b"\r"):
        *lines, rest = bytes(data[:-1]).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return [*lines, rest + b"\r"]
    return bytes(data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


log = get_logger(__name__)

EVENT_LIMIT = 1 << 16
"""Bytes; a longer JSON text would hold up the media loop."""
_BODY_LIMIT = 4 << 20
_OPTIONAL = {"temperature": "temperature", "reasoning_effort": "reasoning_effort", "output_config": "effort"}
"""Fields that not every model takes -> the word by which a refusal (400) names them."""
_ERROR_BODY_LIMIT = 4096


@dataclass(slots=True)
class Deadlines:
    """Of one answer: instants of the loop's clock."""

    token: float
    """For the next token."""
    total: float
    next_token_timeout: float
    """Seconds."""
    answered: bool = False
    """The first token has come."""

    @classmethod
    def begin(cls, first_token_timeout: float, next_token_timeout: float, total_timeout: float) -> Deadlines:
        """Count from now on; the arguments are seconds."""
        now = asyncio.get_running_loop().time()
        return cls(now + first_token_timeout, now + total_timeout, next_token_timeout)

    @classmethod
    def of(cls, settings: ProviderSettings) -> Deadlines:
        """Count from now on."""
        return cls.begin(settings.first_token_timeout, settings.next_token_timeout, settings.total_timeout)

    def progress(self) -> None:
        """Note that a token has come; whoever reads the events tells."""
        self.answered = True
        self.token = asyncio.get_running_loop().time() + self.next_token_timeout

    @property
    def next(self) -> float:
        return min(self.token, self.total)

    def missed(self) -> ProviderTimeout:
        what = "begin to answer" if not self.answered else "finish its answer"
        if self.answered and self.token < self.total:
            what = "go on with its answer"
        return ProviderTimeout(f"the model's server did not {what} in time")


@dataclass(frozen=True, slots=True)
class Request:
    url: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class Splitter(Protocol):
    """How a stream's bytes become events."""

    def feed(self, chunk: bytes) -> list[str]:
        """The events that the chunk completes. Raises `ValueError`."""


class Answer(Protocol):
    """One answer in a provider's protocol, put together from the stream's events. No I/O."""

    @property
    def over(self) -> bool:
        """No further event is of interest."""

    def take(self, event: str) -> str | None:
        """The text that an event adds; empty for a part of a tool call or a thought, None for no part of the answer.

        Raises `ProviderError` for an error event and for what is no event.
        """

    def rest(self) -> Iterable[Delta]:
        """What is passed on at the end: tool calls, usage. Raises `ProviderError` where the answer is not whole."""


class ModelServer:
    """The connections to one provider; `close()` ends them."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._refused: set[tuple[str, str]] = set()
        """Models, and the field that they refuse: a temperature where they reason, an effort where they do not."""

    async def deltas(self, request: Request, deadlines: Deadlines, answer: Answer) -> AsyncGenerator[Delta, None]:
        """The answer, its text as it comes. Closing the generator closes the socket; raises as `events` does."""
        async with aclosing(self.events(request, deadlines)) as events:
            async for event in events:
                text = answer.take(event)
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
        """The events of the answer, server-sent unless `splitter` knows others. Closing it closes the socket.

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
            # A last line may come without its end.
            for event in _split(parser, b"\n\n"):
                yield event
        finally:
            # A stream that was not read to its end is no use to the next request; one that was goes back by itself.
            response.close()

    async def close(self) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def _answered(self, request: Request, deadlines: Deadlines) -> aiohttp.ClientResponse:
        """The response; asked for once more without each field that the model knows nothing of."""
        model = str(request.body.get("model"))
        while True:
            body = {key: value for key, value in request.body.items() if (model, key) not in self._refused}
            try:
                return await self._post(replace(request, body=body), deadlines)
            except ProviderRefused as refusal:
                refused = next((key for key, word in _OPTIONAL.items() if key in body and word in str(refusal)), None)
                if refusal.status != 400 or refused is None:
                    raise
                log.warning("model_setting_refused", model=model, setting=refused)
            self._refused.add((model, refused))

    async def _post(self, request: Request, deadlines: Deadlines) -> aiohttp.ClientResponse:
        """The response with status 200, its body unread."""
        import aiohttp

        headers = dict(request.headers)
        try:
            async with asyncio.timeout_at(deadlines.next):
                # The key must not follow a redirection to another host.
                response = await self._open_session().post(
                    request.url, json=request.body, headers=headers, allow_redirects=False
                )
        except TimeoutError:
            raise deadlines.missed() from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(f"the model's server at {request.url} cannot be reached: {error}") from error
        if response.status != 200:
            try:
                raise await _refusal(response, deadlines)
            finally:
                response.close()
        return response

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # The deadlines are ours; a limit on connections would make calls wait for one another.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session


def read_event(event: str, what: str) -> Mapping[str, Any]:
    """An event's JSON object; `what` names the protocol. Raises `ProviderError`, also for an event that is an error."""
    try:
        data = json.loads(event)
    except (ValueError, RecursionError) as error:
        raise not_of(what, event) from error
    if not isinstance(data, dict):
        raise not_of(what, event)
    if reported := data.get("error"):
        raise ProviderError(f"the model's server reported: {error_text(reported)}")
    return data


def not_of(what: str, event: str) -> ProviderError:
    return ProviderError(f"the model's server sent what is no {what}: {event[:200]!r}")


def error_text(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "")[:500]


async def _chunk(response: aiohttp.ClientResponse, deadlines: Deadlines) -> bytes:
    """What has arrived; empty: the end."""
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
    """What an HTTP error status means."""
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
    if response.status in (408, 504):
        return ProviderTimeout(text)
    if not 400 <= response.status < 500:
        return ProviderError(text)
    return ProviderRefused(text, response.status, _retry_after(response.headers.get("Retry-After", "")))


def _retry_after(value: str) -> float | None:
    """Seconds (RFC 9110 §10.2.3); a date is not used by these servers."""
    return float(value) if value.isascii() and value.isdigit() and len(value) < 8 else None
