"""The positions of an agent tree: every agent that asks a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from callagent.agents.kernel import PromptPosition
from callagent.agents.tree.failure import RunFailed
from callagent.agents.tree.node import LlmNode, Node
from callagent.agents.tree.request import build_request


def tree_places(
    root: Node, state: Mapping[str, Any], instruct: Callable[[LlmNode], str | None] = lambda node: None
) -> Iterator[PromptPosition]:
    """As a call with this state sees them; an instruction that needs more stands there as it is written.

    `instruct` writes the instruction of an agent whose format does so for each request; None: the agent's own.
    """
    for node in root.walk():
        if not isinstance(node, LlmNode):
            continue
        try:
            request = build_request(node, "", (), state, instruct(node))
        except RunFailed:
            request = build_request(node, "", (), state, node.instruction or "")
        tools = tuple(tool.for_model for tool in request.tools.values())
        yield PromptPosition(root.name, node.name, request.system, tools)
