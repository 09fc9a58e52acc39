"""The server: opens listeners, admits calls, routes them to projects, and ends everything in order."""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.server.local_server import LocalServer, find_server
    from callagent.server.process_health import calm_collector
    from callagent.server.projects import chat, check, flow_settings, instant, open_language_model, open_project
    from callagent.server.server import run

_MODULES = {
    "LocalServer": "local_server",
    "calm_collector": "process_health",
    "chat": "projects",
    "check": "projects",
    "find_server": "local_server",
    "flow_settings": "projects",
    "instant": "projects",
    "open_language_model": "projects",
    "open_project": "projects",
    "run": "server",
}

__all__ = [
    "LocalServer",
    "calm_collector",
    "chat",
    "check",
    "find_server",
    "flow_settings",
    "instant",
    "open_language_model",
    "open_project",
    "run",
]
__getattr__ = lazy_exports(__name__, _MODULES)
