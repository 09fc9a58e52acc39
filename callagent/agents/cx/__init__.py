"""CX Agent Studio apps: load, check, run them as agents, and run their tests.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.cx.check import check_cx_app, check_cx_imports
    from callagent.agents.cx.evaluations import (
        Evaluations,
        Simulation,
        read_evaluations,
        read_tool_tests,
        run_tool_tests,
    )
    from callagent.agents.cx.format import is_cx_app, read_cx_app
    from callagent.agents.cx.goldens import Golden, Judge, call_failures, read_goldens, run_goldens
    from callagent.agents.cx.project import CxProject, UnknownDeployment, cx_runtime, load_cx_app
    from callagent.agents.cx.session_api import (
        TOOL_ANSWERS,
        CxSession,
        InputRefused,
        NotFound,
        SendOutput,
        Speak,
        SpokenProject,
        SpokenSession,
        event_words,
        whole_turns,
    )

_MODULES = {
    "CxProject": "project",
    "CxSession": "session_api",
    "Evaluations": "evaluations",
    "Golden": "goldens",
    "InputRefused": "session_api",
    "Judge": "goldens",
    "NotFound": "session_api",
    "SendOutput": "session_api",
    "Simulation": "evaluations",
    "Speak": "session_api",
    "SpokenProject": "session_api",
    "SpokenSession": "session_api",
    "TOOL_ANSWERS": "session_api",
    "UnknownDeployment": "project",
    "call_failures": "goldens",
    "check_cx_app": "check",
    "check_cx_imports": "check",
    "cx_runtime": "project",
    "event_words": "session_api",
    "is_cx_app": "format",
    "load_cx_app": "project",
    "read_cx_app": "format",
    "read_evaluations": "evaluations",
    "read_goldens": "goldens",
    "read_tool_tests": "evaluations",
    "run_goldens": "goldens",
    "run_tool_tests": "evaluations",
    "whole_turns": "session_api",
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
    "SendOutput",
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
