"""The engine that runs an app's agents in a call."""

from callagent.agents.cx.engine.agent import SESSION_START, CxAgent
from callagent.agents.cx.engine.agent_tree import app_tools, build_tree
from callagent.agents.cx.engine.instruction import condition_problems, other_tag_lines, render_instruction
from callagent.agents.cx.engine.platform_code import PlatformCode
from callagent.agents.cx.engine.telephony import (
    ambient_sound_problem,
    as_map,
    read_call_settings,
    recording_folder,
    telephony_variables,
)
from callagent.agents.cx.engine.transfer_rules import condition_expression
from callagent.agents.cx.engine.turn_effects import TurnEffects

__all__ = [
    "SESSION_START",
    "CxAgent",
    "PlatformCode",
    "TurnEffects",
    "ambient_sound_problem",
    "app_tools",
    "as_map",
    "build_tree",
    "condition_expression",
    "condition_problems",
    "other_tag_lines",
    "read_call_settings",
    "recording_folder",
    "render_instruction",
    "telephony_variables",
]
