"""CX Agent Studio apps: load, check, run them as agents, and run their tests.

The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callagent.agents.cx.check import check_cx_app, check_cx_imports
    from callagent.agents.cx.cx_project import CxProject, cx_runtime, load_cx_app
    from callagent.agents.cx.files import is_cx_app
    from callagent.agents.cx.goldens import read_goldens, run_goldens
    from callagent.agents.cx.load import read_cx_app
    from callagent.agents.cx.tool_tests import read_tool_tests, run_tool_tests
    from callagent.agents.tree.settings import TreeSettings

_MODULES = {
    "CxProject": "cx.cx_project",
    "TreeSettings": "tree.settings",
    "check_cx_app": "cx.check",
    "check_cx_imports": "cx.check",
    "cx_runtime": "cx.cx_project",
    "is_cx_app": "cx.files",
    "load_cx_app": "cx.cx_project",
    "read_cx_app": "cx.load",
    "read_goldens": "cx.goldens",
    "read_tool_tests": "cx.tool_tests",
    "run_goldens": "cx.goldens",
    "run_tool_tests": "cx.tool_tests",
}

__all__ = [
    "CxProject",
    "TreeSettings",
    "check_cx_app",
    "check_cx_imports",
    "cx_runtime",
    "is_cx_app",
    "load_cx_app",
    "read_cx_app",
    "read_goldens",
    "read_tool_tests",
    "run_goldens",
    "run_tool_tests",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"callagent.agents.{_MODULES[name]}"), name)
