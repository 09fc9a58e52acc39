"""The weights in a process of our own beside the calls: llama-cpp-python or transformers, where installed.

Inference would hold up the media loop, so it never runs in this process. The child is started with the first request
and loads the weights once; requests wait for one another.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from callagent.errors import ProviderError, ProviderTimeout, UserError
from callagent.log import get_logger
from callagent.models.functiongemma.engine import CompletionRequest, Piece
from callagent.models.protocol import Usage

log = get_logger(__name__)

_PACKAGES = {"gguf": ("llama_cpp", "llama-cpp-python"), "transformers": ("transformers", "transformers torch")}
_LOADING_SECONDS = 120.0
_CLOSING_SECONDS = 2.0
_LINE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalSettings:
    kind: str
    """`gguf` or `transformers`."""
    path: str
    first_token_timeout: float
    """Seconds, from when the process is free for the request."""
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
        """Raises `UserError` where the package or the weights are missing."""
        module, packages = _PACKAGES[kind]
        if importlib.util.find_spec(module) is None:
            raise UserError(f"functiongemma/{kind} needs a package: pip install {packages}")
        if not Path(path).exists():
            raise UserError(f"functiongemma/{kind}: there are no weights at {path}")
        return cls(LocalSettings(kind, path, first_token_timeout, total_timeout))

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        async with self._free:
            process = await self._running()
            self._number += 1
            done = False
            try:
                await self._send(process, {"number": self._number, **_plain(request)})
                deadline = asyncio.get_running_loop().time() + self._settings.first_token_timeout
                total = asyncio.get_running_loop().time() + self._settings.total_timeout
                while not done:
                    message = await self._receive(process, min(deadline, total))
                    deadline, done = total, _is_last(message)
                    yield _piece(message)
            finally:
                if not done:
                    await self._abandon(process)

    async def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await _end(process)

    async def _running(self) -> asyncio.subprocess.Process:
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
        except BaseException:
            self._process = None
            await _end(process)
            raise
        return process

    async def _send(self, process: asyncio.subprocess.Process, message: dict[str, object]) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            await process.stdin.drain()
        except ConnectionError as error:
            raise ProviderError("the model's process has ended") from error

    async def _receive(self, process: asyncio.subprocess.Process, deadline: float) -> dict[str, object]:
        assert process.stdout is not None
        try:
            async with asyncio.timeout_at(deadline):
                line = await process.stdout.readline()
        except TimeoutError:
            raise ProviderTimeout("the model's process did not answer in time") from None
        except ValueError as error:
            raise ProviderError("the model's process sent too long a line") from error
        if not line:
            raise ProviderError("the model's process has ended")
        message: dict[str, object] = json.loads(line)
        return message

    async def _abandon(self, process: asyncio.subprocess.Process) -> None:
        """Stop an answer that nobody wants, so that the next request finds a quiet process."""
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


def _plain(request: CompletionRequest) -> dict[str, object]:
    return {
        "prompt": request.prompt_without_bos,
        "stops": request.stops,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "grammar": request.grammar,
    }


def _is_last(message: dict[str, object]) -> bool:
    return "done" in message or "error" in message


def _piece(message: dict[str, object]) -> Piece:
    if error := message.get("error"):
        raise ProviderError(f"the model's process reported: {error}")
    counts = message.get("done")
    if isinstance(counts, list):
        return Piece(usage=Usage(*counts), finished=True)
    return Piece(str(message.get("text", "")))
