"""One call's worker process, replaced whenever it is killed or dies, and the count of such processes.

`ProcessLease.run` enforces a function's deadline: when it has passed, the worker is killed, and the next run starts a
new one from the call's last checkpoint.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from callagent.errors import CallagentError, FunctionTimeout, WorkerDied, WorkerError
from callagent.log import get_logger
from callagent.workers.private_folder import PrivateFolder
from callagent.workers.protocol import Frame, FrameError, FrameReader, OnMessage, Plain, encode_frame, merge_checkpoint
from callagent.workers.zygote_process import OutputReader, WorkerProcess, ZygoteProcess, describe_status


@dataclass(slots=True)
class WorkerFigures:
    """The number of workers that run now, and counts of workers since the server started."""

    live: int = 0
    """Workers that run now, one for each call with project code."""
    started: int = 0
    """Workers started, replacements included."""
    killed: int = 0
    """Workers killed because a function did not end in time."""
    died: int = 0
    """Workers that ended by themselves: a crash, or a limit of the operating system."""
    replaced: int = 0
    """Workers started from a call's last checkpoint in place of one that was killed or died."""

    def lines(self) -> Iterable[str]:
        """Yield the counts as lines of Prometheus text."""
        yield from _family("callagent_workers_live", "gauge", "Worker processes that run now.", self.live)
        for name, text, value in (
            ("started", "Worker processes started.", self.started),
            ("killed", "Workers killed because a function did not end in time.", self.killed),
            ("died", "Workers that ended by themselves.", self.died),
            ("replaced", "Workers started in place of one that was killed or died.", self.replaced),
        ):
            yield from _family(f"callagent_workers_{name}_total", "counter", text, value)


