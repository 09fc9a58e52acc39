"""One call's worker process, replaced whenever it is killed or dies, and the count of such processes.

The deadline of a function ends here: `ProcessLease.run` kills the worker, and a new one starts from the call's last
checkpoint.
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
    """Counts of worker processes since the server began, and how many there are now."""

    live: int = 0
    """Workers that are there now, one for each call with project code."""
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
        yield from _family("callagent_workers_live", "gauge", "Worker processes that are there.", self.live)
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
"""For the exit status of a worker that has closed its socket; the zygote reports it a moment later."""
_CLOSE_SECONDS = 2.0
"""For a killed worker to be reaped, after which nothing of it can write to the call's folder any more."""

Fork = Callable[[ZygoteProcess | None, str], Awaitable[WorkerProcess]]
"""Fork a worker, from the given zygote while that lives, else from the pool's current one. It writes to the folder."""

OnClose = Callable[["ProcessLease", ZygoteProcess | None], Awaitable[None]]


class ProcessLease:
    """`Lease` with a process. At any time there is one worker at most, and a killed one is replaced by the next run."""

    def __init__(self, fork: Fork, context: Plain, output_bytes: int, folder: PrivateFolder, on_close: OnClose) -> None:
        self._fork = fork
        self._folder = folder
        self._context = context
        self._on_close = on_close
        self._output_left = output_bytes
        self._checkpoint: dict[str, bytes] = {}
        self._link: _WorkerConnection | None = None
        self._zygote: ZygoteProcess | None = None
        self._busy = False
        self._lost = False
        """A worker was killed or died and has no successor yet."""
        self._closed = False
        self._ending: list[asyncio.Future[int]] = []

    @property
    def pid(self) -> int | None:
        """Identifier of the worker process that is there now."""
        return self._link.process.pid if self._link is not None else None

    async def start(self) -> None:
        """Have a worker forked and the call's session opened in it, from the last checkpoint. Raises `WorkerDied`."""
        process = await self._fork(self._zygote, self._folder.path)
        self._zygote = process.zygote
        link = _WorkerConnection(process, self._output_left)
        WORKER_FIGURES.live += 1
        WORKER_FIGURES.started += 1
        WORKER_FIGURES.replaced += self._lost
        self._lost = False
        with ExitStack() as undo:
            undo.callback(self._drop, link)
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
            # The deadline is the function's, which has not begun yet; starting a worker has limits of its own.
            await self._worker()
            answer = await self._run_until(timeout, request, on_message)
            if excess := await self._empty_overfull_folder():
                raise WorkerDied(f"the function left {excess}; the folder was emptied")
        except WorkerError:
            # What a killed function has written counts as well: the next one must not find the disk full.
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
        self._discard()
        await self._wait_ended()
        await self._folder.remove()
        await self._on_close(self, self._zygote)

    async def _wait_ended(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                for ended in self._ending:
                    await asyncio.shield(ended)
        except TimeoutError:
            log.warning("worker_did_not_end")

    async def _empty_overfull_folder(self) -> str:
        """Return what a function has left too much of; empty if nothing.

        If so, the worker is ended before its folder is emptied: a thread of it might write on.
        """
        excess = await self._folder.find_excess()
        if excess:
            self._lost = True
            self._discard()
            await self._wait_ended()
            await self._folder.clear()
        return excess

    async def _worker(self) -> None:
        """Make sure that there is a worker."""
        if self._link is not None and self._link.ended:
            WORKER_FIGURES.died += 1
            log.warning("worker_ended_between_functions", status=await self._link.status())
            self._lost = True
            self._discard()
        if self._link is None:
            await self.start()

    async def _run_until(self, timeout: float, request: Plain, on_message: OnMessage) -> Plain:
        """Run one request. A failure is raised after the output that came before it has been delivered."""
        deadline = asyncio.timeout(timeout)
        failure: WorkerError | None = None
        answer: Plain = {}
        with ExitStack() as undo:
            # If anything else is raised, such as a cancellation or an error of `on_message`, nobody knows what the
            # process does now: the next run starts another one from the checkpoint.
            undo.callback(self._discard)
            try:
                async with deadline:
                    answer = await self._run(request, on_message)
            except TimeoutError:
                if not deadline.expired():
                    raise
                failure = FunctionTimeout(f"no answer within {timeout:g} s")
                WORKER_FIGURES.killed += 1
            except WorkerDied as died:
                failure = died
                WORKER_FIGURES.died += 1
            undo.pop_all()
        lines = self._link.output.take() if self._link is not None else []
        if failure is not None:
            self._lost = True
            self._discard()
        for line in lines:
            await _deliver({"type": "output", "text": line}, on_message)
        if failure is not None:
            raise failure
        return answer

    async def _run(self, request: Plain, on_message: OnMessage) -> Plain:
        link = self._link
        assert link is not None
        # Answers carry the number of their run: one to a run that was given up is not taken for this one's.
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
                await link.send("reply", number, await _reply(payload, on_message))

    def _discard(self) -> None:
        if self._link is not None:
            self._drop(self._link)
            self._link = None

    def _drop(self, link: _WorkerConnection) -> None:
        WORKER_FIGURES.live -= 1
        self._ending = [ended for ended in self._ending if not ended.done()]
        self._ending.append(link.process.ended)
        self._output_left = max(link.output.left, 0)
        link.close()


async def _deliver(message: Plain, on_message: OnMessage) -> object:
    """Return the answer to a message, which is None unless the running code asked for one."""
    result = on_message(message)
    return await result if inspect.isawaitable(result) else result


async def _reply(message: Plain, on_message: OnMessage) -> Plain:
    try:
        return {"value": await _deliver(message, on_message)}
    except CallagentError as error:
        return {"error": str(error) or type(error).__name__}


class _WorkerConnection:
    """The core's connection to one worker process: socket, output and notice of its end."""

    def __init__(self, process: WorkerProcess, output_left: int) -> None:
        self.process = process
        self.output = OutputReader(process.output, output_left)
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
                raise WorkerDied(f"the worker sent what cannot be read: {error}") from None
        return self._frames.popleft()

    async def status(self) -> str:
        """Return how the process ended, as words for an error; it has `_STATUS_SECONDS` to do so."""
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
        # Children of the worker may hold the other end open, so that no end of the stream would ever be read. After
        # this, a reader gets what is still in the buffer and then the end.
        try:
            self.process.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
