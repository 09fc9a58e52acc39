"""The two wires over HTTP of the Model Context Protocol: Streamable HTTP, and HTTP with server-sent events."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError

from callagent.agents.mcp import wires
from callagent.json_values import JsonValue, parse_json

NOTIFY_SECONDS = 10.0
"""Seconds for a server to accept a notification, or our response to a request of its own."""
_SESSION_HEADER, _VERSION_HEADER = "Mcp-Session-Id", "MCP-Protocol-Version"


class HttpWire:
    """Streamable HTTP (revision 2025-06-18, "Transports"): every message is an HTTP request of its own."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.name = without_secrets(url)
        self._url = url
        self._http = create_http_session(headers)
        self._http.headers["Accept"] = "application/json, text/event-stream"

    def open(self, seconds: float) -> None:
        check_scheme(self._url)
        # A session begins without the headers of the one before.
        for name in (_SESSION_HEADER, _VERSION_HEADER):
            self._http.headers.pop(name, None)

    def set_version(self, version: str) -> None:
        self._http.headers[_VERSION_HEADER] = version

    def exchange(self, message: wires.Message, seconds: float) -> wires.Message:
        for answer in self._post(message, seconds):
            if isinstance(answer, Mapping) and answer.get("id") == message["id"] and "method" not in answer:
                return answer
            if wires.is_request(answer):
                self.notify(wires.answer_request(answer))
        raise wires.McpFailed(f"{self.name}: no answer to {message['method']}")

    def notify(self, message: wires.Message) -> None:
        for _ in self._post(message, NOTIFY_SECONDS):
            pass

    def close(self) -> None:
        self._http.close()

    def _post(self, message: wires.Message, seconds: float) -> Iterator[JsonValue]:
        """Post a message and yield the server's messages. Raises `McpFailed`."""
        until = time.monotonic() + seconds
        try:
            with self._http.post(
                self._url, json=message, timeout=seconds, stream=True, allow_redirects=False
            ) as response:
                if response.status_code == 404 and _SESSION_HEADER in self._http.headers:
                    raise wires.SessionExpired(f"{self.name}: the server no longer has the session")
                if response.status_code >= 300:
                    raise wires.McpFailed(f"{self.name}: {response.status_code} {response.reason}")
                if session := response.headers.get(_SESSION_HEADER):
                    self._http.headers[_SESSION_HEADER] = session
                # Notifications, and our responses to the server's requests, are accepted with 202 and no body.
                if response.status_code != 202 and "id" in message and "method" in message:
                    yield from _messages(response, until)
        except (requests.RequestException, HTTPError, ValueError) as error:
            raise wires.McpFailed(f"{self.name}: {failure_reason(error)}") from None


def _messages(response: requests.Response, until: float) -> Iterator[JsonValue]:
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        yield parse_json(b"".join(_limited_body(response.iter_content(65536), until)))
        return
    for _, data in wires.server_events(_split_lines(_limited_body(_pieces(response), until))):
        yield parse_json(data)


def _limited_body(pieces: Iterator[bytes], until: float) -> Iterator[bytes]:
    left = wires.MAX_MESSAGE_BYTES
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ValueError(f"the answer has more than {wires.MAX_MESSAGE_BYTES} bytes")
        if time.monotonic() > until:
            raise ValueError("the answer took too long")
        yield piece


def stream_lines(response: requests.Response) -> Iterator[bytes]:
    """Yield the lines of an endless response as they arrive. Raises ValueError for a line above `MAX_MESSAGE_BYTES`."""
    return _split_lines(_pieces(response))


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """Yield the bytes that have arrived, without waiting until a block is full."""
    read = getattr(response.raw, "read1", None)
    return response.iter_content(1) if read is None else iter(lambda: read(65536, decode_content=True), b"")


def _split_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream of bytes. Raises ValueError for a line above `MAX_MESSAGE_BYTES`."""
    partial: list[bytes] = []
    size = 0
    for piece in pieces:
        head, *more = piece.split(b"\n")
        partial.append(head)
        size += len(head)
        if size > wires.MAX_MESSAGE_BYTES:
            raise ValueError(f"a line has more than {wires.MAX_MESSAGE_BYTES} bytes")
        for each in more:
            yield b"".join(partial).removesuffix(b"\r")
            partial, size = [each], len(each)
    if any(partial):
        yield b"".join(partial)


def create_http_session(headers: Mapping[str, str]) -> requests.Session:
    session = requests.Session()
    # Otherwise proxies and passwords that the project did not configure come from the environment and ~/.netrc.
    session.trust_env = False
    session.headers.update(headers)
    return session


def check_scheme(url: str) -> None:
    """Raise `McpFailed` unless the scheme of the URL is HTTP or HTTPS."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise wires.McpFailed(f"'{without_secrets(url)}' is not a URL of HTTP or HTTPS")


