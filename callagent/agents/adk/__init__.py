"""Agent-config YAML trees: load, check, and run them as agents.

The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callagent.agents.adk.adk_project import AdkProject, adk_runtime, load_adk_project
    from callagent.agents.adk.check import check_adk_imports, check_adk_project
    from callagent.agents.adk.config import is_adk_project
    from callagent.agents.adk.editor_schema import agent_config_schema
    from callagent.agents.adk.trace import record_trace
    from callagent.agents.tree.settings import TreeSettings

_MODULES = {
    "AdkProject": "adk.adk_project",
    "TreeSettings": "tree.settings",
    "adk_runtime": "adk.adk_project",
    "agent_config_schema": "adk.editor_schema",
    "check_adk_imports": "adk.check",
    "check_adk_project": "adk.check",
    "is_adk_project": "adk.config",
    "load_adk_project": "adk.adk_project",
    "record_trace": "adk.trace",
}

__all__ = [
    "AdkProject",
    "TreeSettings",
    "adk_runtime",
    "agent_config_schema",
    "check_adk_imports",
    "check_adk_project",
    "is_adk_project",
    "load_adk_project",
    "record_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"callagent.agents.{_MODULES[name]}"), name)
