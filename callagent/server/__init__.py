"""The server: opens listeners, admits calls, routes them to projects, and ends everything in order."""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.server.local_server import LocalServer, find_server
    from callagent.server.process_health import reduce_garbage_collection
    from callagent.server.projects import chat, check, flow_settings, open_language_model, open_project, parse_instant
    from callagent.server.server import run

_MODULES = {
    "LocalServer": "local_server",
    "chat": "projects",
    "check": "projects",
    "find_server": "local_server",
    "flow_settings": "projects",
    "open_language_model": "projects",
    "open_project": "projects",
    "parse_instant": "projects",
    "reduce_garbage_collection": "process_health",
    "run": "server",
}

__all__ = [
    "LocalServer",
    "chat",
    "check",
    "find_server",
    "flow_settings",
    "open_language_model",
    "open_project",
    "parse_instant",
    "reduce_garbage_collection",
    "run",
]
__getattr__ = lazy_exports(__name__, _MODULES)
