"""Agent trees: the engine that formats with agents, callbacks and tools share.

A format makes the `Node`s of a project, and for each call a `ProjectCode` (a `WorkerClient`, with a subclass of
`TreeSession` in the worker) and a `TreeAgent`. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.tree.call_storage import STORAGE_REQUEST
    from callagent.agents.tree.conversation import Conversation, SharedState, State
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
        HAND_OFF,
        HANDOFF_METHODS,
        PHONE_TOOL_OPTIONS,
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
        phone_tool,
    )
    from callagent.agents.tree.request import ModelRequest, tree_places
    from callagent.agents.tree.run_context import (
        CodeAnswer,
        CodeCall,
        Ending,
        Invocation,
        OnEvent,
        ProjectCode,
        RunChild,
        TreeSettings,
    )
    from callagent.agents.tree.tree_agent import TreeAgent
    from callagent.agents.tree.worker_client import WorkerClient
    from callagent.agents.tree.worker_protocol import ToolCallMessage, WorkerRequest
    from callagent.agents.tree.worker_session import LiveConversation, LiveState, Subject, TreeSession, server_timeout

_MODULES = {
    "Actions": "events",
    "AddedContent": "nodes",
    "CallbackPoint": "nodes",
    "CodeAnswer": "run_context",
    "CodeCall": "run_context",
    "CodeNode": "nodes",
    "Content": "events",
    "Conversation": "conversation",
    "DescribedProject": "description",
    "Ending": "run_context",
    "Event": "events",
    "HANDOFF_METHODS": "nodes",
    "HAND_OFF": "nodes",
    "Invocation": "run_context",
    "LiveConversation": "worker_session",
    "LiveState": "worker_session",
    "LlmNode": "nodes",
    "LoopNode": "nodes",
    "ModelRequest": "request",
    "Node": "nodes",
    "OnEvent": "run_context",
    "PHONE_TOOL_OPTIONS": "nodes",
    "ParallelNode": "nodes",
    "Part": "events",
    "ProjectCode": "run_context",
    "ProjectDescription": "description",
    "RunChild": "run_context",
    "RunFailed": "events",
    "STORAGE_REQUEST": "call_storage",
    "SequentialNode": "nodes",
    "SharedState": "conversation",
    "State": "conversation",
    "Subject": "worker_session",
    "Tool": "nodes",
    "ToolCallMessage": "worker_protocol",
    "ToolKind": "nodes",
    "TreeAgent": "tree_agent",
    "TreeSession": "worker_session",
    "TreeSettings": "run_context",
    "USER": "events",
    "WorkerClient": "worker_client",
    "WorkerRequest": "worker_protocol",
    "as_messages": "events",
    "calls": "events",
    "describe": "description",
    "parts": "events",
    "phone_tool": "nodes",
    "response_part": "events",
    "responses": "events",
    "server_timeout": "worker_session",
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
    "LiveConversation",
    "LiveState",
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
    "Subject",
    "Tool",
    "ToolCallMessage",
    "ToolKind",
    "TreeAgent",
    "TreeSession",
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
    "server_timeout",
    "text_content",
    "texts",
    "tree_places",
]

__getattr__ = lazy_exports(__name__, _MODULES)
