"""Streamable HTTP (Model Context Protocol 2025-06-18, "Transports"): every message is a request of its own."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests
from urllib3.exceptions import HTTPError, ReadTimeoutError

from callagent.agents.mcp.wire import (
    BODY_LIMIT,
    Forgotten,
    McpFailed,
    Message,
    parsed,
    reply_to,
    request_of,
    server_events,
)

TELL_SECONDS = 10.0
"""For a notification, or an answer of ours, to be taken."""
_SESSION, _VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"


class HttpWire:
    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.name = without_secrets(url)
        self._url = url
        self._http = http_session(headers)
        self._http.headers["Accept"] = "application/json, text/event-stream"

    def open(self, seconds: float) -> None:
        check_scheme(self._url)
        for name in (_SESSION, _VERSION):
            self._http.headers.pop(name, None)

    def agree(self, version: str) -> None:
        self._http.headers[_VERSION] = version

    def exchange(self, message: Message, seconds: float) -> Message:
        for answer in self._post(message, seconds):
            if isinstance(answer, dict) and answer.get("id") == message["id"] and "method" not in answer:
                return answer
            if request_of(answer):
                self.tell(reply_to(answer))
        raise McpFailed(f"{self.name}: no answer to {message['method']}")

    def tell(self, message: Message) -> None:
        for _ in self._post(message, TELL_SECONDS):
            pass

    def close(self) -> None:
        self._http.close()

    def _post(self, message: Message, seconds: float) -> Iterator[Any]:
        """What comes back. Raises `McpFailed`."""
        until = time.monotonic() + seconds
        try:
            with self._http.post(
                self._url, json=message, timeout=seconds, stream=True, allow_redirects=False
            ) as response:
                if response.status_code == 404 and _SESSION in self._http.headers:
                    raise Forgotten(f"{self.name}: the session is gone")
                if response.status_code >= 300:
                    raise McpFailed(f"{self.name}: {response.status_code} {response.reason}")
                if session := response.headers.get(_SESSION):
                    self._http.headers[_SESSION] = session
                if response.status_code != 202 and "id" in message and "method" in message:
                    yield from _messages(response, until)
        except (requests.RequestException, HTTPError, ValueError) as error:
            raise McpFailed(f"{self.name}: {reason_of(error)}") from None


def _messages(response: requests.Response, until: float) -> Iterator[Any]:
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        yield parsed(b"".join(_limited(response.iter_content(65536), until)))
        return
    for _, data in server_events(lines_of(_limited(_pieces(response), until))):
        yield parsed(data)


def _limited(pieces: Iterator[bytes], until: float) -> Iterator[bytes]:
    left = BODY_LIMIT
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ValueError(f"the answer has more than {BODY_LIMIT} bytes")
        if time.monotonic() > until:
            raise ValueError("the answer took too long")
        yield piece


def stream_lines(response: requests.Response) -> Iterator[bytes]:
    """Of a stream that has no end, as they come. Raises ValueError for a line without end."""
    return lines_of(_pieces(response))


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """What has arrived, not blocks that must be full first."""
    read = getattr(response.raw, "read1", None)
    return response.iter_content(1) if read is None else iter(lambda: read(65536, decode_content=True), b"")


def lines_of(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Raises ValueError for a line that is longer than an answer may be."""
    begun: list[bytes] = []
    size = 0
    for piece in pieces:
        head, *more = piece.split(b"\n")
        begun.append(head)
        size += len(head)
        if size > BODY_LIMIT:
            raise ValueError(f"a line has more than {BODY_LIMIT} bytes")
        for each in more:
            yield b"".join(begun).removesuffix(b"\r")
            begun, size = [each], len(each)
    if any(begun):
        yield b"".join(begun)


def http_session(headers: Mapping[str, str]) -> requests.Session:
    session = requests.Session()
    # Neither proxies nor passwords of the environment are the project's.
    session.trust_env = False
    session.headers.update(headers)
    return session


def check_scheme(url: str) -> None:
    """Raises `McpFailed`."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise McpFailed(f"'{without_secrets(url)}' is no web address")


def without_secrets(url: str) -> str:
    """An address for messages: keys stand in queries, and before an @."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def reason_of(error: Exception) -> str:
    """Why a request failed; what the library says of it has the address, and keys may stand in that."""
    if isinstance(error, (requests.Timeout, ReadTimeoutError)):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        # The library gives the errno in its text only; it is the kernel's answer to a port that is not listed.
        refused = f"[Errno {errno.EACCES}]" in str(error)
        return "its port has to be listed in limits.function_network" if refused else "it cannot be reached"
    return str(error) if isinstance(error, ValueError) and not isinstance(error, OSError) else type(error).__name__
