"""What the agents of one turn share: settings, conversation, model, project code and the output to the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from callagent.agents.actions import Handoff, HangUp, Listen, Say
from callagent.agents.protocol import Emit
from callagent.agents.tree.conversation import Conversation
from callagent.agents.tree.events import Actions, Content, Event, PlainObject, RunFailed, texts
from callagent.agents.tree.nodes import CallbackPoint, Node, Tool
from callagent.agents.tree.request import ModelRequest
from callagent.models import LanguageModel

T = TypeVar("T")
Ending = Listen | Handoff | HangUp
"""The last action of every turn, which decides how the call goes on."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Settings of the tree engine, the same for all calls of a project."""

    greeting: str = ""
    """Spoken when the call is answered; empty: the caller speaks first."""
    function_timeout: float = 10.0
    """Seconds for one request to project code: the callbacks of a point, or the tools of one model answer."""
    tool_timeout: float | None = None
    """Seconds for a tool that declares no timeout; None: `function_timeout`."""
    agent_timeout: float = 60.0
    """Seconds for a run of an agent that is project code, including the agents that it runs."""
    max_model_calls: int = 500
    """Requests to the model in one turn, including those of agents that run as tools."""
    max_iterations: int = 500
    """Rounds of a loop that declares no limit; reaching it fails the turn."""
    parallel_tools: bool = True
    """Whether tools of one model answer run at the same time; False: one after the other."""
    no_input_text: str = "(The caller said nothing.)"
    """The text that the model gets as the caller's words in a silent turn."""
    max_silences: int = 3
    """Silent turns in a row; one more ends the call."""
    hangup_utterance: str = "Thank you for calling. Goodbye."
    """Spoken before hanging up on a caller who stays silent."""
    fallback_utterance: str = "Sorry, I had a problem just now. Could you say that again, please?"
    """Spoken when a turn fails."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Maps the project's model names to configured ones; an unlisted name means the configured model."""
    model_name: str = "the configured model"
    """The model's name in error messages."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The agent, branch and turn that project code runs in, and the caller's words."""

    node: Node
    branch: str
    invocation_id: str
    user_content: Content | None


@dataclass(frozen=True, slots=True)
class CodeCall:
    """One tool call that project code carries out."""

    tool: Tool
    id: str
    arguments: PlainObject


@dataclass(slots=True)
class CodeAnswer:
    """The result of project code. If `error` is set, the actions that came before the failure still count."""

    returned: Any = None
    payload: PlainObject = field(default_factory=dict)
    """The tool arguments or the model request that a callback was given, with the changes that it made to them."""
    actions: PlainObject = field(default_factory=dict)
    """`events.Actions` as plain data."""
    error: tuple[str, str] | None = None
    """Kind and text of the error that the code raised; None: it did not fail."""
    duration_ms: float = 0.0
    logs: Sequence[PlainObject] = ()


OnEvent = Callable[[PlainObject], Awaitable[None]]
"""Adds an event of a code agent to the history; done when the awaitable ends."""

RunChild = Callable[["ProjectCode", int], Awaitable[bool]]
"""Runs an agent below a code agent, by its `Node.code` number and with the given project code; returns whether it
escalated."""


class ProjectCode(Protocol):
    """The project code of one call.

    Its methods never raise an error of the project's code; it is in the answer's `error`. When a method returns, the
    code's changes are already in the conversation's state; whoever called it appends the event that records them.
    """

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, payload: PlainObject) -> CodeAnswer:
        """Call the callbacks that the agent has for `point`, in order, until one returns a result.

        `payload` has the arguments that these callbacks take beside the context.
        """

    async def tools(self, invocation: Invocation, calls: Sequence[CodeCall], *, parallel: bool) -> list[CodeAnswer]:
        """Carry out tool calls with the tool callbacks around them; return one answer each, in order."""

    async def replace_withheld(self, invocation: Invocation) -> Content | None:
        """Return the content that replaces an answer which the model's provider withheld as unsafe.

        None: there is no replacement, and the turn fails.
        """

    async def instruction(self, invocation: Invocation) -> CodeAnswer:
        """Have project code make the instruction of an `LlmNode` whose `instruction` is None."""

    async def agent(self, invocation: Invocation, on_event: OnEvent, run_child: RunChild) -> CodeAnswer:
        """Run a `CodeNode`."""

    def nested(self, conversation: Conversation) -> ProjectCode:
        """Return the same code for an agent that runs as a tool, with that agent's history and state."""

    async def close(self) -> None: ...


