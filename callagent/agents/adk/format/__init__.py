"""The agent-config YAML format: what a project's files may contain, and everything that is wrong with them.

Nothing here runs the project's Python.
"""

from __future__ import annotations

from callagent.agents.adk.format.config import ROOT_FILE, AgentConfig, ToolConfig, is_adk_project, load_config
from callagent.agents.adk.format.editor_schema import agent_config_schema
from callagent.agents.adk.format.fields import (
    ALLOW_PROGRAMS,
    EFFECTIVE_GENERATION_KEYS,
    IGNORED_MCP_ARGUMENTS,
    MCP_TOOLSETS,
    PHONE,
    PROVIDER_SPECIFIC_KEYS,
    SAMPLING,
    absolute_reference,
    flag,
    snake_case,
    whole_number,
)

__all__ = [
    "ALLOW_PROGRAMS",
    "EFFECTIVE_GENERATION_KEYS",
    "IGNORED_MCP_ARGUMENTS",
    "MCP_TOOLSETS",
    "PHONE",
    "PROVIDER_SPECIFIC_KEYS",
    "ROOT_FILE",
    "SAMPLING",
    "AgentConfig",
    "ToolConfig",
    "absolute_reference",
    "agent_config_schema",
    "flag",
    "is_adk_project",
    "load_config",
    "snake_case",
    "whole_number",
]
