"""MCP servers of the official package: on loopback, over HTTP and server-sent events, and as a program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_TOOLS = """
import os, socket, sys, time
from mcp.server import MCPServer

server = MCPServer("towns")

@server.tool()
def add(a: int, b: int) -> int:
    '''Add two numbers.'''
    return a + b

@server.tool()
def describe(town: str) -> dict:
    '''Describe a town.'''
    return {"town": town, "sky": "blue"}

@server.tool()
def fail() -> str:
    '''Fail.'''
    raise ValueError("no such town")

@server.tool()
def variable(name: str) -> str:
    '''A variable of the environment.'''
    return os.environ.get(name, "none")

@server.tool()
def process() -> int:
    '''The number of this process.'''
    return os.getpid()

@server.tool()
def wait(seconds: float) -> str:
    '''Answer later.'''
    time.sleep(seconds)
    return "done"
"""

_OVER_HTTP = (
    _TOOLS
    + """
import uvicorn

sock = socket.socket()
sock.bind(("127.0.0.1", int(sys.argv[2])))
sock.listen(10)
print(sock.getsockname()[1], flush=True)
app = server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[sock])
"""
)

PROGRAM = _TOOLS + "\nserver.run('stdio')\n"
"""The same server on its standard input and output: `python -c PROGRAM`."""


@contextmanager
def mcp_server(transport: str = "mcp", port: int = 0) -> Iterator[str]:
    """Its address; `transport`: `mcp` or `sse`. Skips the test where the package is not installed."""
    pytest.importorskip("mcp")
    process = subprocess.Popen(
        [sys.executable, "-c", _OVER_HTTP, transport, str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = process.stdout.readline().strip()
        assert found, "the server did not start"
        yield f"http://127.0.0.1:{found}/{transport}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
