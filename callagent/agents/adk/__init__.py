"""Agent-config projects of the Agent Development Kit (ADK): load them, check them, run them as agents.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.adk.check import check_adk_imports, check_adk_project
    from callagent.agents.adk.format import agent_config_schema, is_adk_project
    from callagent.agents.adk.project import AdkProject, adk_runtime, load_adk_project

_MODULES = {
    "AdkProject": "project",
    "adk_runtime": "project",
    "agent_config_schema": "format",
    "check_adk_imports": "check",
    "check_adk_project": "check",
    "is_adk_project": "format",
    "load_adk_project": "project",
}

__all__ = [
    "AdkProject",
    "adk_runtime",
    "agent_config_schema",
    "check_adk_imports",
    "check_adk_project",
    "is_adk_project",
    "load_adk_project",
]

__getattr__ = lazy_exports(__name__, _MODULES)
