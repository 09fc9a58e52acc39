"""Servers that run the weights (llama.cpp, Ollama, vLLM): what each is sent, and a streamed request per completion.

Every server gets the prompt as it stands, because the chat endpoints would write their own. None of them may stop at
the end of a call, because a parallel call may follow, and each is told to leave the control tokens in its text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from callagent.errors import ProviderError
from callagent.models import model_server
from callagent.models.functiongemma.engine import CompletionRequest, Piece
from callagent.models.model_server import EVENT_LIMIT, Deadlines, EventParser, ModelServer, Request, Splitter
from callagent.models.protocol import Usage

_PROTOCOL = "completion"
_DONE = "[DONE]"


class Wire(Protocol):
    @property
    def default_url(self) -> str: ...

    @property
    def default_model(self) -> str: ...

    @property
    def constrains(self) -> bool: ...

    def url(self, base: str) -> str: ...

    def body(self, request: CompletionRequest, model: str) -> dict[str, Any]: ...

    def splitter(self) -> Splitter: ...

    def piece(self, event: Mapping[str, Any]) -> Piece:
        """Raises `LookupError`, `TypeError`, `ValueError` for what is no event of this wire."""


class LineSplitter:
    """One JSON text per line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if any(len(line) > self._limit for line in (*lines, self._rest)):
            raise ValueError(f"a line is longer than {self._limit} bytes")
        return [line.decode() for line in lines if line.strip()]


@dataclass(frozen=True, slots=True)
class LlamaCppWire:
    """llama.cpp's server, `POST /completion`."""

    default_url: str = "http://127.0.0.1:8080"
    default_model: str = ""
    constrains: bool = True

    def url(self, base: str) -> str:
        return f"{base.removesuffix('/v1')}/completion"

    def body(self, request: CompletionRequest, model: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            # The server begins every prompt with the token of its own.
            "prompt": request.prompt_without_bos,
            "stream": True,
            "n_predict": request.max_tokens,
            "temperature": request.temperature,
            "stop": list(request.stops),
            "preserved_tokens": list(request.special),
            "cache_prompt": True,
        }
        return body | ({"grammar": request.grammar} if request.grammar else {})

    def splitter(self) -> Splitter:
        return EventParser(EVENT_LIMIT)

    def piece(self, event: Mapping[str, Any]) -> Piece:
        if not event.get("stop"):
            return Piece(str(event["content"]))
        usage = _usage(event.get("tokens_evaluated"), event.get("tokens_predicted"))
        return Piece(str(event.get("content") or ""), usage, finished=True)


@dataclass(frozen=True, slots=True)
class OllamaWire:
    """Ollama, `POST /api/generate` with `raw`: neither its renderer nor its parser takes part."""

    default_url: str = "http://127.0.0.1:11434"
    default_model: str = "functiongemma"
    constrains: bool = False

    def url(self, base: str) -> str:
        return f"{base.removesuffix('/v1')}/api/generate"

    def body(self, request: CompletionRequest, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": request.prompt_without_bos,
            "raw": True,
            "stream": True,
            "options": {
                "num_predict": request.max_tokens,
                "temperature": request.temperature,
                "stop": list(request.stops),
            },
        }

    def splitter(self) -> Splitter:
        return LineSplitter(EVENT_LIMIT)

    def piece(self, event: Mapping[str, Any]) -> Piece:
        if not event.get("done"):
            return Piece(str(event["response"]))
        usage = _usage(event.get("prompt_eval_count"), event.get("eval_count"))
        return Piece(str(event.get("response") or ""), usage, finished=True)


@dataclass(frozen=True, slots=True)
class VllmWire:
    """vLLM, `POST /v1/completions`."""

    default_url: str = "http://127.0.0.1:8000/v1"
    default_model: str = "google/functiongemma-270m-it"
    constrains: bool = False

    def url(self, base: str) -> str:
        return f"{base.removesuffix('/v1')}/v1/completions"

    def body(self, request: CompletionRequest, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": request.prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stop": list(request.stops),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            # The prompt has its own.
            "add_special_tokens": False,
        }

    def splitter(self) -> Splitter:
        return EventParser(EVENT_LIMIT)

    def piece(self, event: Mapping[str, Any]) -> Piece:
        text, finished = "", False
        for choice in (event.get("choices") or ())[:1]:
            text, finished = str(choice.get("text") or ""), bool(choice.get("finish_reason"))
        counted = event.get("usage") or {}
        return Piece(text, _usage(counted.get("prompt_tokens"), counted.get("completion_tokens")), finished)


WIRES: dict[str, Wire] = {"llamacpp": LlamaCppWire(), "ollama": OllamaWire(), "vllm": VllmWire()}


def read_event(wire: Wire, event: str) -> Piece | None:
    """The piece that an event is; None: the end of the stream. Raises `ProviderError`."""
    if event == _DONE:
        return None
    try:
        return wire.piece(model_server.read_event(event, _PROTOCOL))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise model_server.not_of(_PROTOCOL, event) from error


def _usage(prompt: object, answer: object) -> Usage | None:
    if isinstance(prompt, int) and isinstance(answer, int):
        return Usage(prompt, answer)
    # A prompt that the server still had is not counted again.
    return Usage(0, answer) if isinstance(answer, int) else None


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
    """A server that speaks one of the protocols of `WIRES`; `close()` ends its connections."""

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
