"""CX Agent Studio apps: load, check, run them as agents, and run their tests.

The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

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

_MODULES = {
    "CxProject": "cx_project",
    "CxSession": "session",
    "Evaluations": "evaluations",
    "Golden": "goldens",
    "InputRefused": "session",
    "Judge": "goldens",
    "Simulation": "evaluations",
    "Speak": "session",
    "NotFound": "session",
    "SpokenProject": "spoken_session",
    "SpokenSession": "spoken_session",
    "TOOL_ANSWERS": "spoken_session",
    "UnknownDeployment": "cx_project",
    "call_failures": "goldens",
    "check_cx_app": "check",
    "check_cx_imports": "check",
    "cx_runtime": "cx_project",
    "event_words": "session",
    "is_cx_app": "files",
    "load_cx_app": "cx_project",
    "read_cx_app": "load",
    "read_evaluations": "evaluations",
    "read_goldens": "goldens",
    "read_tool_tests": "tool_tests",
    "run_goldens": "goldens",
    "run_tool_tests": "tool_tests",
    "whole_turns": "session",
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

__getattr__ = lazy_exports(__name__, _MODULES)
