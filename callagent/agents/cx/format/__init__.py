"""The format of exported CX Agent Studio apps: files, documents, objects, versions and deployments."""

from __future__ import annotations

from callagent.agents.cx.format.app import (
    AUTHENTICATION,
    MAX_TOOL_SECONDS,
    UNAVAILABLE,
    WIDGET_TOOL,
    AgentConfig,
    Code,
    CxApp,
    GuardrailConfig,
    ToolConfig,
    ToolsetConfig,
    Widget,
    parse_duration,
    referenced_tool_name,
    settings_without_effect,
    tool_name,
    tool_timeout,
    widget_of,
    widgets_of,
)
from callagent.agents.cx.format.deployments import AppExport, ServedApp, check_deployments, choose_version, read_export
from callagent.agents.cx.format.document_reader import CheckRule, read_documents, read_yaml_file
from callagent.agents.cx.format.files import Recordings, app_folder, is_cx_app, recording_path
from callagent.agents.cx.format.load import SYSTEM_TOOLS, AppReader, read_cx_app
from callagent.agents.cx.format.openapi import Operation, OperationRequest, lookup, operations, single_operation

__all__ = [
    "AUTHENTICATION",
    "MAX_TOOL_SECONDS",
    "SYSTEM_TOOLS",
    "UNAVAILABLE",
    "WIDGET_TOOL",
    "AgentConfig",
    "AppExport",
    "AppReader",
    "CheckRule",
    "Code",
    "CxApp",
    "GuardrailConfig",
    "Operation",
    "OperationRequest",
    "Recordings",
    "ServedApp",
    "ToolConfig",
    "ToolsetConfig",
    "Widget",
    "app_folder",
    "check_deployments",
    "choose_version",
    "is_cx_app",
    "lookup",
    "operations",
    "parse_duration",
    "read_cx_app",
    "read_documents",
    "read_export",
    "read_yaml_file",
    "recording_path",
    "referenced_tool_name",
    "settings_without_effect",
    "single_operation",
    "tool_name",
    "tool_timeout",
    "widget_of",
    "widgets_of",
]
