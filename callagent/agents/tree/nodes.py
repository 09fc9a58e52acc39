"""The agents of a tree and their tools, as a project declares them, and the tools of the telephone.

All calls share them; they do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from callagent.agents.actions import DigitSettings, Handoff, HangUp, Listen, ListenSettings
from callagent.agents.tree.events import PlainObject
from callagent.json_values import MutableJsonObject
from callagent.models import Tool as ModelTool

JsonSchema = PlainObject
"""A JSON schema of arguments or of a result."""
_NO_CALLBACKS: Mapping[CallbackPoint, int] = {}


class CallbackPoint(Enum):
    """A point of an agent's run at which the project's callbacks are called; the value is its name in messages."""

    BEFORE_AGENT = "before_agent"
    AFTER_AGENT = "after_agent"
    BEFORE_MODEL = "before_model"
    AFTER_MODEL = "after_model"
    BEFORE_TOOL = "before_tool"
    AFTER_TOOL = "after_tool"


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One agent of a tree. Compared by identity."""

    name: str
    description: str = ""
    children: tuple[Node, ...] = ()
    callbacks: Mapping[CallbackPoint, int] = field(default_factory=lambda: _NO_CALLBACKS)
    """The number of functions at each point; the functions themselves are in the worker."""
    code: int = 0
    """The number by which the worker knows this agent."""
    parent: Node | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        # A node has one parent, because the description of a project refuses an agent with two.
        for child in self.children:
            child.parent = self

    @property
    def root(self) -> Node:
        return self if self.parent is None else self.parent.root

    def walk(self) -> Iterator[Node]:
        """Yield this agent and all agents below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, name: str) -> Node | None:
        """Return the agent with this name among this one and all below it."""
        return next((node for node in self.walk() if node.name == name), None)


@dataclass(slots=True, kw_only=True, eq=False)
class LlmNode(Node):
    """An agent that asks a language model."""

    instruction: str | None = ""
    """Text with placeholders (`request.fill_in`); None: project code makes the instruction for every request."""
    static_instruction: str = ""
    """System prompt without placeholders; `instruction` then goes into the contents, before the caller's words."""
    model: str = ""
    """The project's name of a model; empty: the one of the nearest ancestor that names one."""
    temperature: float | None = None
    max_tokens: int | None = None
    sampling: PlainObject = field(default_factory=dict)
    """As `models.protocol.ModelSettings` has it."""
    safety: Mapping[str, str] = field(default_factory=dict)
    """As `models.protocol.ModelSettings` has it."""
    json_output: bool = False
    output_key: str = ""
    """The key of the state that the agent's final text is written to; empty: none."""
    output_schema: JsonSchema | None = None
    """JSON schema of the final text."""
    input_schema: JsonSchema | None = None
    """JSON schema of the arguments when the agent is a tool."""
    has_history: bool = True
    """False: the model sees only what was said since the agent's turn began (`request.current_contents`)."""
    can_transfer_to_parent: bool = True
    can_transfer_to_peers: bool = True
    tools: tuple[Tool, ...] = ()

    @property
    def model_name(self) -> str:
        # Workflow agents in between have no model of their own and are passed over.
        node: Node | None = self
        while node is not None:
            if isinstance(node, LlmNode) and node.model:
                return node.model
            node = node.parent
        return ""


class SequentialNode(Node):
    """An agent whose children run one after the other."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoopNode(Node):
    """An agent whose children run in rounds until one escalates."""

    max_iterations: int | None = None
    """Rounds; zero or less: none at all. None: `TreeSettings.max_iterations`, and reaching it is an error."""


class ParallelNode(Node):
    """An agent whose children run at the same time and do not see each other's events."""


class CodeNode(Node):
    """An agent whose run is project code."""


_NO_ARGUMENTS: PlainObject = {"type": "object", "properties": {}}


class AddedContent(Enum):
    """What a tool adds to every request of its agent: a list of the artifacts, or matching memories."""

    ARTIFACTS = "artifacts"
    MEMORIES = "memories"


