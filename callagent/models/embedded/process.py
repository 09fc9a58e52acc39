"""One process of the small model, as the core sees it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from callagent.errors import ProviderError, ProviderTimeout
from callagent.log import get_logger
from callagent.models.embedded.weights import NeedleFiles

log = get_logger(__name__)

_MODULE = Path(__file__).with_name("needle_process.py")
_LINE_LIMIT = 1 << 18
_MOST_WAITING = 16
"""Requests; a process that is so far behind is asked nothing more."""
_ENVIRONMENT = {"NEEDLE_TELEMETRY": "0", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}


class NeedleProcess:
    """Started with the first request, again after it has died; `close()` ends it.

    Requests are answered in their order. One that nobody waits for any more is answered all the same, into the void.
    """

    def __init__(self, files: NeedleFiles) -> None:
        self._files = files
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def ask(self, request: dict[str, Any], timeout: float) -> Any:
        """The answer; `timeout` in seconds. Raises `ProviderError`; a process that is too late is ended."""
        if self.waiting >= _MOST_WAITING:
            raise ProviderError("the embedded model is behind")
        process = await self._running()
        self._number += 1
        number = self._number
        self._waiting[number] = answered = asyncio.get_running_loop().create_future()
        assert process.stdin
        process.stdin.write(json.dumps({"number": number, **request}).encode() + b"\n")
        try:
            async with asyncio.timeout(timeout):
                # Whoever gives up leaves the future to the reader, which counts it as waiting until it is answered.
                answer = await asyncio.shield(answered)
        except TimeoutError:
            log.warning("model_process_late", pid=process.pid)
            await self.close()
            raise ProviderTimeout("the embedded model did not answer in time") from None
        if error := answer.get("error"):
            raise ProviderError(f"the embedded model: {error}")
        return answer.get("answer")

    async def close(self) -> None:
        process, self._process = self._process, None
        reader, self._reader = self._reader, None
        if process is not None and process.returncode is None:
            process.kill()
        if reader is not None:
            await reader
        if process is not None:
            await process.wait()
            assert process.stdin
            process.stdin.close()

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._process
            await self.close()
            files = self._files
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", str(_MODULE), str(files.library), str(files.weights), files.sha256),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_ENVIRONMENT,
                limit=_LINE_LIMIT,
            )
            self._reader = asyncio.create_task(self._read(self._process))
            log.info("model_process_started", model="embedded", pid=self._process.pid)
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Until the process ends."""
        assert process.stdout
        try:
            while line := await process.stdout.readline():
                answer = json.loads(line)
                waiting = self._waiting.pop(answer["number"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (ValueError, LookupError) as error:
            log.error("model_process_garbled", error=str(error))
            process.kill()
        abandoned, self._waiting = self._waiting, {}
        for future in abandoned.values():
            if not future.done():
                future.set_result({"error": "its process has ended"})
