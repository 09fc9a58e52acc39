"""Flow projects: load, check, and run them as agents.

The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent.agents.light_front import light_front

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
    "FileMemory": "flows.memory",
    "FlowProject": "flows.flow_project",
    "FlowSettings": "flows.settings",
    "MessageRules": "flows.messages",
    "MessageSender": "flows.messages",
    "OptOuts": "flows.opt_outs",
    "Outside": "flows.outside",
    "RealTimeConfiguration": "flows.real_time",
    "TestCase": "flows.test_cases",
    "check_imports": "flows.check",
    "check_project": "flows.check",
    "is_flow_project": "flows.load",
    "load_flow_project": "flows.flow_project",
    "load_project": "flows.load",
    "load_test_cases": "flows.test_cases",
    "project_runtime": "flows.flow_project",
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

__getattr__ = light_front(__name__, _MODULES)
