"""Agent trees: the engine that formats with agents, callbacks and tools share.

A format makes `Node`s, a `ProjectCode` (usually `WorkerCode` with a session of its own in the worker) and a
`TreeAgent` per call. The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.tree.conversation import Conversation
    from callagent.agents.tree.event import Actions, Event
    from callagent.agents.tree.failure import RunFailed
    from callagent.agents.tree.node import CodeNode, LlmNode, LoopNode, Node, ParallelNode, Point, SequentialNode
    from callagent.agents.tree.phone import phone_tool
    from callagent.agents.tree.places import tree_places
    from callagent.agents.tree.project_code import CodeAnswer, CodeCall, ProjectCode, Scene
    from callagent.agents.tree.request import ModelRequest
    from callagent.agents.tree.settings import TreeSettings
    from callagent.agents.tree.state import SharedState, State
    from callagent.agents.tree.tool import Tool, ToolKind
    from callagent.agents.tree.tree_agent import TreeAgent
    from callagent.agents.tree.worker_code import WorkerCode

_MODULES = {
    "Actions": "event",
    "CodeAnswer": "project_code",
    "CodeCall": "project_code",
    "CodeNode": "node",
    "Conversation": "conversation",
    "Event": "event",
    "LlmNode": "node",
    "LoopNode": "node",
    "ModelRequest": "request",
    "Node": "node",
    "ParallelNode": "node",
    "Point": "node",
    "ProjectCode": "project_code",
    "RunFailed": "failure",
    "Scene": "project_code",
    "SequentialNode": "node",
    "SharedState": "state",
    "State": "state",
    "Tool": "tool",
    "ToolKind": "tool",
    "TreeAgent": "tree_agent",
    "TreeSettings": "settings",
    "WorkerCode": "worker_code",
    "phone_tool": "phone",
    "tree_places": "places",
}

__all__ = [
    "Actions",
    "CodeAnswer",
    "CodeCall",
    "CodeNode",
    "Conversation",
    "Event",
    "LlmNode",
    "LoopNode",
    "ModelRequest",
    "Node",
    "ParallelNode",
    "Point",
    "ProjectCode",
    "RunFailed",
    "Scene",
    "SequentialNode",
    "SharedState",
    "State",
    "Tool",
    "ToolKind",
    "TreeAgent",
    "TreeSettings",
    "WorkerCode",
    "phone_tool",
    "tree_places",
]

__getattr__ = lazy_exports(__name__, _MODULES)
