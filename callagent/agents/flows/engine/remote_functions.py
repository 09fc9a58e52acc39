"""Functions of MCP servers, and secrets for workers.

The core reads the secrets, so that their folder stays closed to project code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from callagent.agents.flows.format import MCP_FILE, ProjectFunction
from callagent.agents.kernel import SECRET_NAME, tool_name
from callagent.errors import WorkerError
from callagent.log import get_logger
from callagent.workers import Lease, Plain

log = get_logger(__name__)
REMOTE = "remote"
"""The kind of a function that an MCP server runs; its `flow` is the server's provider_id."""
MAX_LIST_SECONDS = 60.0
"""Deadline for the function lists of all MCP servers, before the first call."""
_MAX_CHARACTERS = 1024 * 1024


async def read_secret(folder: str | None, name: str) -> str | None:
    """Return the text of the file `name` in `folder`; None where there is none."""
    if folder is None or not SECRET_NAME.fullmatch(name):
        return None
    return await asyncio.to_thread(_read, Path(folder, name))


def answer_secrets(folder: str | None) -> Callable[[Plain], Awaitable[Any] | None]:
    """Return a handler that answers requests for secrets of a worker outside a call."""

    def on_message(message: Plain) -> Awaitable[Any] | None:
        return read_secret(folder, str(message.get("name"))) if message.get("type") == "secret" else None

    return on_message


def _read(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        return file.read(_MAX_CHARACTERS).strip()


async def fetch_remote_functions(
    lease: Lease, taken: Container[str], secrets_dir: str | None = None
) -> dict[str, ProjectFunction]:
    """Ask the MCP servers for their functions, by the name the model sees. One that does not answer is logged.

    `taken` holds names of the project's own functions, which win over those of a server.
    """
    try:
        answer = await lease.run(
            {"op": "describe_remote"}, timeout=MAX_LIST_SECONDS, on_message=answer_secrets(secrets_dir)
        )
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
        found[shown] = ProjectFunction(name, REMOTE, provider, MCP_FILE, 1, description, schema=schema)
    return found
