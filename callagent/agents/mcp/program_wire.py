"""A server that is a program, on its standard input and output (Model Context Protocol, "Transports": stdio).

It is a child of the worker: under its limits, in its Landlock domain and its process group, so it ends with the call.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import IO

from callagent.agents.mcp.wire import BODY_LIMIT, Duplex, McpFailed, Message, parsed

MAX_PROGRAMS = 8
"""In one worker at a time."""
PASSED_ON = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""Variables that every program has; the others, the project's secrets among them, only where they are named."""
_FAREWELL_SECONDS = 1.0
_LAST_WORDS = 500
_running: weakref.WeakSet[ProgramWire] = weakref.WeakSet()


class ProgramWire(Duplex):
    def __init__(
        self, command: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str | None = None
    ) -> None:
        super().__init__(os.path.basename(command) or "program")
        self._command = [command, *arguments]
        self._environment = dict(environment)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., ProgramWire] | None = None

    def open(self, seconds: float) -> None:
        self.close()
        if len(_running) >= MAX_PROGRAMS:
            raise McpFailed(f"{self.name}: {MAX_PROGRAMS} programs run already")
        given = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | self._environment
        try:
            process = subprocess.Popen(
                self._command,
                env=given,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except PermissionError as error:
            listed = f"'{self._command[0]}' has to be listed in limits.function_programs"
            raise McpFailed(f"{self.name}: it may not be started: {listed} ({error.strerror})") from None
        except (OSError, ValueError) as error:
            raise McpFailed(f"{self.name}: it cannot be started: {error}") from None
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process)
        _running.add(self)
        line = self.begin()
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[bytes] = []
        listening = threading.Thread(target=_keep_last, args=(process.stderr, said), daemon=True)
        listening.start()
        told = (weakref.ref(self), line, process, listening, said)
        threading.Thread(target=_read, args=told, daemon=True).start()

    def close(self) -> None:
        self._line = None
        _running.discard(self)
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None

    def write(self, message: Message) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise OSError("it does not run")
        process.stdin.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        process.stdin.flush()


def _read(
    wire: weakref.ref[ProgramWire],
    line: object,
    process: subprocess.Popen[bytes],
    listening: threading.Thread,
    said: list[bytes],
) -> None:
    """Until the program ends; a wire that nobody holds any more ends it."""
    assert process.stdout is not None
    reason = ""
    while text := _next_line(process.stdout):
        if len(text) > BODY_LIMIT:
            reason = f"a message has more than {BODY_LIMIT} bytes"
            process.kill()
            break
        try:
            message = parsed(text)
        except ValueError:
            continue  # what a program prints beside the protocol
        if (open_wire := wire()) is None:
            return
        open_wire.arrived(line, message)
        del open_wire
    status = process.wait() if reason else _status(process)
    listening.join(_FAREWELL_SECONDS)
    last = b"".join(said)[-_LAST_WORDS:].decode("utf-8", "replace").strip()
    if (open_wire := wire()) is not None:
        open_wire.ended(line, reason or f"the program ended ({status}){': ' + last if last else ''}")
        _running.discard(open_wire)


def _next_line(stream: IO[bytes]) -> bytes:
    try:
        return stream.readline(BODY_LIMIT + 1)
    except (OSError, ValueError):
        return b""


def _status(process: subprocess.Popen[bytes]) -> int | str:
    """Of a program that has closed its output; it has a moment to end."""
    try:
        return process.wait(_FAREWELL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return "killed: it closed its output"


def _keep_last(stream: IO[bytes], said: list[bytes]) -> None:
    """What a program says of itself, of which only the end is kept: a full pipe would stop it."""
    while text := _next_chunk(stream):
        said.append(text)
        if sum(map(len, said)) > 2 * _LAST_WORDS:
            said[:] = [b"".join(said)[-_LAST_WORDS:]]


def _next_chunk(stream: IO[bytes]) -> bytes:
    try:
        return os.read(stream.fileno(), 4096)
    except (OSError, ValueError):
        return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its input is closed, which asks it to go; who stays is killed."""
    try:
        if process.stdin is not None:
            process.stdin.close()
    except OSError:
        pass
    try:
        process.wait(_FAREWELL_SECONDS / 10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            _close_quietly(stream)


def _close_quietly(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except OSError:
        pass
