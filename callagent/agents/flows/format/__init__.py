"""The documents of a flow project, read into typed data (`Project`) without running project code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.flows.format.agent_settings import (
        SafetyFilters,
    )
    from callagent.agents.flows.format.config import (
        MCP_FILE,
        Entity,
        HandoffTarget,
        SmsTemplate,
        Variants,
        find_handoff,
        translate,
    )
    from callagent.agents.flows.format.experimental import (
        ExperimentalSettings,
        PositionSettings,
        RetrievalSettings,
        positive,
    )
    from callagent.agents.flows.format.functions import (
        SCHEMA_TYPES,
        ProjectFunction,
    )
    from callagent.agents.flows.format.graph import (
        project_graph,
    )
    from callagent.agents.flows.format.load import (
        is_flow_project,
        load_project,
    )
    from callagent.agents.flows.format.project import (
        Flow,
        Project,
    )
    from callagent.agents.flows.format.real_time import (
        RealTimeConfiguration,
        check_real_time,
    )
    from callagent.agents.flows.format.steps import (
        Biasing,
        Condition,
        Step,
        seconds,
    )
    from callagent.agents.flows.format.test_cases import (
        TestCase,
        load_test_cases,
        read_test_cases,
    )
    from callagent.agents.flows.format.topics import (
        Topic,
    )
    from callagent.agents.flows.format.voice import (
        PhraseFilter,
        background,
        correct,
        filler_phrases,
        opening_background,
        pronounce,
        same_language,
    )

_MODULES = {
    "Biasing": "steps",
    "Condition": "steps",
    "Entity": "config",
    "ExperimentalSettings": "experimental",
    "Flow": "project",
    "HandoffTarget": "config",
    "MCP_FILE": "config",
    "PhraseFilter": "voice",
    "PositionSettings": "experimental",
    "Project": "project",
    "ProjectFunction": "functions",
    "RealTimeConfiguration": "real_time",
    "RetrievalSettings": "experimental",
    "SCHEMA_TYPES": "functions",
    "SafetyFilters": "agent_settings",
    "SmsTemplate": "config",
    "Step": "steps",
    "TestCase": "test_cases",
    "Topic": "topics",
    "Variants": "config",
    "background": "voice",
    "check_real_time": "real_time",
    "correct": "voice",
    "filler_phrases": "voice",
    "find_handoff": "config",
    "is_flow_project": "load",
    "load_project": "load",
    "load_test_cases": "test_cases",
    "opening_background": "voice",
    "positive": "experimental",
    "project_graph": "graph",
    "pronounce": "voice",
    "read_test_cases": "test_cases",
    "same_language": "voice",
    "seconds": "steps",
    "translate": "config",
}

__all__ = [
    "MCP_FILE",
    "SCHEMA_TYPES",
    "Biasing",
    "Condition",
    "Entity",
    "ExperimentalSettings",
    "Flow",
    "HandoffTarget",
    "PhraseFilter",
    "PositionSettings",
    "Project",
    "ProjectFunction",
    "RealTimeConfiguration",
    "RetrievalSettings",
    "SafetyFilters",
    "SmsTemplate",
    "Step",
    "TestCase",
    "Topic",
    "Variants",
    "background",
    "check_real_time",
    "correct",
    "filler_phrases",
    "find_handoff",
    "is_flow_project",
    "load_project",
    "load_test_cases",
    "opening_background",
    "positive",
    "project_graph",
    "pronounce",
    "read_test_cases",
    "same_language",
    "seconds",
    "translate",
]

__getattr__ = lazy_exports(__name__, _MODULES)
