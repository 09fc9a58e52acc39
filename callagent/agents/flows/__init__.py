"""Flow projects: load, check, and run them as agents.

The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.flows.check import check_imports, check_project
    from callagent.agents.flows.flow_project import FlowProject, load_flow_project, project_runtime
    from callagent.agents.flows.load import is_flow_project, load_project
    from callagent.agents.flows.memory import FileMemory
    from callagent.agents.flows.messages import MessageRules, MessageSender
    from callagent.agents.flows.opt_outs import OptOuts
    from callagent.agents.flows.outside import Outside
    from callagent.agents.flows.real_time import RealTimeConfiguration
    from callagent.agents.flows.settings import FlowSettings
    from callagent.agents.flows.test_cases import TestCase, load_test_cases

_MODULES = {
    "FileMemory": "memory",
    "FlowProject": "flow_project",
    "FlowSettings": "settings",
    "MessageRules": "messages",
    "MessageSender": "messages",
    "OptOuts": "opt_outs",
    "Outside": "outside",
    "RealTimeConfiguration": "real_time",
    "TestCase": "test_cases",
    "check_imports": "check",
    "check_project": "check",
    "is_flow_project": "load",
    "load_flow_project": "flow_project",
    "load_project": "load",
    "load_test_cases": "test_cases",
    "project_runtime": "flow_project",
}

__all__ = [
    "FileMemory",
    "FlowProject",
    "FlowSettings",
    "MessageRules",
    "MessageSender",
    "OptOuts",
    "Outside",
    "RealTimeConfiguration",
    "TestCase",
    "check_imports",
    "check_project",
    "is_flow_project",
    "load_flow_project",
    "load_project",
    "load_test_cases",
    "project_runtime",
]

__getattr__ = lazy_exports(__name__, _MODULES)
