"""The contract between an engine, the processes that run project code, and the runtimes inside these processes.

A worker holds one call's live objects (`conv` and its state) from the start function to the end function. Requests and
answers are plain data (what msgpack can carry: None, bool, int, float, str, bytes, list, dict with str keys). `Lease`
and `WorkerPool` are the engine's side, in the server's own process, the core; `Runtime`, `Session` and `Channel` are
the worker's.

Between the processes of a lease and its worker, messages are frames on a socket pair: a 4-byte length, then a msgpack
array `[kind, number, payload]`.
Core to worker: `open` (context and checkpoint), `run` (a request), `reply` (`{"value"}` or `{"error"}` to an ask).
Worker to core: `message`, `ask`, `answer` (to a run), `failed` (to a run; the payload is a text).
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from callagent.errors import WorkerError

Plain = dict[str, Any]
"""Plain data with a field for each key."""
OnMessage = Callable[[Plain], Awaitable[object] | None]
"""Called on the loop, in order, with each message that the running code sends (a metric, a log line). When the
message has `"ask": True` the returned awaitable's result is sent back to the waiting code (`prompt_llm`)."""
MIB = 1024 * 1024
_NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ProjectRuntime:
    """What a worker loads: one project, run by one kind of runtime."""

    runtime: str
    """`package.module:Class` in the child; `Class(project: Path)` imports the project, `open(context, checkpoint,
    channel)` makes a call's session, `session.handle(request) -> answer` runs one request."""
    project: Path
    folder: Path | None = None
    """The folder that the project's code may read; None: `project` alone."""

    @property
    def readable(self) -> Path:
        """The folder that the project's code may read."""
        return (self.folder or self.project).resolve()


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a project's workers may use."""

    environment: Mapping[str, str] = field(default_factory=lambda: _NO_ENVIRONMENT)
    """Variables that project code sees, beside PATH, HOME, LANG and TZ."""
    memory: int = 1024 * MIB
    """Bytes of private memory per process (RLIMIT_DATA)."""
    file_size: int = 64 * MIB
    """Bytes of the largest file that it may write, and of all files together in its private folder."""
    files: int = 256
    """Number of files and folders that a function may leave in a call's private folder."""
    closed: tuple[str, ...] = ()
    """Files and folders that stay closed even if they lie in the project or on Python's path."""
    programs: tuple[str, ...] = ()
    """Absolute paths of the programs, or of folders of programs, that it may start."""
    ports: tuple[int, ...] | None = None
    """TCP ports that it may connect to; None: all."""
    open_files: int = 256
    """Open file descriptors per process (RLIMIT_NOFILE)."""
    processes: int = 4096
    """Processes and threads of the user that the server runs as (RLIMIT_NPROC); it does not bind root."""
    forks: int = 64
    """`os.fork()` calls per function, by it and its children together; one more kills them all."""
    nice: int = 5
    """Added to the nice value: the server's packets go before project code."""
    output_bytes: int = 64 * 1024
    """Bytes of standard output and error kept per call."""
    import_timeout: float = 60.0
    """Seconds for a project to be imported."""


# The engine's side ----------------------------------------------------------------------------------------------------


class Lease(Protocol):
    """One call's worker."""

    async def run(self, request: Plain, *, timeout: float, on_message: OnMessage) -> Plain:
        """Run one request, one at a time. An answer's `"checkpoint"` (`{key: bytes | None}`, None deletes) is taken
        out and merged into what a replacement starts from.

        Raises `FunctionTimeout` when `timeout` seconds have passed (the process is killed) and `WorkerDied` when the
        process ended. After either the lease is usable again: a new process starts from the last checkpoint.
        """

    async def close(self) -> None:
        """Give the process back; it ends. Idempotent."""


class WorkerPool(Protocol):
    """The workers of one project."""

    async def lease(self, context: Plain) -> Lease:
        """Return a worker for one call; `context` is what `Runtime.open` receives."""

    async def close(self) -> None: ...


def merge_checkpoint(checkpoint: dict[str, bytes], changes: Mapping[str, bytes | None]) -> None:
    """Apply an answer's changes: bytes replace a key, None deletes it."""
    for key, value in changes.items():
        if value is None:
            checkpoint.pop(key, None)
        else:
            checkpoint[key] = value


# The worker's side ----------------------------------------------------------------------------------------------------


class AskFailed(WorkerError):
    """The core could not answer a message of the running code; the text is the core's."""


class Channel(Protocol):
    """The running code's way to the core. Both methods may be called from every thread of the worker."""

    def send(self, message: Plain) -> None:
        """Hand a message over; order is kept, no answer is awaited."""

    def ask(self, message: Plain) -> Any:
        """Hand a message with `"ask": True` over and wait for the answer. Raises `AskFailed`."""


class Session(Protocol):
    """One call's live objects."""

    def handle(self, request: Plain) -> Plain:
        """Run one request and return its answer."""


class Runtime(Protocol):
    """A project in a process; its constructor imports the project, once per process."""

    def open(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel) -> Session:
        """Make the session of one call, with the state of `checkpoint`."""


def find_runtime(runtime: ProjectRuntime) -> Callable[[], Runtime]:
    """Import the runtime's class. Return a function that makes the runtime, which imports the project."""
    module, _, name = runtime.runtime.partition(":")
    return partial(getattr(importlib.import_module(module), name), runtime.project)


# Frames ---------------------------------------------------------------------------------------------------------------

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Both sides keep a whole frame in memory: this bounds what project code can make the core keep."""
_HEADER_BYTES = 4

Frame = tuple[str, int, object]
"""Kind, number and payload."""


class FrameError(ValueError):
    """The other side sent something that is not a frame, or a message does not fit into one."""


_decoder = msgspec.msgpack.Decoder(Frame)
_encoder = msgspec.msgpack.Encoder(enc_hook=str)


def encode_frame(kind: str, number: int, payload: object) -> bytes:
    """Return the bytes of a frame. Raises `FrameError` when it is too large or holds what msgpack cannot carry."""
    try:
        body = _encoder.encode((kind, number, payload))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"{kind} cannot be sent: {error}") from None
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{kind} of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES} bytes; send less data")
    return len(body).to_bytes(_HEADER_BYTES, "big") + body


class FrameReader:
    """Cuts a byte stream into frames; holds no more than one frame and one read."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now. Raises `FrameError`; the stream is of no use after it."""
        self._buffer += data
        while len(self._buffer) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(self._buffer[:_HEADER_BYTES], "big")
            # Project code can write to the socket too: its length must not make the core reserve memory.
            if end > _HEADER_BYTES + MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {end - _HEADER_BYTES} bytes is over the limit of {MAX_FRAME_BYTES}")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER_BYTES:end])
            del self._buffer[:end]
            yield self._decode(body)

    def _decode(self, body: bytes) -> Frame:
        try:
            frame: Frame = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"not a frame: {error}") from None
        return frame
