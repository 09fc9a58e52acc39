"""The MCP client against the official server, and against servers that misbehave."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.mcp import HttpWire, McpFailed, McpServer, ProgramWire, SseWire, Wire, list_all, select_tools
from tests.agents.mcp_server import PROGRAM, mcp_server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mcp_server() as address:
        yield address


def test_tools_are_listed_and_called(url: str) -> None:
    server = McpServer(HttpWire(url, {"Authorization": "Bearer key"}))
    tools = {tool.name: tool for tool in server.tools()}
    assert tools["add"].description == "Add two numbers."
    assert list(tools["add"].parameters["properties"]) == ["a", "b"]
    assert server.call("add", {"a": 2, "b": 3}) == {"result": 5}
    assert server.call("describe", {"town": "Bonn"}) == {"town": "Bonn", "sky": "blue"}
    assert "fail" in server.call("fail", {})["error"]
    assert [tool.name for tool in select_tools(list(tools.values()), ["add"])] == ["add"]


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
        McpServer(HttpWire(address(odd), {})).tools()


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
    server = McpServer(HttpWire(address(odd), {}))
    assert [server.call("greet", {}), server.call("greet", {})] == [{"result": "hello"}] * 2
    assert seen.count("initialize") == 2


def test_nobody_listens_and_other_schemes_are_failures() -> None:
    for url in ("http://127.0.0.1:9/mcp", "file:///etc/passwd"):
        with pytest.raises(McpFailed):
            McpServer(HttpWire(url, {})).tools()


def program(source: str = PROGRAM, environment: dict[str, str] | None = None) -> ProgramWire:
    return ProgramWire(sys.executable, ["-c", source], environment or {})


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    pytest.importorskip("mcp")
    if request.param == "program":
        yield program()
    else:
        with mcp_server("sse") as address:
            yield SseWire(address, {"Authorization": "Bearer key"})


@pytest.mark.parametrize("wire", ["sse", "program"], indirect=True)
def test_streams_and_programs_speak_the_protocol(wire: Wire) -> None:
    server = McpServer(wire)
    try:
        assert {"add", "describe"} <= {tool.name for tool in server.tools()}
        assert server.call("describe", {"town": "Bonn"}) == {"town": "Bonn", "sky": "blue"}
        assert "fail" in server.call("fail", {})["error"]
        with pytest.raises(McpFailed, match=r"no answer to tools/call within 0\.3 s"):
            server.call("wait", {"seconds": 5}, 0.3)
        # Several threads share the line, and each gets its own answer.
        with ThreadPoolExecutor(4) as threads:
            sums = list(threads.map(lambda number: server.call("add", {"a": number, "b": 1})["result"], range(20)))
        assert sums == list(range(1, 21))
        server.close()
        assert server.call("add", {"a": 1, "b": 1}) == {"result": 2}
    finally:
        server.close()


def test_a_program_sees_no_environment_but_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    monkeypatch.setenv("BOOKING_API_KEY", "secret")
    server = McpServer(program(environment={"TOWN": "Bonn"}))
    try:
        found = {name: server.call("variable", {"name": name})["result"] for name in ("BOOKING_API_KEY", "TOWN")}
        assert found == {"BOOKING_API_KEY": "none", "TOWN": "Bonn"}
        assert server.call("variable", {"name": "PATH"})["result"] == os.environ["PATH"]
    finally:
        server.close()


def test_a_program_is_gone_when_it_is_closed_and_starts_anew_when_it_died() -> None:
    pytest.importorskip("mcp")
    server = McpServer(program())
    first = server.call("process", {})["result"]
    os.kill(first, signal.SIGKILL)
    wait_until_gone(first)
    second = server.call("process", {})["result"]
    assert second != first
    server.close()
    wait_until_gone(second)
    third = McpServer(program())
    last = third.call("process", {})["result"]
    del third
    gc.collect()
    wait_until_gone(last)


def wait_until_gone(number: int) -> None:
    until = time.monotonic() + 60
    while Path(f"/proc/{number}").exists():
        assert time.monotonic() < until, "the program still runs"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("source", "timeout", "reason"),
    [
        ("import sys; print('no key', file=sys.stderr); sys.exit(3)", 60, r"the program ended \(3\): no key"),
        ("print('hello'); print('{}'); input()", 60, "the program ended"),
        ("import time; time.sleep(30)", 1, "no answer to initialize within 1 s"),
    ],
)
def test_a_program_that_is_no_server_is_told(source: str, timeout: float, reason: str) -> None:
    server = McpServer(program(source), timeout=timeout)
    with pytest.raises(McpFailed, match=reason):
        server.tools()
    server.close()


def test_a_program_that_is_not_there_and_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(McpFailed, match="cannot be started"):
        McpServer(ProgramWire("/no/such/program", [], {})).tools()
    monkeypatch.setattr("callagent.agents.mcp.wires.MAX_PROGRAMS", 0)
    with pytest.raises(McpFailed, match="0 programs run already"):
        McpServer(program()).tools()


ASKS_BACK = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {}}), flush=True)
    elif asked.get("method") == "tools/call":
        wanted = asked["id"]
        for number, method in ((901, "ping"), (902, "roots/list")):
            print(json.dumps({"jsonrpc": "2.0", "id": number, "method": method}), flush=True)
        answers = [json.loads(sys.stdin.readline()) for _ in range(2)]
        shown = {str(each["id"]): "error" if "error" in each else "result" for each in answers}
        print(json.dumps({"jsonrpc": "2.0", "id": wanted, "result": {"structuredContent": shown}}), flush=True)
"""


