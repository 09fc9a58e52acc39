"""Agent-config YAML trees: load, check, and run them as agents.

The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent.agents.light_front import light_front

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

__getattr__ = light_front(__name__, _MODULES)
