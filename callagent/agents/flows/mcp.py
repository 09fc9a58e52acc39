"""`config/mcp.yaml`: Model Context Protocol servers, whose functions the model may call outside of flows."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from callagent.agents.flows.functions import ProjectFunction
from callagent.agents.flows.names import tool_name
from callagent.agents.flows.secrets import answer_secrets
from callagent.agents.kernel import Reader
from callagent.errors import WorkerError
from callagent.log import get_logger
from callagent.workers.protocol import Lease

log = get_logger(__name__)
FILE = "config/mcp.yaml"
DEFAULT_TIMEOUT = 10.0
REMOTE = "remote"
"""The kind of a function that an MCP server runs; its `flow` is the server's provider_id."""
ASK_SECONDS = 60.0
"""For the lists of all servers, before the first call."""


@dataclass(frozen=True, slots=True)
class McpConfig:
    provider: str
    url: str
    auth: Mapping[str, Any]
    """`header`, `query_param` or `oauth`; empty: none."""
    timeout: float
    enabled: tuple[str, ...] | None
    """None: all."""

    def plain(self) -> dict[str, Any]:
        """What a worker needs of it."""
        enabled = None if self.enabled is None else list(self.enabled)
        return {"url": self.url, "auth": dict(self.auth), "timeout": self.timeout, "enabled": enabled}


def load_mcp(root: Reader) -> tuple[McpConfig, ...]:
    found = []
    for server in root.maps("mcp_servers"):
        auth = server.raw("auth")
        found.append(
            McpConfig(
                provider=str(server.raw("provider_id") or ""),
                url=server.text("url"),
                auth=auth if isinstance(auth, dict) else {},
                timeout=server.number("timeout") or DEFAULT_TIMEOUT,
                enabled=server.texts("enabled_functions") if "enabled_functions" in server else None,
            )
        )
    return tuple(found)


def check_mcp(root: Reader) -> None:
    seen: set[str] = set()
    for server in root.maps("mcp_servers"):
        name = server.required_text("provider_id")
        if name in seen:
            server.error(f"provider_id '{name}' is used twice.", "provider_id")
        seen.add(name)
        if not server.text("url").startswith(("http://", "https://")):
            server.error("'url' should be an http(s) address.", "url")
        kinds = [kind for kind in ("header", "query_param", "oauth") if kind in server.map("auth")]
        if "auth" in server and len(kinds) != 1:
            server.error("'auth' should hold exactly one of header, query_param and oauth.", "auth")
        timeout = server.number("timeout")
        if timeout is not None and not 1 <= timeout <= 30:
            server.error("'timeout' should be between 1 and 30 seconds.", "timeout")
        server.texts("enabled_functions")


async def remote_functions(
    lease: Lease, taken: Container[str], secrets_dir: str | None = None
) -> dict[str, ProjectFunction]:
    """What the servers offer, by the name the model sees. A server that does not answer offers nothing, and is logged.

    `taken`: names of the project's own functions, which win.
    """
    try:
        answer = await lease.run({"op": "describe_remote"}, timeout=ASK_SECONDS, on_message=answer_secrets(secrets_dir))
    except WorkerError as error:
        log.error("mcp_servers_not_asked", error=str(error))
        return {}
    for failure in answer.get("failures") or ():
        log.error("mcp_server_failed", server=failure["provider"], error=failure["error"])
    return _named(answer.get("functions") or (), taken)


def _named(described: Iterable[Mapping[str, Any]], taken: Container[str]) -> dict[str, ProjectFunction]:
    found: dict[str, ProjectFunction] = {}
    for each in described:
        name, provider = str(each["name"]), str(each["provider"])
        shown = name if name not in taken and name not in found else tool_name(provider, name)
        description, schema = str(each["description"]), each["parameters"]
        found[shown] = ProjectFunction(name, REMOTE, provider, FILE, 1, description, schema=schema)
    return found
