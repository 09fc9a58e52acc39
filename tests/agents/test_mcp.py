"""The MCP client against the official server, and against servers that misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from callagent.agents.mcp import McpFailed, McpServer, chosen
from tests.agents.mcp_server import mcp_server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mcp_server() as address:
        yield address


def test_tools_are_listed_and_called(url: str) -> None:
    server = McpServer(url, {"Authorization": "Bearer key"})
    tools = {tool.name: tool for tool in server.tools()}
    assert tools["add"].description == "Add two numbers."
    assert list(tools["add"].parameters["properties"]) == ["a", "b"]
    assert server.call("add", {"a": 2, "b": 3}) == {"result": 5}
    assert server.call("describe", {"town": "Bonn"}) == {"town": "Bonn", "sky": "blue"}
    assert "fail" in server.call("fail", {})["error"]
    assert [tool.name for tool in chosen(list(tools.values()), ["add"])] == ["add"]


class _Odd(BaseHTTPRequestHandler):
    answers: dict[str, Any]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, kind, body = self.server.answers(asked, self.headers)  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Mcp-Session-Id", "s")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the test's output."""


@pytest.fixture
def odd() -> Iterator[Any]:
    server = HTTPServer(("127.0.0.1", 0), _Odd)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def address(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/mcp"


@pytest.mark.parametrize(
    ("status", "kind", "body", "reason"),
    [
        (500, "text/plain", b"broken", "500"),
        (200, "application/json", b"{", "Expecting"),
        (200, "application/json", b'{"id": 99, "result": {}}', "no answer"),
        (200, "application/json", b'{"id": 1, "error": {"message": "not today"}}', "not today"),
        (302, "text/plain", b"", "302"),
    ],
)
def test_what_does_not_speak_the_protocol_is_told(status: int, kind: str, body: bytes, reason: str, odd: Any) -> None:
    odd.answers = lambda asked, headers: (status, kind, body)
    with pytest.raises(McpFailed, match=reason):
        McpServer(address(odd), {}).tools()


def test_a_forgotten_session_is_begun_again(odd: Any) -> None:
    seen: list[str] = []

    def answer(asked: dict[str, Any], headers: Any) -> tuple[int, str, bytes]:
        seen.append(asked["method"])
        if asked["method"] == "tools/call" and seen.count("tools/call") == 2:
            return 404, "text/plain", b""
        content = {"content": [{"type": "text", "text": "hello"}]}
        reply = {"jsonrpc": "2.0", "id": asked.get("id"), "result": content}
        event = b"event: message\ndata: " + json.dumps(reply).encode() + b"\n\n"
        return 200, "text/event-stream", event

    odd.answers = answer
    server = McpServer(address(odd), {})
    assert [server.call("greet", {}), server.call("greet", {})] == [{"result": "hello"}] * 2
    assert seen.count("initialize") == 2


def test_nobody_listens_and_other_schemes_are_failures() -> None:
    for url in ("http://127.0.0.1:9/mcp", "file:///etc/passwd"):
        with pytest.raises(McpFailed):
            McpServer(url, {}).tools()
