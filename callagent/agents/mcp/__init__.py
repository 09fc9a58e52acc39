"""A blocking client of Model Context Protocol servers: over HTTP, over server-sent events, and of programs.

It is imported only in workers, and only when a project uses it, because it imports `requests`. Why it is not the
published `mcp` package: `docs/adr/0005-mcp-client.md`.
"""

from callagent.agents.mcp.http_wires import HttpWire, SseWire
from callagent.agents.mcp.server import McpServer, McpTool, list_all, select_tools
from callagent.agents.mcp.wires import McpFailed, ProgramWire, Wire

__all__ = [
    "HttpWire",
    "McpFailed",
    "McpServer",
    "McpTool",
    "ProgramWire",
    "SseWire",
    "Wire",
    "list_all",
    "select_tools",
]
