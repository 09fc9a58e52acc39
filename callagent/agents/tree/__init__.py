"""Agent trees: the engine that formats with agents, callbacks and tools share.

A format makes `Node`s, a `ProjectCode` (usually `WorkerCode` with a session of its own in the worker) and a
`TreeAgent` per call. The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent.agents.light_front import light_front

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
    "Actions": "tree.event",
    "CodeAnswer": "tree.project_code",
    "CodeCall": "tree.project_code",
    "CodeNode": "tree.node",
    "Conversation": "tree.conversation",
    "Event": "tree.event",
    "LlmNode": "tree.node",
    "LoopNode": "tree.node",
    "ModelRequest": "tree.request",
    "Node": "tree.node",
    "ParallelNode": "tree.node",
    "Point": "tree.node",
    "ProjectCode": "tree.project_code",
    "RunFailed": "tree.failure",
    "Scene": "tree.project_code",
    "SequentialNode": "tree.node",
    "SharedState": "tree.state",
    "State": "tree.state",
    "Tool": "tree.tool",
    "ToolKind": "tree.tool",
    "TreeAgent": "tree.tree_agent",
    "TreeSettings": "tree.settings",
    "WorkerCode": "tree.worker_code",
    "phone_tool": "tree.phone",
    "tree_places": "tree.places",
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

__getattr__ = light_front(__name__, _MODULES)
