"""Flow projects (PolyAI ADK format): load, check, and run them as agents.

`format` reads the files, `check` judges them, `engine` follows them in a call, `runtime` runs their Python in a worker,
`senders` deliver text messages and e-mails. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.flows.check import (
        check_imports,
        check_project,
    )
    from callagent.agents.flows.engine import (
        FileMemory,
        FlowSettings,
    )
    from callagent.agents.flows.flow_project import (
        FlowProject,
        load_flow_project,
        project_runtime,
    )
    from callagent.agents.flows.format import (
        Flow,
        ProjectFunction,
        RealTimeConfiguration,
        TestCase,
        is_flow_project,
        load_project,
        load_test_cases,
    )
    from callagent.agents.flows.senders import (
        MessageRules,
        MessageSender,
        OptOuts,
        Outside,
    )

_MODULES = {
    "FileMemory": "engine",
    "Flow": "format",
    "FlowProject": "flow_project",
    "FlowSettings": "engine",
    "MessageRules": "senders",
    "MessageSender": "senders",
    "OptOuts": "senders",
    "Outside": "senders",
    "ProjectFunction": "format",
    "RealTimeConfiguration": "format",
    "TestCase": "format",
    "check_imports": "check",
    "check_project": "check",
    "is_flow_project": "format",
    "load_flow_project": "flow_project",
    "load_project": "format",
    "load_test_cases": "format",
    "project_runtime": "flow_project",
}

__all__ = [
    "FileMemory",
    "Flow",
    "FlowProject",
    "FlowSettings",
    "MessageRules",
    "MessageSender",
    "OptOuts",
    "Outside",
    "ProjectFunction",
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