def without_secrets(url: str) -> str:
    """Return a URL for messages, without the parts that may hold keys: its query and the user before an @."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def failure_reason(error: Exception) -> str:
    """Return why a request failed. The library's own text is not used, because it has the URL, which may hold keys."""
    if isinstance(error, (requests.Timeout, ReadTimeoutError)):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        # Landlock answers EACCES for a port that limits.function_network does not list; `requests` gives the number
        # in its text only.
        refused = f"[Errno {errno.EACCES}]" in str(error)
        return "its port has to be listed in limits.function_network" if refused else "it cannot be reached"
    return str(error) if isinstance(error, ValueError) and not isinstance(error, OSError) else type(error).__name__


QUIET_SECONDS = 300.0
"""Seconds without a byte after which a stream counts as broken; servers send comments to keep streams alive."""


class SseWire(wires.DuplexWire):
    """HTTP with server-sent events (revision 2024-11-05, "Transports"): a stream down, a POST for each message up."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        super().__init__(without_secrets(url))
        self._url = url
        self._headers = dict(headers)
        self._http = create_http_session(headers)
        self._endpoint = ""
        self._stream: requests.Response | None = None

    def open(self, seconds: float) -> None:
        self.close()
        check_scheme(self._url)
        endpoints: queue.SimpleQueue[str | wires.McpFailed] = queue.SimpleQueue()
        connection = self.begin_connection()
        try:
            stream = create_http_session({**self._headers, "Accept": "text/event-stream"}).get(
                self._url, stream=True, timeout=(seconds, QUIET_SECONDS), allow_redirects=False
            )
        except requests.RequestException as error:
            self._connection = None
            raise wires.McpFailed(f"{self.name}: {failure_reason(error)}") from None
        self._stream = stream
        if stream.status_code != 200 or not stream.headers.get("Content-Type", "").startswith("text/event-stream"):
            self.close()
            raise wires.McpFailed(f"{self.name}: {stream.status_code} {stream.reason} instead of an event stream")
        threading.Thread(target=self._read, args=(connection, stream, endpoints), daemon=True).start()
        try:
            endpoint = endpoints.get(timeout=seconds)
        except queue.Empty:
            endpoint = wires.McpFailed(f"{self.name}: the server sent no `endpoint` event within {seconds:g} s")
        if isinstance(endpoint, wires.McpFailed):
            self.close()
            raise endpoint
        self._endpoint = endpoint

    def close(self) -> None:
        stream, self._stream, self._connection = self._stream, None, None
        if stream is not None:
            # The shutdown ends the reading thread, which closes the stream; closing it here would wait for the thread.
            with suppress(RuntimeError, ValueError, OSError):
                stream.raw.shutdown()

    def write(self, message: wires.Message) -> None:
        try:
            answer = self._http.post(self._endpoint, json=message, timeout=NOTIFY_SECONDS, allow_redirects=False)
        except requests.RequestException as error:
            if _was_never_sent(error):
                raise OSError(failure_reason(error)) from None
            # The server may have received the request: it must not be sent a second time.
            raise wires.McpFailed(f"{self.name}: {failure_reason(error)}") from None
        if answer.status_code == 404:
            raise OSError("the server no longer has the session")
        if answer.status_code >= 300:
            raise wires.McpFailed(f"{self.name}: {answer.status_code} {answer.reason}")

    def _read(
        self, connection: object, stream: requests.Response, endpoints: queue.SimpleQueue[str | wires.McpFailed]
    ) -> None:
        """Read the stream to its end; the result for `open`, a URL or the failure, goes to `endpoints`."""
        reason = "the stream ended"
        try:
            for kind, data in wires.server_events(_limit_message_size(stream_lines(stream))):
                if kind == "endpoint":
                    endpoints.put(self._endpoint_url(data))
                elif kind == "message":
                    self.deliver(connection, parse_json(data))
        except (requests.RequestException, HTTPError, ValueError, OSError, AttributeError) as error:
            # AttributeError is raised because a stream that another thread has shut down has no file object.
            reason = f"the stream broke: {type(error).__name__}"
        finally:
            endpoints.put(wires.McpFailed(f"{self.name}: {reason}"))
            self.fail_pending(connection, reason)
            stream.close()

    def _endpoint_url(self, endpoint: str) -> str | wires.McpFailed:
        """Return the URL to post messages to. Our headers may hold keys, so it must be on the configured server."""
        url = urljoin(self._url, endpoint.strip())
        if urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            return wires.McpFailed(f"{self.name}: its `endpoint` event names another server, '{without_secrets(url)}'")
        return url


def _was_never_sent(error: requests.RequestException) -> bool:
    cause = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(error, requests.ConnectTimeout) or isinstance(cause, NewConnectionError)


def _limit_message_size(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines; an empty one ends a message. Raises ValueError for a message above `MAX_MESSAGE_BYTES`."""
    left = wires.MAX_MESSAGE_BYTES
    for line in lines:
        left = wires.MAX_MESSAGE_BYTES if not line else left - len(line)
        if left < 0:
            raise ValueError(f"a message has more than {wires.MAX_MESSAGE_BYTES} bytes")
        yield line
