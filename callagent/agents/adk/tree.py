"""The agents of a project as the tree engine has them, from what a worker described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callagent.agents.tree import (
    CodeNode,
    LlmNode,
    LoopNode,
    Node,
    ParallelNode,
    Point,
    SequentialNode,
    Tool,
    ToolKind,
    phone_tool,
)
from callagent.agents.tree.keepsakes import Adds

_PLAIN: dict[str, type[Node]] = {"sequential": SequentialNode, "parallel": ParallelNode, "code": CodeNode}
_LLM_KEYS = (
    "instruction", "static_instruction", "model", "temperature", "max_tokens", "sampling", "safety", "json_output",
    "output_key", "output_schema", "input_schema", "has_history", "can_transfer_to_parent", "can_transfer_to_peers",
)  # fmt: skip


def build_tree(described: Mapping[str, Any]) -> Node:
    common: dict[str, Any] = {
        "name": described["name"],
        "description": described["description"],
        "children": tuple(build_tree(child) for child in described["children"]),
        "callbacks": {Point(point): count for point, count in described["callbacks"].items()},
        "code": described["number"],
    }
    match described["kind"]:
        case "llm":
            own = {key: described[key] for key in _LLM_KEYS}
            return LlmNode(**common, **own, tools=tuple(_tool(tool) for tool in described["tools"]))
        case "loop":
            return LoopNode(**common, max_iterations=described["max_iterations"])
        case kind:
            return _PLAIN[kind](**common)


def _tool(described: Mapping[str, Any]) -> Tool:
    kind = ToolKind(described["kind"])
    if kind is ToolKind.PHONE:
        return phone_tool(described["name"], described["options"])
    return Tool(
        name=described["name"],
        kind=kind,
        description=described["description"],
        parameters=described.get("parameters"),
        long_running=described["long_running"],
        agent=build_tree(described["agent"]) if kind is ToolKind.AGENT else None,
        skip_summarization=bool(described.get("skip_summarization")),
        text=described.get("text") or "",
        timeout=described.get("timeout"),
        adds=Adds(described["adds"]) if described.get("adds") else None,
        remembers=bool(described.get("remembers")),
    )