@dataclass(slots=True)
class Counters:
    """Counts of one turn, shared by the agents that run as tools in it."""

    model_calls: int = 0


@dataclass(slots=True)
class Run:
    """What the agents of one turn share. `for_branch()` and `for_children()` copy it for an agent's children."""

    conversation: Conversation
    code: ProjectCode
    model: LanguageModel
    settings: TreeSettings
    emit: Emit
    invocation_id: str
    user_content: Content | None
    observe: Callable[[ModelRequest], None]
    """Called with every request to the model."""
    finish_before_next_turn: Callable[[asyncio.Task[object]], None]
    """Registers a task that goes on when the turn is interrupted; the next turn waits for it."""
    run_in_background: Callable[[asyncio.Task[object]], None]
    """Registers a task that goes on during the next turns, until the call ends."""
    add_ending: Callable[[Ending], None]
    """Adds a way to end the turn: the first handoff or hang-up counts, else the last `Listen`."""
    run_agent: Callable[[Run, Node], Awaitable[bool]]
    """`run.run_agent`; a field because tools run agents and agents call tools."""
    branch: str = ""
    speaks: bool = True
    """False in an agent that runs as a tool: its words are the tool's result and are not spoken."""
    nested: bool = False
    """Whether an agent that transfers runs its after-agent callbacks, once the agent that it transferred to has ended.

    False, as at the top of an ADK tree: the transfer has ended it, and they do not run.
    """
    counters: Counters = field(default_factory=Counters)

    def for_branch(self, parent: Node, child: Node) -> Run:
        """Return this run for one child of a parallel agent: the other children do not see its events."""
        # Branches are written as the ADK does, because events record them: "PARENT.CHILD" for each parallel agent.
        name = f"{parent.name}.{child.name}"
        return replace(self, branch=f"{self.branch}.{name}" if self.branch else name, nested=True)

    def for_children(self) -> Run:
        """Return this run for the children of an agent, which waits for them."""
        return replace(self, nested=True)

    def invocation(self, node: Node) -> Invocation:
        """Return the invocation for project code of this agent."""
        return Invocation(node, self.branch, self.invocation_id, self.user_content)

    def append(self, event: Event, *, spoken: bool = False) -> None:
        """Add an event to the history and speak its text, unless the caller has heard it already (`spoken`)."""
        # The event is appended before it is spoken: an interruption at the first word must find it, to correct it.
        event.branch, event.invocation_id = self.branch, self.invocation_id
        self.conversation.append(event)
        if not spoken and (event.content or {}).get("role") == "model":
            for text in texts(event.content):
                self.say(text)

    def say(self, text: str) -> None:
        """Speak a text; in an agent that runs as a tool, do nothing."""
        if self.speaks and text.strip():
            self.emit(Say(text.strip()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an agent's own run ended."""

    escalated: bool = False
    transfer: Node | None = None
    """The agent that this one transferred to."""
    awaits_tool: bool = False
    """The agent transferred, but a long-running tool of the same answer has no result yet.

    The turn ends here; the next one begins at the agent that it transferred to.
    """


async def finish_despite_interruption(run: Run, coroutine: Coroutine[object, None, T]) -> T:
    """Await a coroutine that must run to its end even when the turn is interrupted.

    An interruption cancels the turn's task. Project code may have changed the worker's state by then, and its answer
    must be applied here too. So the coroutine runs in a task of its own, which the next turn waits for.
    """
    task = asyncio.create_task(coroutine)
    # Registered before it is awaited, because the cancellation may come in the very next step of the loop.
    run.finish_before_next_turn(task)
    return await asyncio.shield(task)


def merged_actions(*answers: CodeAnswer) -> Actions:
    """Return the actions of several answers as one; where they differ, the last answer counts."""
    actions = Actions()
    for answer in answers:
        actions.merge(answer.actions)
    return actions


def raise_error(answer: CodeAnswer) -> None:
    """Raise `RunFailed` when project code has failed."""
    if answer.error is not None:
        raise RunFailed(*answer.error)


def has_changes(answer: CodeAnswer) -> bool:
    """Return whether project code has changed the state."""
    return bool(answer.actions.get("state_delta") or answer.actions.get("removed"))
