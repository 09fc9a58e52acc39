"""HTTP with server-sent events (Model Context Protocol 2024-11-05, "Transports"): one stream down, requests up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError, NewConnectionError

from callagent.agents.mcp.duplex import Duplex
from callagent.agents.mcp.http_wire import (
    TELL_SECONDS,
    check_scheme,
    http_session,
    reason_of,
    stream_lines,
    without_secrets,
)
from callagent.agents.mcp.wire import BODY_LIMIT, McpFailed, Message, parsed, server_events

QUIET_SECONDS = 300.0
"""A stream on which nothing comes for so long is over; servers send comments while they live."""


class SseWire(Duplex):
    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        super().__init__(without_secrets(url))
        self._url = url
        self._headers = dict(headers)
        self._up = http_session(headers)
        self._endpoint = ""
        self._stream: requests.Response | None = None

    def open(self, seconds: float) -> None:
        self.close()
        check_scheme(self._url)
        found: queue.SimpleQueue[str | McpFailed] = queue.SimpleQueue()
        line = self.begin()
        try:
            stream = http_session({**self._headers, "Accept": "text/event-stream"}).get(
                self._url, stream=True, timeout=(seconds, QUIET_SECONDS), allow_redirects=False
            )
        except requests.RequestException as error:
            self._line = None
            raise McpFailed(f"{self.name}: {reason_of(error)}") from None
        self._stream = stream
        if stream.status_code != 200 or not stream.headers.get("Content-Type", "").startswith("text/event-stream"):
            self.close()
            raise McpFailed(f"{self.name}: {stream.status_code} {stream.reason}, and no event stream")
        threading.Thread(target=self._read, args=(line, stream, found), daemon=True).start()
        try:
            told = found.get(timeout=seconds)
        except queue.Empty:
            told = McpFailed(f"{self.name}: it did not say within {seconds:g} s where messages go")
        if isinstance(told, McpFailed):
            self.close()
            raise told
        self._endpoint = told

    def close(self) -> None:
        stream, self._stream, self._line = self._stream, None, None
        if stream is not None:
            # Reading is ended, and who reads closes: closing here would wait for that thread.
            with suppress(RuntimeError, ValueError, OSError):
                stream.raw.shutdown()

    def write(self, message: Message) -> None:
        try:
            answer = self._up.post(self._endpoint, json=message, timeout=TELL_SECONDS, allow_redirects=False)
        except requests.RequestException as error:
            if _was_never_sent(error):
                raise OSError(reason_of(error)) from None
            # The server may have done what it was asked: nobody asks it twice.
            raise McpFailed(f"{self.name}: {reason_of(error)}") from None
        if answer.status_code == 404:
            raise OSError("the session is gone")
        if answer.status_code >= 300:
            raise McpFailed(f"{self.name}: {answer.status_code} {answer.reason}")

    def _read(self, line: object, stream: requests.Response, found: queue.SimpleQueue[str | McpFailed]) -> None:
        reason = "the stream ended"
        try:
            for kind, data in server_events(_limited(stream_lines(stream))):
                if kind == "endpoint":
                    found.put(self._checked(data))
                elif kind == "message":
                    self.arrived(line, parsed(data))
        except (requests.RequestException, HTTPError, ValueError, OSError, AttributeError) as error:
            # A stream that is closed under its reader has no file any more: AttributeError.
            reason = f"the stream broke: {type(error).__name__}"
        finally:
            found.put(McpFailed(f"{self.name}: {reason}"))
            self.ended(line, reason)
            stream.close()

    def _checked(self, endpoint: str) -> str | McpFailed:
        """Messages, and the keys in their headers, go to the server that was named, and to no other."""
        url = urljoin(self._url, endpoint.strip())
        if urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            return McpFailed(f"{self.name}: it sends messages to another server")
        return url


def _was_never_sent(error: requests.RequestException) -> bool:
    cause = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(error, requests.ConnectTimeout) or isinstance(cause, NewConnectionError)


def _limited(lines: Iterator[bytes]) -> Iterator[bytes]:
    left = BODY_LIMIT
    for line in lines:
        left = BODY_LIMIT if not line else left - len(line)
        if left < 0:
            raise ValueError(f"a message has more than {BODY_LIMIT} bytes")
        yield line
