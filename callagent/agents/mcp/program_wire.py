"""The wire to a server that is a program, over its standard input and output (revision 2025-06-18, "stdio").

The program is a child of the worker: it is under the worker's limits, in its Landlock domain and its process group, so
that it ends with the call.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import IO

from callagent.agents.mcp.wire import MAX_MESSAGE_BYTES, DuplexWire, McpFailed, Message, parse_json

MAX_PROGRAMS = 8
"""Programs that run in one worker at a time."""
INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""Environment variables that every program gets; others, such as the project's secrets, only when they are named."""
_EXIT_SECONDS = 1.0
"""Time for a program that has closed its output to end by itself."""
_LAST_OUTPUT = 500
"""Bytes of a program's standard error that a message quotes."""
_running: weakref.WeakSet[ProgramWire] = weakref.WeakSet()


class ProgramWire(DuplexWire):
    """A program that is started when the wire opens and ends when the wire closes or nobody refers to it any more."""

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
        given = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ} | self._environment
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
        line = self.open_line()
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
    """Read the program's messages until it ends.

    Only a weak reference is held meanwhile: a wire that nobody uses any more is collected, which ends the program.
    """
    assert process.stdout is not None
    reason = ""
    while text := _next_line(process.stdout):
        if len(text) > MAX_MESSAGE_BYTES:
            reason = f"a message has more than {MAX_MESSAGE_BYTES} bytes"
            process.kill()
            break
        try:
            message = parse_json(text)
        except ValueError:
            continue  # programs print other lines beside the protocol
        if (open_wire := wire()) is None:
            return
        open_wire.deliver(line, message)
        del open_wire
    status = process.wait() if reason else _status(process)
    listening.join(_EXIT_SECONDS)
    last = b"".join(said)[-_LAST_OUTPUT:].decode("utf-8", "replace").strip()
    if (open_wire := wire()) is not None:
        open_wire.fail_pending(line, reason or f"the program ended ({status}){': ' + last if last else ''}")
        _running.discard(open_wire)


def _next_line(stream: IO[bytes]) -> bytes:
    try:
        return stream.readline(MAX_MESSAGE_BYTES + 1)
    except (OSError, ValueError):
        return b""


def _status(process: subprocess.Popen[bytes]) -> int | str:
    """Return the exit status of a program that has closed its output; kill it if it does not end soon."""
    try:
        return process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return "killed: it closed its output"


def _keep_last(stream: IO[bytes], said: list[bytes]) -> None:
    """What a program says of itself, of which only the end is kept: a full pipe would stop it."""
    while text := _next_chunk(stream):
        said.append(text)
        if sum(map(len, said)) > 2 * _LAST_OUTPUT:
            said[:] = [b"".join(said)[-_LAST_OUTPUT:]]


def _next_chunk(stream: IO[bytes]) -> bytes:
    try:
        return os.read(stream.fileno(), 4096)
    except (OSError, ValueError):
        return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program: closing its input asks it to leave; one that stays is killed."""
    try:
        if process.stdin is not None:
            process.stdin.close()
    except OSError:
        pass
    try:
        process.wait(_EXIT_SECONDS / 10)
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
