"""Agent-config projects of the Agent Development Kit (ADK): load them, check them, run them as agents.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.adk.agent_config import is_adk_project
    from callagent.agents.adk.config_keys import agent_config_schema
    from callagent.agents.adk.project import (
        AdkProject,
        adk_runtime,
        check_adk_imports,
        check_adk_project,
        load_adk_project,
    )

_MODULES = {
    "AdkProject": "project",
    "adk_runtime": "project",
    "agent_config_schema": "config_keys",
    "check_adk_imports": "project",
    "check_adk_project": "project",
    "is_adk_project": "agent_config",
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
