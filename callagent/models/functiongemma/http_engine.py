"""A server that runs the weights, over HTTP: one streamed request per completion."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.models.functiongemma.engine import CompletionRequest, Piece
from callagent.models.functiongemma.wires import Splitter, Wire, error_text, read_event

if TYPE_CHECKING:
    import aiohttp

_BODY_LIMIT = 4 << 20
_ERROR_BODY_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ServerSettings:
    base_url: str
    model: str
    """The server's name for the weights."""
    api_key: str
    first_token_timeout: float
    """Seconds from the request to the first token."""
    total_timeout: float
    """Seconds from the request to the end of the answer."""


class HttpEngine:
    """A server in one of the dialects of `wires`; `close()` ends its connections."""

    def __init__(self, wire: Wire, settings: ServerSettings) -> None:
        self.constrains = wire.constrains
        self._wire = wire
        self._settings = settings
        self._url = wire.url(settings.base_url.rstrip("/"))
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        now = asyncio.get_running_loop().time()
        total = now + self._settings.total_timeout
        first = min(total, now + self._settings.first_token_timeout)
        response = await self._post(request, first)
        finished = False
        async with aclosing(self._events(response, first, total)) as events:
            async for event in events:
                if (piece := read_event(self._wire, event)) is None:
                    break
                finished = finished or piece.finished
                yield piece
        if not finished:
            raise ProviderError("the model's server ended the answer before it was whole")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, request: CompletionRequest, deadline: float) -> aiohttp.ClientResponse:
        import aiohttp

        body = self._wire.body(request, request.model or self._settings.model)
        key = self._settings.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._open().post(self._url, json=body, headers=headers, allow_redirects=False)
        except TimeoutError:
            raise ProviderTimeout("the model's server did not begin to answer in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(f"the model's server at {self._url} cannot be reached: {error}") from error
        if response.status == 200:
            return response
        try:
            raise await _refusal(response, deadline)
        finally:
            response.close()

    async def _events(self, response: aiohttp.ClientResponse, first: float, total: float) -> AsyncGenerator[str, None]:
        splitter, received = self._wire.splitter(), 0
        try:
            while chunk := await _chunk(response, total if received else first, begun=received > 0):
                received += len(chunk)
                if received > _BODY_LIMIT:
                    raise ProviderError(f"the model's answer is longer than {_BODY_LIMIT} bytes")
                for event in _split(splitter, chunk):
                    yield event
            # A last line may come without its end.
            for event in _split(splitter, b"\n\n"):
                yield event
        finally:
            # The socket goes with an answer that was not read to its end; the server stops generating.
            response.close()

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # The deadlines are ours; a limit on connections would make calls wait for one another.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session


async def _chunk(response: aiohttp.ClientResponse, deadline: float, *, begun: bool) -> bytes:
    """What has arrived; empty: the end."""
    import aiohttp

    try:
        async with asyncio.timeout_at(deadline):
            return await response.content.readany()
    except TimeoutError:
        what = "finish its answer" if begun else "begin to answer"
        raise ProviderTimeout(f"the model's server did not {what} in time") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ProviderError(f"the connection to the model's server was cut: {error}") from error


def _split(splitter: Splitter, chunk: bytes) -> list[str]:
    try:
        return splitter.feed(chunk)
    except ValueError as error:
        raise ProviderError(f"the model's server sent what is no event stream: {error}") from error


async def _refusal(response: aiohttp.ClientResponse, deadline: float) -> ProviderError:
    """What an HTTP error status means."""
    import aiohttp

    try:
        async with asyncio.timeout_at(deadline):
            body = await response.content.read(_ERROR_BODY_LIMIT)
        reason = error_text(json.loads(body).get("error"))
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, AttributeError):
        reason = ""
    text = f"the model's server answered {response.status} {response.reason or ''}".rstrip()
    text = f"{text}: {reason}" if reason else text
    if response.status in (408, 504):
        return ProviderTimeout(text)
    return ProviderRefused(text, response.status) if 400 <= response.status < 500 else ProviderError(text)
