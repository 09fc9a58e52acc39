"""The engine that runs an app's agents in a call."""

from __future__ import annotations

from callagent.agents.cx.engine.agent import SESSION_START, CxAgent, call_settings
from callagent.agents.cx.engine.agent_tree import app_tools, build_tree
from callagent.agents.cx.engine.ambient_sound import ambience_problem
from callagent.agents.cx.engine.conditions import other_tags, problems
from callagent.agents.cx.engine.instruction import render
from callagent.agents.cx.engine.platform_code import CxCode
from callagent.agents.cx.engine.recording_path import recording_place
from callagent.agents.cx.engine.telephony import as_map, read_uui
from callagent.agents.cx.engine.transfer_rules import expression_of
from callagent.agents.cx.engine.turn_effects import Stage

__all__ = [
    "SESSION_START",
    "CxAgent",
    "CxCode",
    "Stage",
    "ambience_problem",
    "app_tools",
    "as_map",
    "build_tree",
    "call_settings",
    "expression_of",
    "other_tags",
    "problems",
    "read_uui",
    "recording_place",
    "render",
]
