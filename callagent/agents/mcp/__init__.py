"""A client of Model Context Protocol servers: over HTTP, over server-sent events, and of programs.

Imported in workers only, and there when it is needed: it brings the library `requests`.
"""

from __future__ import annotations

from callagent.agents.mcp.http_wires import HttpWire, SseWire
from callagent.agents.mcp.program_wire import ProgramWire
from callagent.agents.mcp.server import McpServer, McpTool, chosen, list_all
from callagent.agents.mcp.wire import McpFailed, Wire

__all__ = [
    "HttpWire",
    "McpFailed",
    "McpServer",
    "McpTool",
    "ProgramWire",
    "SseWire",
    "Wire",
    "chosen",
    "list_all",
]
