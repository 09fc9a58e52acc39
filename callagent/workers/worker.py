"""The loop of a worker process: one call's session, one request after the other."""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any

from callagent.workers import protocol
from callagent.workers.kernel_limits import ForkGuard

_READ_BYTES = 256 * 1024
_MAX_ERROR_CHARACTERS = 2000


class CoreGone(BaseException):
    """The core has closed the socket: nobody waits for this process any more.

    Not an `Exception`: project code that catches every exception must not keep its process alive.
    """


class SocketChannel:
    """The worker's end of the socket to the core. Every thread may call `send` and `ask`.

    Replies may arrive in another order than the requests. Of the threads that wait for one, a single thread reads the
    socket; it files each frame under its kind and number and wakes the others, one of which then reads on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = protocol.FrameReader()
        self._frames: list[protocol.Frame] = []
        self._payloads: dict[tuple[str, int], protocol.Plain] = {}
        self._condition = threading.Condition()
        self._reading = False
        self._write_lock = threading.Lock()
        self._last_ask = 0
        self._worker_pid = os.getpid()
        os.register_at_fork(after_in_child=self._close_in_child)

    @property
    def is_ours(self) -> bool:
        """Whether this is the worker; False in a process that project code has forked from it."""
        return os.getpid() == self._worker_pid

    def send(self, message: protocol.Plain) -> None:
        self._write("message", 0, message)

    def ask(self, message: protocol.Plain) -> Any:
        with self._condition:
            self._last_ask += 1
            number = self._last_ask
        if not self._write("ask", number, message):
            raise protocol.AskFailed("a process that project code has forked cannot ask the server")
        reply = self._wait(("reply", number))
        if "error" in reply:
            raise protocol.AskFailed(str(reply["error"]))
        return reply.get("value")

    def answer(self, kind: str, number: int, payload: object) -> None:
        self._write(kind, number, payload)

    def wait_open(self) -> protocol.Plain:
        return self._wait(("open", 0))

    def wait_request(self, number: int) -> protocol.Plain:
        return self._wait(("run", number))

    def _write(self, kind: str, number: int, payload: object) -> bool:
        """Send a frame, unless this is a forked process; return whether it was sent."""
        data = protocol.encode_frame(kind, number, payload)
        with self._write_lock:
            if self.is_ours:
                self._socket.sendall(data)
        return self.is_ours

    def _wait(self, wanted: tuple[str, int]) -> protocol.Plain:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: wanted in self._payloads or not self._reading)
                if wanted in self._payloads:
                    return self._payloads.pop(wanted)
                self._reading = True
            self._read_frame()

    def _read_frame(self) -> None:
        """Read one frame for the thread that waits for it. If it cannot be read, the other threads try and fail too."""
        frame: protocol.Frame | None = None
        try:
            frame = self._read()
        finally:
            with self._condition:
                self._reading = False
                if frame is not None and isinstance(frame[2], dict):
                    self._payloads[frame[0], frame[1]] = frame[2]
                self._condition.notify_all()

    def _read(self) -> protocol.Frame:
        while not self._frames:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise CoreGone
            self._frames.extend(self._reader.feed(data))
        return self._frames.pop(0)

    def _close_in_child(self) -> None:
        # A forked process must neither answer in the worker's place nor keep the socket open after its end.
        self._socket.close()


def serve(runtime: protocol.Runtime, sock: socket.socket, settings: protocol.WorkerSettings) -> None:
    """Serve one call until the core closes the socket; then raise `CoreGone`. Call it after `confine_worker()`."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
    channel = SocketChannel(sock)
    guard = ForkGuard(settings.forks)
    opened = channel.wait_open()
    session = runtime.open(opened["context"], opened["checkpoint"], channel)
    number = 0
    while True:
        number += 1
        request = channel.wait_request(number)
        guard.reset()
        try:
            answer = session.handle(request)
        except CoreGone:
            raise
        except BaseException as error:
            # The boundary of a function run: whatever project code raises fails this run, and the worker goes on.
            _respond(channel, "failed", number, f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS])
        else:
            _respond(channel, "answer", number, answer)


def _respond(channel: SocketChannel, kind: str, number: int, payload: object) -> None:
    # The output is flushed first, because the core takes what has been written when the answer arrives.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # Project code has closed or replaced the stream.
            pass
    if not channel.is_ours:
        # A child that project code has forked returns from the function as well; only the worker may answer.
        os._exit(0)
    try:
        channel.answer(kind, number, payload)
    except protocol.FrameError as error:
        channel.answer("failed", number, str(error))
