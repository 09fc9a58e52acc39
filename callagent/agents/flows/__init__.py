"""Flow projects (PolyAI ADK format): load, check, and run them as agents.

`format` reads the files, `check` judges them, `engine` follows them in a call, `runtime` runs their Python in a worker,
`message_providers` deliver text messages and e-mails. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.flows.check import check_imports, check_project
    from callagent.agents.flows.engine import FileMemory, FlowSettings
    from callagent.agents.flows.external_events import ExternalExchange
    from callagent.agents.flows.flow_project import FlowProject, load_flow_project, project_runtime
    from callagent.agents.flows.format import (
        Flow,
        ProjectFunction,
        RealTimeConfiguration,
        TestCase,
        is_flow_project,
        load_project,
        load_test_cases,
    )
    from callagent.agents.flows.message_providers import SmtpSender, SmtpSettings, TelnyxSender, TwilioSender
    from callagent.agents.flows.messages import MessageRules, MessageSender, OptOuts

_MODULES = {
    "FileMemory": "engine",
    "Flow": "format",
    "FlowProject": "flow_project",
    "FlowSettings": "engine",
    "MessageRules": "messages",
    "MessageSender": "messages",
    "OptOuts": "messages",
    "ExternalExchange": "external_events",
    "ProjectFunction": "format",
    "RealTimeConfiguration": "format",
    "SmtpSender": "message_providers",
    "SmtpSettings": "message_providers",
    "TelnyxSender": "message_providers",
    "TestCase": "format",
    "TwilioSender": "message_providers",
    "check_imports": "check",
    "check_project": "check",
    "is_flow_project": "format",
    "load_flow_project": "flow_project",
    "load_project": "format",
    "load_test_cases": "format",
    "project_runtime": "flow_project",
}

__all__ = [
    "ExternalExchange",
    "FileMemory",
    "Flow",
    "FlowProject",
    "FlowSettings",
    "MessageRules",
    "MessageSender",
    "OptOuts",
    "ProjectFunction",
    "RealTimeConfiguration",
    "SmtpSender",
    "SmtpSettings",
    "TelnyxSender",
    "TestCase",
    "TwilioSender",
    "check_imports",
    "check_project",
    "is_flow_project",
    "load_flow_project",
    "load_project",
    "load_test_cases",
    "project_runtime",
]

__getattr__ = lazy_exports(__name__, _MODULES)
