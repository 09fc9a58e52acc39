"""The agent-config YAML format: what a project's files may contain, and everything that is wrong with them.

Nothing here runs the project's Python.
"""

from __future__ import annotations

from callagent.agents.adk.format.config import ROOT_FILE, AgentConfig, ToolConfig, is_adk_project, load_config
from callagent.agents.adk.format.editor_schema import agent_config_schema
from callagent.agents.adk.format.fields import (
    ALLOW_PROGRAMS,
    EFFECTIVE,
    HEEDED_BY,
    MCP_TOOLSETS,
    MCP_WITHOUT_EFFECT,
    PHONE,
    SAMPLING,
    absolute,
    flag,
    snake_case,
    whole_number,
)

__all__ = [
    "ALLOW_PROGRAMS",
    "EFFECTIVE",
    "HEEDED_BY",
    "MCP_TOOLSETS",
    "MCP_WITHOUT_EFFECT",
    "PHONE",
    "ROOT_FILE",
    "SAMPLING",
    "AgentConfig",
    "ToolConfig",
    "absolute",
    "agent_config_schema",
    "flag",
    "is_adk_project",
    "load_config",
    "snake_case",
    "whole_number",
]
