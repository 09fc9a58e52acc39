"""The agents of a tree, as a project declares them. Shared by all calls; a tree does not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from callagent.models.protocol import Tool as ModelTool

_NO_CALLBACKS: Mapping[CallbackPoint, int] = {}


class CallbackPoint(Enum):
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
    callbacks: Mapping[CallbackPoint, int] = field(default_factory=lambda: _NO_CALLBACKS)
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


_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class AddedContent(Enum):
    """What a tool adds to every request of its agent."""

    ARTIFACTS = "artifacts"
    MEMORIES = "memories"


class ToolKind(Enum):
    CODE = "code"
    """A function in the call's worker."""
    AGENT = "agent"
    """An agent with a history of its own; its final text is the result."""
    TRANSFER = "transfer"
    EXIT_LOOP = "exit_loop"
    USER_CHOICE = "user_choice"
    PHONE = "phone"
    """Hanging up, handing the call over, collecting key presses: see `phone.py`."""
    CLIENT = "client"
    """Whoever drives the agent carries it out and answers in a turn of its own."""
    UNSEEN = "unseen"
    """No tool for the model: what it adds to its agent's requests."""
    EXAMPLES = "examples"
    """No tool for the model: a text for its instruction."""
    UNAVAILABLE = "unavailable"
    """Needs something that is not here; whoever asks the model fails with `description`."""


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    name: str
    kind: ToolKind
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON schema; None: the tool takes no arguments."""
    long_running: bool = False
    """Its result is preliminary; the true one comes in a later turn."""
    asynchronous: bool = False
    """Of code: the model goes on at once and learns the result in a later request."""
    timeout: float | None = None
    """Of code: seconds that its call may take; None: as the settings say."""
    agent: LlmNode | Any = None
    """Of an agent tool: the agent, which need not be an `LlmNode`."""
    skip_summarization: bool = False
    text: str = ""
    """Of examples, and of tools that explain themselves: it stands at the end of the instruction."""
    adds: AddedContent | None = None
    """What the call keeps that goes with every request."""
    remembers: bool = False
    """A tool that finds memories: the call is remembered when it ends."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of a phone tool: what the project set."""

    @property
    def declaration(self) -> dict[str, Any]:
        """Name, description and parameters, without what is empty."""
        declared: dict[str, Any] = {"name": self.name}
        if self.description:
            declared["description"] = self.description
        if self.parameters is not None:
            declared["parameters_json_schema"] = self.parameters
        return declared

    @property
    def for_model(self) -> ModelTool:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters or _NO_ARGUMENTS,
        }
        return {"type": "function", "function": function}
