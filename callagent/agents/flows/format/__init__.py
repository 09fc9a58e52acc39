"""The documents of a flow project, read into typed data (`Project`) without running project code."""

from callagent.agents.flows.format.agent_settings import SafetyFilters
from callagent.agents.flows.format.configuration import (
    MCP_FILE,
    Entity,
    HandoffTarget,
    RealTimeConfiguration,
    SmsTemplate,
    Variants,
    check_real_time,
    find_handoff,
    translate,
)
from callagent.agents.flows.format.experimental import (
    ExperimentalSettings,
    PositionSettings,
    RepeatCaller,
    RetrievalSettings,
    positive_or_none,
)
from callagent.agents.flows.format.functions import SCHEMA_TYPES, ProjectFunction
from callagent.agents.flows.format.project import Flow, Project, is_flow_project, load_project, project_graph
from callagent.agents.flows.format.steps_and_topics import Biasing, Condition, Step, Topic, as_seconds
from callagent.agents.flows.format.test_cases import TestCase, load_test_cases, read_test_cases
from callagent.agents.flows.format.voice import (
    FillerPhrases,
    PhraseFilter,
    correct,
    filler_phrases,
    opening_background,
    pronounce,
    read_background,
    same_language,
)

__all__ = [
    "MCP_FILE",
    "SCHEMA_TYPES",
    "Biasing",
    "Condition",
    "Entity",
    "ExperimentalSettings",
    "FillerPhrases",
    "Flow",
    "HandoffTarget",
    "PhraseFilter",
    "PositionSettings",
    "Project",
    "ProjectFunction",
    "RealTimeConfiguration",
    "RepeatCaller",
    "RetrievalSettings",
    "SafetyFilters",
    "SmsTemplate",
    "Step",
    "TestCase",
    "Topic",
    "Variants",
    "as_seconds",
    "check_real_time",
    "correct",
    "filler_phrases",
    "find_handoff",
    "is_flow_project",
    "load_project",
    "load_test_cases",
    "opening_background",
    "positive_or_none",
    "project_graph",
    "pronounce",
    "read_background",
    "read_test_cases",
    "same_language",
    "translate",
]
