"""Engines that run the weights: servers (llama.cpp, Ollama, vLLM), or a process of our own.

Every server gets the rendered prompt, because chat endpoints would render one of their own. None may stop at the end of
a call, because a parallel call may follow, and each is told to leave the control tokens in its text.

Inference would block the media loop, so it never runs in this process. The other process runs llama-cpp-python or
transformers, if installed; it starts with the first request and loads the weights once.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from callagent.errors import ProviderError, ProviderTimeout, UserError
from callagent.json_values import JsonObject, parse_object
from callagent.log import get_logger
from callagent.models import model_server
from callagent.models.model_server import (
    EVENT_LIMIT,
    Deadlines,
    EventParser,
    ModelServer,
    Request,
    Splitter,
    as_int,
    as_list,
    as_object,
)
from callagent.models.protocol import Usage

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A text that the weights are to continue."""

    prompt: str
    """Begins with `bos`; an engine that adds this token itself takes `prompt_without_bos`."""
    bos: str
    """The token that begins every text (beginning of sequence)."""
    stops: tuple[str, ...]
    """Tokens that end the answer."""
    special: tuple[str, ...]
    """Control tokens that must be in the answer's text."""
    max_tokens: int
    temperature: float
    model: str = ""
    """The engine's own name for the weights; empty: the one it was opened with."""
    grammar: str = ""
    """GBNF grammar (of llama.cpp) that the answer must fit, if the engine `constrains`; empty: none."""

    @property
    def prompt_without_bos(self) -> str:
        return self.prompt.removeprefix(self.bos)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the answer; the last one has `finished`."""

    text: str = ""
    usage: Usage | None = None
    finished: bool = False


class CompletionEngine(Protocol):
    """An engine that runs the weights, shared by all calls."""

    constrains: bool
    """Whether a request's grammar has an effect."""

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Piece, None]:
        """Yield the continuation. Closing the generator stops it. Raises `ProviderError`."""

    async def close(self) -> None:
        """End the connections or the process."""


_PROTOCOL = "completion"
_DONE = "[DONE]"


class Wire(Protocol):
    """The protocol of one kind of server."""

    @property
    def default_url(self) -> str:
        """The server's default address."""

    @property
    def default_model(self) -> str:
        """The server's name for the weights; empty where it serves one model only."""

    @property
    def constrains(self) -> bool:
        """Whether the server supports a grammar."""

    def url(self, base: str) -> str:
        """Return the URL of requests; `base` is the server's address."""

    def body(self, request: CompletionRequest, model: str) -> Mapping[str, object]:
        """Return the request's JSON data."""

    def splitter(self) -> Splitter:
        """Return a new parser of an answer's events."""

    def piece(self, event: JsonObject) -> Piece:
        """Return an event's part of the answer. Raises `LookupError` or `ValueError` for an unexpected event."""


class LineSplitter:
    """A `Splitter` for answers with one JSON text per line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        """Return the lines that the chunk completes. Raises `ValueError`."""
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

    def body(self, request: CompletionRequest, model: str) -> Mapping[str, object]:
        body: dict[str, object] = {
            # The server itself puts `bos` before every prompt.
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

    def piece(self, event: JsonObject) -> Piece:
        if not event.get("stop"):
            return Piece(str(event["content"]))
        usage = _usage(event.get("tokens_evaluated"), event.get("tokens_predicted"))
        return Piece(str(event.get("content") or ""), usage, finished=True)


@dataclass(frozen=True, slots=True)
class OllamaWire:
    """Ollama, `POST /api/generate` with `raw`, which turns its own renderer and parser off."""

    default_url: str = "http://127.0.0.1:11434"
    default_model: str = "functiongemma"
    constrains: bool = False

    def url(self, base: str) -> str:
        return f"{base.removesuffix('/v1')}/api/generate"

    def body(self, request: CompletionRequest, model: str) -> Mapping[str, object]:
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

    def piece(self, event: JsonObject) -> Piece:
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

    def body(self, request: CompletionRequest, model: str) -> Mapping[str, object]:
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
            # The prompt begins with `bos` already.
            "add_special_tokens": False,
        }

    def splitter(self) -> Splitter:
        return EventParser(EVENT_LIMIT)

    def piece(self, event: JsonObject) -> Piece:
        text, finished = "", False
        for choice in as_list(event.get("choices") or ())[:1]:
            part = as_object(choice)
            text, finished = str(part.get("text") or ""), bool(part.get("finish_reason"))
        counted = as_object(event.get("usage") or {})
        return Piece(text, _usage(counted.get("prompt_tokens"), counted.get("completion_tokens")), finished)


WIRES: dict[str, Wire] = {"llamacpp": LlamaCppWire(), "ollama": OllamaWire(), "vllm": VllmWire()}


def read_event(wire: Wire, event: str) -> Piece | None:
    """Return the piece of an answer in an event; None at the end of the stream. Raises `ProviderError`."""
    if event == _DONE:
        return None
    try:
        return wire.piece(model_server.read_event(event, _PROTOCOL))
    except (ValueError, LookupError) as error:
        raise model_server.unexpected_event(_PROTOCOL, event) from error


def _usage(prompt: object, answer: object) -> Usage | None:
    if isinstance(prompt, int) and isinstance(answer, int):
        return Usage(prompt, answer)
    # A server that has the prompt in its cache does not count it.
    return Usage(0, answer) if isinstance(answer, int) else None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server is reached."""

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

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Piece, None]:
        """Yield the continuation. Closing the generator closes the socket, and the server stops generating."""
        settings = self._settings
        deadlines = Deadlines.from_now(
            settings.first_token_timeout, settings.next_token_timeout, settings.total_timeout
        )
        finished = False
        events = self._server.events(self._http_request(request), deadlines, self._wire.splitter())
        async with aclosing(events):
            async for event in events:
                deadlines.progress()
                # vLLM sends the token counts after the last piece, so the loop ends only with the stream.
                if (piece := read_event(self._wire, event)) is None:
                    break
                finished = finished or piece.finished
                yield piece
        if not finished:
            raise ProviderError("the model's server ended the answer before it was whole")

    async def close(self) -> None:
        await self._server.close()

    def _http_request(self, request: CompletionRequest) -> Request:
        key = self._settings.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return Request(self._url, headers, self._wire.body(request, request.model or self._settings.model))


