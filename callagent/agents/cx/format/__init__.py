"""The format of exported CX Agent Studio apps: files, documents, objects, versions and deployments."""

from __future__ import annotations

from callagent.agents.cx.format.app import (
    AUTHENTICATION,
    UNAVAILABLE,
    AgentConfig,
    Code,
    CxApp,
    GuardrailConfig,
    ToolConfig,
    ToolsetConfig,
    called_name,
    tool_name,
    tool_timeout,
)
from callagent.agents.cx.format.audio_prompts import Recordings, recording_path
from callagent.agents.cx.format.check_rules import Rule
from callagent.agents.cx.format.deployments import Exported, Served, check_deployments, draw, read_export
from callagent.agents.cx.format.document_reader import read_documents
from callagent.agents.cx.format.durations import seconds_of
from callagent.agents.cx.format.files import app_folder, is_cx_app
from callagent.agents.cx.format.load import SYSTEM_TOOLS, AppReader, read_cx_app
from callagent.agents.cx.format.openapi import Operation, lookup, operations, single_operation
from callagent.agents.cx.format.widgets import WIDGET_TOOL, Widget, settings_without_effect, widget_of, widgets_of

__all__ = [
    "AUTHENTICATION",
    "SYSTEM_TOOLS",
    "UNAVAILABLE",
    "WIDGET_TOOL",
    "AgentConfig",
    "AppReader",
    "Code",
    "CxApp",
    "Exported",
    "GuardrailConfig",
    "Operation",
    "Recordings",
    "Rule",
    "Served",
    "ToolConfig",
    "ToolsetConfig",
    "Widget",
    "app_folder",
    "called_name",
    "check_deployments",
    "draw",
    "is_cx_app",
    "lookup",
    "operations",
    "read_cx_app",
    "read_documents",
    "read_export",
    "recording_path",
    "seconds_of",
    "settings_without_effect",
    "single_operation",
    "tool_name",
    "tool_timeout",
    "widget_of",
    "widgets_of",
]
