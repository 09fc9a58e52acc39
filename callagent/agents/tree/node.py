"""The agents of a tree, as a project declares them. Shared by all calls; a tree does not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from callagent.agents.tree.tool import Tool

_NO_CALLBACKS: Mapping[Point, int] = {}


class Point(Enum):
    """Where project code may step in. The value is the name in requests to workers."""

    BEFORE_AGENT = "before_agent"
    AFTER_AGENT = "after_agent"
    BEFORE_MODEL = "before_model"
    AFTER_MODEL = "after_model"
    BEFORE_TOOL = "before_tool"
    AFTER_TOOL = "after_tool"


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One agent. Compared by identity."""

    name: str
    description: str = ""
    children: tuple[Node, ...] = ()
    callbacks: Mapping[Point, int] = field(default_factory=lambda: _NO_CALLBACKS)
    """How many functions stand at a point; the functions themselves are the worker's."""
    code: int = 0
    """The worker's number of this agent."""
    parent: Node | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for child in self.children:
            child.parent = self

    @property
    def root(self) -> Node:
        return self if self.parent is None else self.parent.root

    def walk(self) -> Iterator[Node]:
        """This agent and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, name: str) -> Node | None:
        return next((node for node in self.walk() if node.name == name), None)


@dataclass(slots=True, kw_only=True, eq=False)
class LlmNode(Node):
    """An agent that asks a language model."""

    instruction: str | None = ""
    """None: project code makes it for every request."""
    static_instruction: str = ""
    """Sent as it is, first; `instruction` then goes with the caller's words."""
    model: str = ""
    """A provider's model name; empty: the one of the nearest ancestor that has one."""
    temperature: float | None = None
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """As `models.protocol.ModelSettings` has it."""
    safety: Mapping[str, str] = field(default_factory=dict)
    """As `models.protocol.ModelSettings` has it."""
    json_output: bool = False
    output_key: str = ""
    """The key of the state that takes the final text."""
    output_schema: Mapping[str, Any] | None = None
    """JSON schema of the final text."""
    input_schema: Mapping[str, Any] | None = None
    """JSON schema of the arguments when the agent is a tool."""
    has_history: bool = True
    """False: the model sees only what was said since the agent's turn began."""
    can_transfer_to_parent: bool = True
    can_transfer_to_peers: bool = True
    tools: tuple[Tool, ...] = ()

    @property
    def model_name(self) -> str:
        node: Node | None = self
        while node is not None:
            if isinstance(node, LlmNode) and node.model:
                return node.model
            node = node.parent
        return ""


class SequentialNode(Node):
    """Its children run one after the other."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoopNode(Node):
    """Its children run in rounds until one escalates."""

    max_iterations: int | None = None
    """None: no limit of its own; zero and less: it runs nothing."""


class ParallelNode(Node):
    """Its children run at the same time and do not see each other's events."""


class CodeNode(Node):
    """An agent whose run is project code."""
