"""The contract of a wire to a Model Context Protocol server, JSON-RPC messages, and the wire to a program.

A program is spoken to over its standard input and output (revision 2025-06-18, "stdio"). It is a child of the worker:
it is under the worker's limits, in its Landlock domain and its process group, so that it ends with the call.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Protocol, TypeGuard

from callagent.errors import CallagentError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, parse_json

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Bytes of one message."""
METHOD_NOT_FOUND = -32601
"""Error code of JSON-RPC 2.0, section 5.1."""
Message = JsonObject


class McpFailed(CallagentError):
    """A failed request: the server cannot be reached, does not speak the protocol, or refused."""


class SessionExpired(McpFailed):
    """The end of a session before the server did anything of the request, which may be sent in a new session."""


class Wire(Protocol):
    """The transport to one server. Its methods block, and several threads may use it."""

    name: str
    """The server's name for messages, without secrets."""

    def open(self, seconds: float) -> None:
        """Connect within this time, closing an earlier connection first. Raises `McpFailed`."""

    def exchange(self, message: Message, seconds: float) -> Message:
        """Send a request and return its answer, which must come within this time.

        Raises `SessionExpired` when the server has done nothing of the request, and `McpFailed` for other failures.
        """

    def notify(self, message: Message) -> None:
        """Send a notification. Raises `McpFailed`."""

    def set_version(self, version: str) -> None:
        """Note the protocol version that both sides have agreed on."""

    def close(self) -> None:
        """Disconnect."""


def is_request(message: JsonValue) -> TypeGuard[Message]:
    """Return whether a message of the server is a request to us."""
    return isinstance(message, Mapping) and "method" in message and message.get("id") is not None


def answer_request(message: Message) -> Message:
    """Return the answer to a server's request: we answer pings and offer no other method."""
    answer: MutableJsonObject = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return {**answer, "result": {}}
    return {**answer, "error": {"code": METHOD_NOT_FOUND, "message": f"there is no {message['method']} here"}}