_PACKAGES = {"gguf": ("llama_cpp", "llama-cpp-python"), "transformers": ("transformers", "transformers torch")}
_LOADING_SECONDS = 120.0
"""Seconds that the process may take to load the weights."""
_CLOSING_SECONDS = 2.0
"""Seconds that a cancelled answer may take to stop; then the process is ended."""
_LINE_LIMIT = 1 << 20
"""Bytes of one message of the process."""


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """The weights of a process, and its time limits in seconds."""

    kind: str
    """`gguf` or `transformers`."""
    path: str
    first_token_timeout: float
    """Counted from when the process is free for the request."""
    total_timeout: float


class LocalEngine:
    """One process with the weights; `close()` ends it."""

    def __init__(self, settings: LocalSettings) -> None:
        self.constrains = settings.kind == "gguf"
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._free = asyncio.Lock()
        self._number = 0

    @classmethod
    def open(cls, kind: str, path: str, first_token_timeout: float, total_timeout: float) -> LocalEngine:
        """Return an engine; the first request starts its process. Raises `UserError` for a missing package or file."""
        module, packages = _PACKAGES[kind]
        if importlib.util.find_spec(module) is None:
            raise UserError(f"functiongemma/{kind} needs a package: pip install {packages}")
        if not Path(path).exists():
            raise UserError(f"functiongemma/{kind}: there are no weights at {path}")
        return cls(LocalSettings(kind, path, first_token_timeout, total_timeout))

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Piece, None]:
        """Yield the continuation, once the requests before it are answered. Closing the generator stops it."""
        # One request at a time: the weights have one state, and two answers would only share the processor.
        async with self._free:
            process = await self._ensure_running()
            self._number += 1
            done = False
            try:
                await self._send(process, {"number": self._number, **_to_message(request)})
                deadline = asyncio.get_running_loop().time() + self._settings.first_token_timeout
                total = asyncio.get_running_loop().time() + self._settings.total_timeout
                while not done:
                    message = await self._receive(process, min(deadline, total))
                    # After the first token only the whole answer has a deadline: there is no network that could stall.
                    deadline, done = total, _is_last(message)
                    yield _piece(message)
            finally:
                if not done:
                    await self._cancel_answer(process)

    async def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await _end(process)

    async def _ensure_running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        command = (sys.executable, "-m", "callagent.models.functiongemma.local_worker")
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            self._settings.kind,
            self._settings.path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT,
        )
        log.info("model_process_started", kind=self._settings.kind, pid=process.pid)
        try:
            await self._receive(process, asyncio.get_running_loop().time() + _LOADING_SECONDS)
        # A cancellation while the weights are loading must end the process as well.
        except BaseException:
            self._process = None
            await _end(process)
            raise
        return process

    async def _send(self, process: asyncio.subprocess.Process, message: Mapping[str, object]) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            await process.stdin.drain()
        except ConnectionError as error:
            raise ProviderError("the model's process has ended") from error

    async def _receive(self, process: asyncio.subprocess.Process, deadline: float) -> JsonObject:
        assert process.stdout is not None
        try:
            async with asyncio.timeout_at(deadline):
                line = await process.stdout.readline()
        except TimeoutError:
            raise ProviderTimeout("the model's process did not answer in time") from None
        except ValueError as error:
            raise ProviderError(f"the model's process sent a line of more than {_LINE_LIMIT} bytes") from error
        if not line:
            raise ProviderError("the model's process has ended")
        return parse_object(line)

    async def _cancel_answer(self, process: asyncio.subprocess.Process) -> None:
        """Cancel an answer that nobody waits for, so that the process is free for the next request."""
        try:
            await self._send(process, {"cancel": self._number})
            deadline = asyncio.get_running_loop().time() + _CLOSING_SECONDS
            while not _is_last(await self._receive(process, deadline)):
                pass
        except ProviderError:
            self._process = None
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _to_message(request: CompletionRequest) -> Mapping[str, object]:
    return {
        "prompt": request.prompt_without_bos,
        "stops": request.stops,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "grammar": request.grammar,
    }


def _is_last(message: JsonObject) -> bool:
    return "done" in message or "error" in message


def _piece(message: JsonObject) -> Piece:
    if error := message.get("error"):
        raise ProviderError(f"the model's process reported: {error}")
    if "done" in message:
        read, written = as_list(message["done"])
        return Piece(usage=Usage(as_int(read), as_int(written)), finished=True)
    return Piece(str(message.get("text", "")))
