"""Agents and their projects: the contract of the call with an agent, and the project formats in the sub-packages.

Names are imported when they are first used, so that `callagent --help` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.actions import (
        Action,
        Attach,
        ControlRecording,
        DelayResponse,
        DigitSettings,
        FunctionEnded,
        FunctionStarted,
        Handoff,
        HangUp,
        LatencyControl,
        LimitReached,
        Listen,
        ListenSettings,
        MetricWritten,
        ModelAnswered,
        Say,
        SetBackground,
        SetLanguage,
        SetThinkingSound,
        SetVoice,
        StepEntered,
        WaitEnded,
        WaitStarted,
    )
    from callagent.agents.kernel import CheckReport, Finding
    from callagent.agents.protocol import (
        Agent,
        AgentProject,
        AgentRecord,
        CallerTurn,
        Emit,
        HandoffFailed,
        MetricWriter,
        ProjectGraph,
        PromptPosition,
        ResumableProject,
    )

_MODULES = {
    "Action": "actions",
    "Agent": "protocol",
    "AgentProject": "protocol",
    "AgentRecord": "protocol",
    "Attach": "actions",
    "CallerTurn": "protocol",
    "CheckReport": "kernel",
    "ControlRecording": "actions",
    "DelayResponse": "actions",
    "DigitSettings": "actions",
    "Emit": "protocol",
    "Finding": "kernel",
    "FunctionEnded": "actions",
    "FunctionStarted": "actions",
    "Handoff": "actions",
    "HandoffFailed": "protocol",
    "HangUp": "actions",
    "LatencyControl": "actions",
    "LimitReached": "actions",
    "Listen": "actions",
    "ListenSettings": "actions",
    "MetricWriter": "protocol",
    "MetricWritten": "actions",
    "ModelAnswered": "actions",
    "ProjectGraph": "protocol",
    "PromptPosition": "protocol",
    "ResumableProject": "protocol",
    "Say": "actions",
    "SetBackground": "actions",
    "SetLanguage": "actions",
    "SetThinkingSound": "actions",
    "SetVoice": "actions",
    "StepEntered": "actions",
    "WaitEnded": "actions",
    "WaitStarted": "actions",
}

__all__ = [
    "Action",
    "Agent",
    "AgentProject",
    "AgentRecord",
    "Attach",
    "CallerTurn",
    "CheckReport",
    "ControlRecording",
    "DelayResponse",
    "DigitSettings",
    "Emit",
    "Finding",
    "FunctionEnded",
    "FunctionStarted",
    "Handoff",
    "HandoffFailed",
    "HangUp",
    "LatencyControl",
    "LimitReached",
    "Listen",
    "ListenSettings",
    "MetricWriter",
    "MetricWritten",
    "ModelAnswered",
    "ProjectGraph",
    "PromptPosition",
    "ResumableProject",
    "Say",
    "SetBackground",
    "SetLanguage",
    "SetThinkingSound",
    "SetVoice",
    "StepEntered",
    "WaitEnded",
    "WaitStarted",
]

__getattr__ = lazy_exports(__name__, _MODULES)