def server_events(lines: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Yield kind and data of server-sent events (WHATWG HTML section 9.2). Raises ValueError for invalid UTF-8."""
    kind, data = "message", list[str]()
    for raw in lines:
        line = raw.decode("utf-8")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []
        elif field == "event":
            kind = value
        elif field == "data":
            data.append(value)


_REASON_SECONDS = 1.5
"""Time for the reading thread to learn why the connection ended, after writing has failed."""


class DuplexWire(ABC):
    """A wire with a lasting connection: a thread reads it and passes every answer to the request that waits for it.

    Implements `Wire` except for `open` and `close`, which subclasses add.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._waiting: dict[JsonValue, queue.SimpleQueue[Message | McpFailed]] = {}
        """The requests that have no answer yet, by their `id`."""
        self._write_lock = threading.Lock()
        self._connection: object | None = None
        """The open connection; messages that the thread of an older one still reads are ignored."""
        self._ended = threading.Event()
        self._reason = "the connection is closed"

    def begin_connection(self) -> object:
        """Note a new connection; its reading thread passes the returned object to `deliver` and `fail_pending`."""
        # A new object each time, compared by identity: the thread of an older connection has another one.
        connection = self._connection = object()
        self._ended = threading.Event()
        return connection

    @abstractmethod
    def write(self, message: Message) -> None:
        """Write a message.

        Raises OSError when certainly nothing was sent, and `McpFailed` when the server may have received it.
        """

    def set_version(self, version: str) -> None:  # noqa: B027
        """Do nothing: only HTTP repeats the version with every message."""

    def exchange(self, message: Message, seconds: float) -> Message:
        number = message["id"]
        answers = self._waiting[number] = queue.SimpleQueue()
        try:
            self._send(message)
            answer = answers.get(timeout=seconds)
        except queue.Empty:
            self._cancel(number)
            raise McpFailed(f"{self.name}: no answer to {message['method']} within {seconds:g} s") from None
        finally:
            # Also after a timeout, so that a late answer is dropped.
            self._waiting.pop(number, None)
        if isinstance(answer, McpFailed):
            raise answer
        return answer

    def notify(self, message: Message) -> None:
        self._send(message)

    def _send(self, message: Message) -> None:
        if self._connection is None:
            raise SessionExpired(f"{self.name}: {self._reason}")
        try:
            with self._write_lock:
                self.write(message)
        except (OSError, ValueError):
            # The reading thread learns why the connection ended, for example from a program's last output.
            self._ended.wait(_REASON_SECONDS)
            raise SessionExpired(f"{self.name}: {self._reason}") from None

    def _cancel(self, number: JsonValue) -> None:
        parameters: JsonObject = {"requestId": number, "reason": "it took too long"}
        try:
            self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": parameters})
        except McpFailed:
            pass  # a server that cannot be reached has nothing to cancel

    def deliver(self, connection: object, message: JsonValue) -> None:
        """Pass on a message that the reading thread received: an answer, or a request of the server."""
        if connection is not self._connection or not isinstance(message, Mapping):
            return
        if is_request(message):
            try:
                self._send(answer_request(message))
            except McpFailed:
                pass  # the reading thread notices the end of the connection by itself
        elif (waiting := self._waiting.get(message.get("id"))) is not None:
            waiting.put(message)

    def fail_pending(self, connection: object, reason: str) -> None:
        """Fail the requests that wait for an answer, because the connection has ended."""
        if connection is not self._connection:
            return
        self._connection, self._reason = None, reason
        self._ended.set()
        for waiting in list(self._waiting.values()):
            waiting.put(McpFailed(f"{self.name}: {reason}"))


MAX_PROGRAMS = 8
"""Programs that run in one worker at a time."""
INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""Environment variables that every program gets; the project must name any others, such as its secrets."""
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
            raise McpFailed(f"{self.name}: {MAX_PROGRAMS} programs run already in this worker; close one of them first")
        # The worker's environment has secrets of the project that this program need not know.
        environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ} | self._environment
        try:
            process = subprocess.Popen(
                self._command,
                env=environment,
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
        self._finalizer = weakref.finalize(self, _end_program, process)
        _running.add(self)
        connection = self.begin_connection()
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[bytes] = []
        error_reader = threading.Thread(target=_read_errors, args=(process.stderr, errors), daemon=True)
        error_reader.start()
        # A module function with a weak reference, because a bound method would keep the wire and its program alive.
        arguments = (weakref.ref(self), connection, process, error_reader, errors)
        threading.Thread(target=_read_messages, args=arguments, daemon=True).start()

    def close(self) -> None:
        self._connection = None
        _running.discard(self)
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None

    def write(self, message: Message) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise OSError("it does not run")
        # One message is one line (section "stdio"); `json.dumps` writes no line break.
        process.stdin.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        process.stdin.flush()


def _read_messages(
    wire: weakref.ref[ProgramWire],
    connection: object,
    process: subprocess.Popen[bytes],
    error_reader: threading.Thread,
    errors: list[bytes],
) -> None:
    """Read the program's messages until it ends, and deliver them to the wire.

    The reference is weak so that a wire that nobody uses any more is collected, which ends the program.
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
        open_wire.deliver(connection, message)
        del open_wire
    status = process.wait() if reason else _exit_status(process)
    error_reader.join(_EXIT_SECONDS)
    last = b"".join(errors)[-_LAST_OUTPUT:].decode("utf-8", "replace").strip()
    if (open_wire := wire()) is not None:
        open_wire.fail_pending(connection, reason or f"the program ended ({status}){': ' + last if last else ''}")
        _running.discard(open_wire)


def _next_line(stream: IO[bytes]) -> bytes:
    try:
        return stream.readline(MAX_MESSAGE_BYTES + 1)
    except (OSError, ValueError):
        return b""


def _exit_status(process: subprocess.Popen[bytes]) -> int | str:
    """Return the exit status of a program that has closed its output; kill it if it has not ended soon after."""
    try:
        return process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return "killed: it closed its output"


def _read_errors(stream: IO[bytes], errors: list[bytes]) -> None:
    """Read a program's standard error and keep its end in `errors`; a full pipe would block the program."""
    while text := _next_chunk(stream):
        errors.append(text)
        if sum(map(len, errors)) > 2 * _LAST_OUTPUT:
            errors[:] = [b"".join(errors)[-_LAST_OUTPUT:]]


def _next_chunk(stream: IO[bytes]) -> bytes:
    try:
        return os.read(stream.fileno(), 4096)
    except (OSError, ValueError):
        return b""


def _end_program(process: subprocess.Popen[bytes]) -> None:
    """Close a program's input, which asks it to exit; kill it if it does not."""
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