class ToolKind(Enum):
    """How a tool call is carried out; the value is the name in a project's description."""

    CODE = "code"
    """By a function in the call's worker."""
    AGENT = "agent"
    """By an agent with a history of its own, whose final text is the result."""
    TRANSFER = "transfer"
    EXIT_LOOP = "exit_loop"
    USER_CHOICE = "user_choice"
    PHONE = "phone"
    """Hang up, hand the call over or collect key presses: see `phone_tool`."""
    CLIENT = "client"
    """By the client of a session, which sends the result as a turn of its own."""
    UNSEEN = "unseen"
    """Not offered to the model: only adds content to its agent's requests."""
    EXAMPLES = "examples"
    """Not offered to the model: only adds a text to its agent's instruction."""
    UNAVAILABLE = "unavailable"
    """Needs a service that is not available here: the agent's run fails with `description` as the error."""


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """One tool of an agent."""

    name: str
    kind: ToolKind
    description: str = ""
    parameters: JsonSchema | None = None
    """JSON schema; None: the tool takes no arguments."""
    long_running: bool = False
    """Whether its result is preliminary, and the true one comes in a later turn."""
    asynchronous: bool = False
    """`CODE`: whether the model goes on at once and gets the result with a later request."""
    timeout: float | None = None
    """`CODE`: seconds that a call may take; None: `TreeSettings.tool_timeout`."""
    agent: Node | None = None
    """`AGENT`: the agent."""
    skip_summarization: bool = False
    """`AGENT`: whether the caller hears the result as it is, instead of the model putting it into words."""
    text: str = ""
    """Appended to the instruction: examples, or the tool's own explanation."""
    adds: AddedContent | None = None
    """What the tool adds to every request of its agent."""
    remembers: bool = False
    """Whether the tool searches the caller's memories, so that the call is added to them when it ends."""
    options: PlainObject = field(default_factory=dict)
    """`PHONE`: the options that the project set."""

    @property
    def declaration(self) -> MutableJsonObject:
        """Return name, description and parameters as project code sees them, without empty ones."""
        declared: MutableJsonObject = {"name": self.name}
        if self.description:
            declared["description"] = self.description
        if self.parameters is not None:
            declared["parameters_json_schema"] = self.parameters
        return declared

    @property
    def for_model(self) -> ModelTool:
        parameters = self.parameters or _NO_ARGUMENTS
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


HANG_UP, HAND_OFF, COLLECT_DIGITS = "hang_up", "hand_off", "collect_digits"
_REASON = {"type": "object", "properties": {"reason": {"type": "string"}}}
_DESCRIPTIONS = {
    HANG_UP: "End the call. Say goodbye in the same answer, before this call.",
    HAND_OFF: "Give the call to a person. Tell the caller so in the same answer, before this call.",
    COLLECT_DIGITS: "Let the caller enter digits on the telephone's keys. Ask for them in the same answer.",
}
HANDOFF_METHODS = ("refer", "invite", "bye")
"""Ways to hand a call over: see the transfer methods in `ARCHITECTURE.md`."""
PHONE_TOOL_OPTIONS: Mapping[str, Mapping[str, type]] = {
    HANG_UP: {"description": str},
    HAND_OFF: {"description": str, "destination": str, "method": str, "number": str, "headers": dict},
    COLLECT_DIGITS: {
        "description": str,
        "max_digits": int,
        "end_key": str,
        "first_digit_timeout": float,
        "inter_digit_timeout": float,
        "while_speaking": bool,
        "is_pii": bool,
    },
}
"""The options of each tool that a project may set, and their types."""
_DIGIT_OPTIONS = ("max_digits", "end_key", "first_digit_timeout", "inter_digit_timeout", "while_speaking", "is_pii")


def phone_tool(name: str, options: PlainObject) -> Tool:
    """Make a tool of the telephone (`hang_up`, `hand_off` or `collect_digits`) with a project's options."""
    # The model gives only the reason of a handoff; the project's options determine the rest.
    parameters = _REASON if name == HAND_OFF else None
    description = str(options.get("description") or _DESCRIPTIONS[name])
    return Tool(name, ToolKind.PHONE, description, parameters, options=options)


def phone_ending(tool: Tool, arguments: PlainObject) -> Listen | Handoff | HangUp:
    """Return how the turn ends once the model has called a phone tool; the model is not asked again."""
    options = tool.options
    match tool.name:
        case "hang_up":
            return HangUp()
        case "hand_off":
            destination = str(options.get("destination") or "")
            return Handoff(
                destination=destination,
                reason=str(arguments.get("reason") or destination),
                method=str(options.get("method") or "refer"),
                number=options.get("number"),
                headers={str(name): str(value) for name, value in (options.get("headers") or {}).items()},
            )
    digits = DigitSettings(**{key: options[key] for key in _DIGIT_OPTIONS if key in options})
    return Listen(ListenSettings(digits=digits))