def _family(name: str, kind: str, text: str, value: int) -> Iterable[str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"


WORKER_FIGURES: Final = WorkerFigures()
"""The counts of this process: a server has one set of workers."""


log = get_logger(__name__)

_READ_BYTES = 256 * 1024
_STATUS_SECONDS = 0.2
"""Time to wait for the exit status of a worker that has closed its socket; the zygote reports it a moment later."""
_CLOSE_SECONDS = 2.0
"""Time to wait until a killed worker has ended and can no longer write to the call's folder."""

Fork = Callable[[ZygoteProcess | None, str], Awaitable[WorkerProcess]]
"""Forks a worker that may write to the given folder: from the given zygote if it still runs, or else from the pool's
present one."""

OnClose = Callable[["ProcessLease", ZygoteProcess | None], Awaitable[None]]
"""Called when a lease has closed, with the zygote that its last worker came from."""


class ProcessLease:
    """A `Lease` with at most one worker process at any time. The next run replaces a worker that was killed or died."""

    def __init__(self, fork: Fork, context: Plain, output_limit: int, folder: PrivateFolder, on_close: OnClose) -> None:
        self._fork = fork
        self._folder = folder
        self._context = context
        self._on_close = on_close
        self._output_bytes_left = output_limit
        self._checkpoint: dict[str, bytes] = {}
        self._link: _WorkerConnection | None = None
        self._zygote: ZygoteProcess | None = None
        self._busy = False
        self._needs_replacement = False
        """A worker was killed or died and has no successor yet."""
        self._closed = False
        self._exits: list[asyncio.Future[int]] = []
        """Exit statuses of ended workers."""

    @property
    def pid(self) -> int | None:
        """Process id of the present worker; None: there is none."""
        return self._link.process.pid if self._link is not None else None

    async def start(self) -> None:
        """Fork a worker and open the call's session in it, from the last checkpoint. Raises `WorkerDied`."""
        process = await self._fork(self._zygote, self._folder.path)
        self._zygote = process.zygote
        link = _WorkerConnection(process, self._output_bytes_left)
        WORKER_FIGURES.live += 1
        WORKER_FIGURES.started += 1
        WORKER_FIGURES.replaced += self._needs_replacement
        self._needs_replacement = False
        with ExitStack() as undo:
            undo.callback(self._end_process, link)
            await link.send("open", 0, {"context": self._context, "checkpoint": self._checkpoint})
            undo.pop_all()
        self._link = link

    async def run(self, request: Plain, *, timeout: float, on_message: OnMessage) -> Plain:
        if self._closed:
            raise WorkerDied("the lease is closed")
        if self._busy:
            raise RuntimeError("a lease runs one request at a time")
        self._busy = True
        try:
            # The deadline is the function's; starting a worker does not count, and has limits of its own.
            await self._ensure_worker()
            answer = await self._run_with_deadline(timeout, request, on_message)
            if excess := await self._empty_overfull_folder():
                raise WorkerDied(f"the function left {excess}; the folder was emptied")
        except WorkerError:
            # Files of a function that was killed count as well: the next function must not find the disk full.
            await self._empty_overfull_folder()
            raise
        finally:
            self._busy = False
        merge_checkpoint(self._checkpoint, answer.pop("checkpoint", {}))
        return answer

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end_worker()
        await self._wait_ended()
        await self._folder.remove()
        await self._on_close(self, self._zygote)

    async def _wait_ended(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                for ended in self._exits:
                    await asyncio.shield(ended)
        except TimeoutError:
            log.warning("worker_did_not_end")

    async def _empty_overfull_folder(self) -> str:
        """Empty the call's folder if it exceeds a limit; return which one, or an empty text.

        The worker is ended first, because a thread of it might go on writing.
        """
        excess = await self._folder.find_excess()
        if excess:
            self._needs_replacement = True
            self._end_worker()
            await self._wait_ended()
            await self._folder.clear()
        return excess

    async def _ensure_worker(self) -> None:
        """Start a worker unless one is running."""
        if self._link is not None and self._link.ended:
            WORKER_FIGURES.died += 1
            log.warning("worker_ended_between_functions", status=await self._link.status())
            self._needs_replacement = True
            self._end_worker()
        if self._link is None:
            await self.start()

    async def _run_with_deadline(self, timeout: float, request: Plain, on_message: OnMessage) -> Plain:
        """Run one request. A failure is raised after the output that came before it has been delivered."""
        deadline = asyncio.timeout(timeout)
        failure: WorkerError | None = None
        answer: Plain = {}
        with ExitStack() as undo:
            # If anything else is raised, such as a cancellation or an error of `on_message`, the process may still be
            # at work: it is discarded, and the next run starts another one from the checkpoint.
            undo.callback(self._end_worker)
            try:
                async with deadline:
                    answer = await self._exchange(request, on_message)
            except TimeoutError:
                if not deadline.expired():
                    raise
                failure = FunctionTimeout(f"no answer within {timeout:g} s")
                WORKER_FIGURES.killed += 1
            except WorkerDied as died:
                failure = died
                WORKER_FIGURES.died += 1
            undo.pop_all()
        lines = self._link.output.take_lines() if self._link is not None else []
        if failure is not None:
            self._needs_replacement = True
            self._end_worker()
        for line in lines:
            await _deliver({"type": "output", "text": line}, on_message)
        if failure is not None:
            raise failure
        return answer

    async def _exchange(self, request: Plain, on_message: OnMessage) -> Plain:
        link = self._link
        assert link is not None
        # Answers carry the number of their run, so that the answer to an earlier run is not taken for this one's.
        link.runs += 1
        await link.send("run", link.runs, request)
        while True:
            kind, number, payload = await link.receive()
            if kind == "answer" and number == link.runs and isinstance(payload, dict):
                return payload
            if kind == "failed" and number == link.runs:
                raise WorkerDied(str(payload))
            if kind == "message" and isinstance(payload, dict):
                await _deliver(payload, on_message)
            elif kind == "ask" and isinstance(payload, dict):
                await link.send("reply", number, await _make_reply(payload, on_message))

    def _end_worker(self) -> None:
        if self._link is not None:
            self._end_process(self._link)
            self._link = None

    def _end_process(self, link: _WorkerConnection) -> None:
        WORKER_FIGURES.live -= 1
        self._exits = [ended for ended in self._exits if not ended.done()]
        self._exits.append(link.process.ended)
        self._output_bytes_left = max(link.output.bytes_left, 0)
        link.close()


async def _deliver(message: Plain, on_message: OnMessage) -> object:
    """Return the answer to a message, which is None unless the running code asked for one."""
    result = on_message(message)
    return await result if inspect.isawaitable(result) else result


async def _make_reply(message: Plain, on_message: OnMessage) -> Plain:
    try:
        return {"value": await _deliver(message, on_message)}
    except CallagentError as error:
        return {"error": str(error) or type(error).__name__}


class _WorkerConnection:
    """The core's connection to one worker process: its socket, its output and whether it has ended."""

    def __init__(self, process: WorkerProcess, output_bytes_left: int) -> None:
        self.process = process
        self.output = OutputReader(process.output, output_bytes_left)
        self.runs = 0
        self.ended = False
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(process.pidfd, self._on_exit)

    async def send(self, kind: str, number: int, payload: object) -> None:
        """Send a frame. Raises `WorkerDied`."""
        try:
            await self._loop.sock_sendall(self.process.socket, encode_frame(kind, number, payload))
        except OSError:
            raise WorkerDied(f"the worker {await self.status()}") from None
        except FrameError as error:
            raise WorkerDied(str(error)) from None

    async def receive(self) -> Frame:
        """Return the next frame. Raises `WorkerDied`."""
        while not self._frames:
            try:
                data = await self._loop.sock_recv(self.process.socket, _READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                raise WorkerDied(f"the worker {await self.status()}")
            try:
                self._frames.extend(self._reader.feed(data))
            except FrameError as error:
                raise WorkerDied(f"the worker sent a frame that cannot be read: {error}") from None
        return self._frames.popleft()

    async def status(self) -> str:
        """Return how the process ended, for an error "the worker …"; wait for its end for `_STATUS_SECONDS`."""
        try:
            async with asyncio.timeout(_STATUS_SECONDS):
                return describe_status(await asyncio.shield(self.process.ended))
        except TimeoutError:
            return "closed its socket"

    def close(self) -> None:
        self.process.kill()
        self.output.close()
        self._loop.remove_reader(self.process.pidfd)
        os.close(self.process.pidfd)
        self.process.socket.close()

    def _on_exit(self) -> None:
        self.ended = True
        self._loop.remove_reader(self.process.pidfd)
        # Children of the worker may hold the other end open, and then `receive` would wait for ever. After the shutdown
        # it gets what is still in the buffer and then the end of the stream.
        try:
            self.process.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
