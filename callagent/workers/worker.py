"""The loop of a worker process: one call's session, one request after the other."""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any

from callagent.workers.confinement import ForkGuard
from callagent.workers.protocol import AskFailed, Plain, Runtime
from callagent.workers.settings import WorkerSettings
from callagent.workers.wire import Frame, FrameError, FrameReader, encode

_READ = 256 * 1024


class CoreGone(BaseException):
    """The core has closed the socket: nobody waits for this process any more."""


class SocketChannel:
    """The worker's end. Any thread may send and ask; one of those that wait reads for all."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self._arrived: dict[tuple[str, int], Any] = {}
        self._turn = threading.Condition()
        self._reading = False
        self._writing = threading.Lock()
        self._asked = 0
        self._owner = os.getpid()
        os.register_at_fork(after_in_child=self._leave)

    @property
    def is_ours(self) -> bool:
        """False in a process that project code has forked."""
        return os.getpid() == self._owner

    def send(self, message: Plain) -> None:
        self._write("message", 0, message)

    def ask(self, message: Plain) -> Any:
        with self._turn:
            self._asked += 1
            number = self._asked
        if not self._write("ask", number, message):
            raise AskFailed("a forked process cannot ask")
        reply = self._wait(("reply", number))
        if "error" in reply:
            raise AskFailed(str(reply["error"]))
        return reply.get("value")

    def answer(self, kind: str, number: int, payload: Any) -> None:
        self._write(kind, number, payload)

    def wait_open(self) -> Plain:
        opened: Plain = self._wait(("open", 0))
        return opened

    def wait_request(self, number: int) -> Plain:
        request: Plain = self._wait(("run", number))
        return request

    def _write(self, kind: str, number: int, payload: Any) -> bool:
        data = encode(kind, number, payload)
        with self._writing:
            if self.is_ours:
                self._socket.sendall(data)
        return self.is_ours

    def _wait(self, wanted: tuple[str, int]) -> Any:
        while True:
            with self._turn:
                while wanted not in self._arrived and self._reading:
                    self._turn.wait()
                if wanted in self._arrived:
                    return self._arrived.pop(wanted)
                self._reading = True
            frame: Frame | None = None
            try:
                frame = self._read()
            finally:
                with self._turn:
                    self._reading = False
                    if frame is not None:
                        self._arrived[frame[0], frame[1]] = frame[2]
                    self._turn.notify_all()

    def _read(self) -> Frame:
        while not self._frames:
            data = self._socket.recv(_READ)
            if not data:
                raise CoreGone
            self._frames.extend(self._reader.feed(data))
        return self._frames.pop(0)

    def _leave(self) -> None:
        # A forked process must neither answer in our place nor keep the socket open after our end.
        self._socket.close()


def serve(runtime: Runtime, sock: socket.socket, settings: WorkerSettings) -> None:
    """Serve one call; returns when the core closes the socket. To be called after `confine()`."""
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
        except BaseException as error:  # the outermost edge of a function run
            _respond(channel, "failed", number, f"{type(error).__name__}: {error}"[:2000])
        else:
            _respond(channel, "answer", number, answer)


def _respond(channel: SocketChannel, kind: str, number: int, payload: Any) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # project code has closed or replaced it
    if not channel.is_ours:
        os._exit(0)
    try:
        channel.answer(kind, number, payload)
    except FrameError as error:
        channel.answer("failed", number, str(error))
