"""An MCP server of the official package, on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_PROGRAM = """
import socket, uvicorn
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

sock = socket.socket()
sock.bind(("127.0.0.1", 0))
sock.listen(10)
print(sock.getsockname()[1], flush=True)
config = uvicorn.Config(server.streamable_http_app(), log_level="error")
uvicorn.Server(config).run(sockets=[sock])
"""


@contextmanager
def mcp_server() -> Iterator[str]:
    """Its address; skips the test where the package is not installed."""
    pytest.importorskip("mcp")
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the server did not start"
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
