"""A server that runs the weights, over HTTP: one streamed request per completion."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from callagent.errors import ProviderError
from callagent.models.functiongemma.engine import CompletionRequest, Piece
from callagent.models.functiongemma.wires import Wire, read_event
from callagent.models.model_server import Deadlines, ModelServer, Request


@dataclass(frozen=True, slots=True)
class ServerSettings:
    base_url: str
    model: str
    """The server's name for the weights."""
    api_key: str
    first_token_timeout: float
    """Seconds from the request to the first token."""
    next_token_timeout: float
    """Seconds from one token to the next."""
    total_timeout: float
    """Seconds from the request to the end of the answer."""


class HttpEngine:
    """A server in one of the dialects of `wires`; `close()` ends its connections."""

    def __init__(self, wire: Wire, settings: ServerSettings) -> None:
        self.constrains = wire.constrains
        self._wire = wire
        self._settings = settings
        self._url = wire.url(settings.base_url.rstrip("/"))
        self._server = ModelServer()

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        """Closing the iterator closes the socket, and the server stops generating."""
        settings = self._settings
        deadlines = Deadlines.begin(settings.first_token_timeout, settings.next_token_timeout, settings.total_timeout)
        finished = False
        events = self._server.events(self._asked(request), deadlines, self._wire.splitter())
        async with aclosing(events):
            async for event in events:
                deadlines.progress()
                if (piece := read_event(self._wire, event)) is None:
                    break
                finished = finished or piece.finished
                yield piece
        if not finished:
            raise ProviderError("the model's server ended the answer before it was whole")

    async def close(self) -> None:
        await self._server.close()

    def _asked(self, request: CompletionRequest) -> Request:
        key = self._settings.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return Request(self._url, headers, self._wire.body(request, request.model or self._settings.model))
