"""Agent trees: the engine that formats with agents, callbacks and tools share.

A format makes the `Node`s of a project, and for each call a `ProjectCode` (a `WorkerClient`, with a subclass of
`runtime.TreeSession` in the worker) and a `TreeAgent`. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.tree.call_storage import STORAGE_REQUEST
    from callagent.agents.tree.conversation import Conversation
    from callagent.agents.tree.description import DescribedProject, ProjectDescription, describe
    from callagent.agents.tree.events import (
        USER,
        Actions,
        Content,
        Event,
        Part,
        RunFailed,
        as_messages,
        calls,
        parts,
        response_part,
        responses,
        text_content,
        texts,
    )
    from callagent.agents.tree.nodes import (
        AddedContent,
        CallbackPoint,
        CodeNode,
        LlmNode,
        LoopNode,
        Node,
        ParallelNode,
        SequentialNode,
        Tool,
        ToolKind,
    )
    from callagent.agents.tree.phone_tools import HAND_OFF, HANDOFF_METHODS, PHONE_TOOL_OPTIONS, phone_tool
    from callagent.agents.tree.project_code import CodeAnswer, CodeCall, Invocation, OnEvent, ProjectCode, RunChild
    from callagent.agents.tree.request import ModelRequest, tree_places
    from callagent.agents.tree.run_context import Ending
    from callagent.agents.tree.settings import TreeSettings
    from callagent.agents.tree.state import SharedState, State
    from callagent.agents.tree.tree_agent import ActionQueue, TreeAgent
    from callagent.agents.tree.worker_client import WorkerClient
    from callagent.agents.tree.worker_protocol import ToolCallMessage, WorkerRequest

_MODULES = {
    "ActionQueue": "tree_agent",
    "Actions": "events",
    "AddedContent": "nodes",
    "CallbackPoint": "nodes",
    "CodeAnswer": "project_code",
    "CodeCall": "project_code",
    "CodeNode": "nodes",
    "Content": "events",
    "Conversation": "conversation",
    "DescribedProject": "description",
    "Ending": "run_context",
    "Event": "events",
    "HANDOFF_METHODS": "phone_tools",
    "HAND_OFF": "phone_tools",
    "Invocation": "project_code",
    "LlmNode": "nodes",
    "LoopNode": "nodes",
    "ModelRequest": "request",
    "Node": "nodes",
    "OnEvent": "project_code",
    "PHONE_TOOL_OPTIONS": "phone_tools",
    "ParallelNode": "nodes",
    "Part": "events",
    "ProjectCode": "project_code",
    "ProjectDescription": "description",
    "RunChild": "project_code",
    "RunFailed": "events",
    "STORAGE_REQUEST": "call_storage",
    "SequentialNode": "nodes",
    "SharedState": "state",
    "State": "state",
    "Tool": "nodes",
    "ToolCallMessage": "worker_protocol",
    "ToolKind": "nodes",
    "TreeAgent": "tree_agent",
    "TreeSettings": "settings",
    "USER": "events",
    "WorkerClient": "worker_client",
    "WorkerRequest": "worker_protocol",
    "as_messages": "events",
    "calls": "events",
    "describe": "description",
    "parts": "events",
    "phone_tool": "phone_tools",
    "response_part": "events",
    "responses": "events",
    "text_content": "events",
    "texts": "events",
    "tree_places": "request",
}

__all__ = [
    "HANDOFF_METHODS",
    "HAND_OFF",
    "PHONE_TOOL_OPTIONS",
    "STORAGE_REQUEST",
    "USER",
    "ActionQueue",
    "Actions",
    "AddedContent",
    "CallbackPoint",
    "CodeAnswer",
    "CodeCall",
    "CodeNode",
    "Content",
    "Conversation",
    "DescribedProject",
    "Ending",
    "Event",
    "Invocation",
    "LlmNode",
    "LoopNode",
    "ModelRequest",
    "Node",
    "OnEvent",
    "ParallelNode",
    "Part",
    "ProjectCode",
    "ProjectDescription",
    "RunChild",
    "RunFailed",
    "SequentialNode",
    "SharedState",
    "State",
    "Tool",
    "ToolCallMessage",
    "ToolKind",
    "TreeAgent",
    "TreeSettings",
    "WorkerClient",
    "WorkerRequest",
    "as_messages",
    "calls",
    "describe",
    "parts",
    "phone_tool",
    "response_part",
    "responses",
    "text_content",
    "texts",
    "tree_places",
]

__getattr__ = lazy_exports(__name__, _MODULES)
