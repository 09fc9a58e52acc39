"""CX Agent Studio apps: load, check, run them as agents, and run their tests.

The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent.agents.light_front import light_front

if TYPE_CHECKING:
    from callagent.agents.cx.check import check_cx_app, check_cx_imports
    from callagent.agents.cx.cx_project import CxProject, UnknownDeployment, cx_runtime, load_cx_app
    from callagent.agents.cx.evaluations import Evaluations, Simulation, read_evaluations
    from callagent.agents.cx.files import is_cx_app
    from callagent.agents.cx.goldens import Golden, Judge, call_failures, read_goldens, run_goldens
    from callagent.agents.cx.load import read_cx_app
    from callagent.agents.cx.session import CxSession, InputRefused, NotFound, Speak, event_words, whole_turns
    from callagent.agents.cx.spoken_session import TOOL_ANSWERS, SpokenProject, SpokenSession
    from callagent.agents.cx.tool_tests import read_tool_tests, run_tool_tests
    from callagent.agents.tree.settings import TreeSettings

_MODULES = {
    "CxProject": "cx.cx_project",
    "CxSession": "cx.session",
    "Evaluations": "cx.evaluations",
    "Golden": "cx.goldens",
    "InputRefused": "cx.session",
    "Judge": "cx.goldens",
    "Simulation": "cx.evaluations",
    "Speak": "cx.session",
    "NotFound": "cx.session",
    "SpokenProject": "cx.spoken_session",
    "SpokenSession": "cx.spoken_session",
    "TOOL_ANSWERS": "cx.spoken_session",
    "TreeSettings": "tree.settings",
    "UnknownDeployment": "cx.cx_project",
    "call_failures": "cx.goldens",
    "check_cx_app": "cx.check",
    "check_cx_imports": "cx.check",
    "cx_runtime": "cx.cx_project",
    "event_words": "cx.session",
    "is_cx_app": "cx.files",
    "load_cx_app": "cx.cx_project",
    "read_cx_app": "cx.load",
    "read_evaluations": "cx.evaluations",
    "read_goldens": "cx.goldens",
    "read_tool_tests": "cx.tool_tests",
    "run_goldens": "cx.goldens",
    "run_tool_tests": "cx.tool_tests",
    "whole_turns": "cx.session",
}

__all__ = [
    "TOOL_ANSWERS",
    "CxProject",
    "CxSession",
    "Evaluations",
    "Golden",
    "InputRefused",
    "Judge",
    "NotFound",
    "Simulation",
    "Speak",
    "SpokenProject",
    "SpokenSession",
    "TreeSettings",
    "UnknownDeployment",
    "call_failures",
    "check_cx_app",
    "check_cx_imports",
    "cx_runtime",
    "event_words",
    "is_cx_app",
    "load_cx_app",
    "read_cx_app",
    "read_evaluations",
    "read_goldens",
    "read_tool_tests",
    "run_goldens",
    "run_tool_tests",
    "whole_turns",
]

__getattr__ = light_front(__name__, _MODULES)