def test_what_a_server_asks_is_answered() -> None:
    server = McpServer(program(ASKS_BACK))
    try:
        assert server.call("any", {}) == {"901": "result", "902": "error"}
    finally:
        server.close()


class _Stream(BaseHTTPRequestHandler):
    """Says where messages go, and answers those of `initialize` only."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.server.stream = self.wfile  # type: ignore[attr-defined]
        self._send(b"event: endpoint\ndata: " + self.server.endpoint + b"\n\n")  # type: ignore[attr-defined]
        self.server.over.wait(60)  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked["method"])  # type: ignore[attr-defined]
        failed = asked["method"] == "tools/call"
        self.send_response(500 if failed else 202)
        self.end_headers()
        if asked["method"] == "initialize":
            reply = {"jsonrpc": "2.0", "id": asked["id"], "result": {}}
            self._send(b"data: " + json.dumps(reply).encode() + b"\n\n")

    def _send(self, data: bytes) -> None:
        self.server.stream.write(data)  # type: ignore[attr-defined]
        self.server.stream.flush()  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the test's output."""


@pytest.fixture
def stream() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stream)
    server.asked, server.over = [], threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.over.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


def test_messages_of_a_stream_go_to_its_own_server_only(stream: Any) -> None:
    stream.endpoint = b"http://example.invalid/messages"
    with pytest.raises(McpFailed, match="another server"):
        McpServer(SseWire(address(stream), {}), timeout=60).tools()


def test_a_call_that_may_have_been_carried_out_is_not_asked_again(stream: Any) -> None:
    stream.endpoint = b"/messages"
    server = McpServer(SseWire(address(stream), {}), timeout=60)
    with pytest.raises(McpFailed, match="500"):
        server.call("book", {})
    assert stream.asked == ["initialize", "notifications/initialized", "tools/call"]
    server.close()


def test_keys_in_an_address_are_not_in_messages() -> None:
    for wire in (HttpWire("http://me:word@127.0.0.1:9/mcp?key=k1", {}), SseWire("http://127.0.0.1:9/sse?key=k1", {})):
        with pytest.raises(McpFailed) as failed:
            McpServer(wire).tools()
        assert "k1" not in str(failed.value)
        assert "word" not in str(failed.value)


def test_all_servers_are_asked_at_once() -> None:
    def broken() -> McpServer:
        raise LookupError("no key")

    slow = McpServer(program("import time; time.sleep(30)"), timeout=0.5)
    other = McpServer(program("import time; time.sleep(30)"), timeout=0.5)
    began = time.monotonic()
    found = list_all([lambda: slow, broken, lambda: other])
    assert time.monotonic() - began < 5
    assert [type(each).__name__ for each in found] == ["McpFailed", "LookupError", "McpFailed"]
    slow.close()
    other.close()
