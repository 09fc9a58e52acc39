"""The contract between a call and its agent: the caller's turns go in, actions (`agents.actions`) come out.

An agent does not know that it is on the phone. It runs its own functions (in workers) and emits an action when one
starts and when one ends, so that the call can fill the wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from callagent.agents.actions import Action, LimitReached
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject
from callagent.models import Tool


@dataclass(frozen=True, slots=True)
class CallerTurn:
    """What the caller did. All empty: a silent turn."""

    text: str = ""
    alternatives: tuple[str, ...] = ()
    digits: str = ""
    """Key presses; they are the text of the turn when `text` is empty."""
    reopens: bool = False
    """Whether the turn before ended too early and its reply was not heard: `text` then holds both utterances."""
    secure: bool = False
    """Whether the digits may reach functions only, but no model, text or log."""
    counts_as_silence: bool = True
    """False for the empty turn that a `listen` of the start function asked for."""


@dataclass(frozen=True, slots=True)
class HandoffFailed:
    """A failed transfer; the caller is still on the line."""

    destination: str
    reason: str


@dataclass(slots=True)
class AgentRecord:
    """What the agent knows at the end of a call, as JSON data."""

    project: str = ""
    flow: str | None = None
    step: str | None = None
    state: MutableJsonObject = field(default_factory=dict)
    metrics: list[MutableJsonObject] = field(default_factory=list)
    """`[{"name", "value"}]` in the order written."""
    variant: str | None = None
    language: str | None = None
    handoff: MutableJsonObject | None = None
    entities: MutableJsonObject = field(default_factory=dict)
    recording: str = ""
    """Folder, below that of all recordings, in which the project wants this call's; empty: that folder itself."""
    messages: list[MutableJsonObject] = field(default_factory=list)
    """Text messages and e-mails: `{"kind", "to", "from", "text", "template", "status", "detail", …}`."""
    limits_reached: list[LimitReached] = field(default_factory=list)
    """Limits that no action reported, such as those reached in the end function."""


# A plain function, because an agent never waits for the call; the call cancels a turn that it no longer wants.
Emit = Callable[[Action], None]
"""Takes the next action of an agent's turn. It returns at once and never raises."""


class Agent(Protocol):
    """The agent of one call. `start`, `reply` and `end` never run at the same time."""

    async def start(self, emit: Emit) -> None:
        """Run the start function and greet the caller; the last action is Listen, Handoff or HangUp."""

    async def reply(self, turn: CallerTurn | HandoffFailed, emit: Emit) -> None:
        """Run the agent's turn; the last action is Listen, Handoff or HangUp.

        Cancelling it is a barge-in: the model's stream is cut and nothing more is emitted. A running function
        finishes, and its effects are kept.
        """

    def heard(self, text: str, *, cut: bool) -> None:
        """Note the heard text of the last turn; with `cut`, the history is shortened to it."""

    def filler_spoken(self, text: str) -> None:
        """Note that a filler was played: it is for the record, the model never sees it."""

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        """Run the end function, for the `attempt`-th time (from 1). Return whether it finished; never raises.

        `headers` came with the peer's hang-up.
        """

    async def close(self) -> None:
        """Release the agent's worker. Idempotent; never raises."""

    def record(self) -> AgentRecord: ...


MetricWriter = Callable[[str, JsonValue], Awaitable[None]]
"""Writes a metric, given its name and value: it is durable when the awaitable ends. Called in the order written."""


# What a project tells about itself, for the dashboard and for the training of small models ----------------------------


@dataclass(frozen=True, slots=True)
class GraphStep:
    """One step of a flow, as the dashboard shows it."""

    id: str
    name: str
    kind: str
    """`step`: it asks the model; `function`: it runs a function."""


@dataclass(frozen=True, slots=True)
class GraphFlow:
    """A flow of a project with its steps."""

    name: str
    start: str
    """The identifier of its start step."""
    steps: tuple[GraphStep, ...]


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """A transition from one step to another."""

    source: str
    """The identifier of a step; empty: the start of the call."""
    target: str
    by: str
    """The condition or the function that leads there."""


@dataclass(frozen=True, slots=True)
class ProjectGraph:
    """The flows of a project and the transitions between steps. Empty for project formats without flows."""

    flows: tuple[GraphFlow, ...] = ()
    edges: tuple[GraphEdge, ...] = ()

    def as_json(self) -> MutableJsonObject:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExampleQuery:
    """A caller's words that the project's own files give as an example."""

    utterance: str
    calls: tuple[JsonObject, ...]
    """The functions that the model should call, `{"name", "arguments"}` each; empty: none."""
    source: str
    """The file in which the example stands."""


@dataclass(frozen=True, slots=True)
class PromptPosition:
    """A position at which a project asks its model: the instructions there, the tools, and what callers say there."""

    flow: str | None
    step: str | None
    instructions: str
    """The system message nearest to the position."""
    tools: tuple[Tool, ...]
    queries: tuple[ExampleQuery, ...] = ()


class AgentProject(Protocol):
    """A loaded project, shared by all calls: makes one agent per call."""

    name: str

    async def prepare(self) -> object:
        """Do what is slow before the first call: import the project's Python, index topics, ask MCP servers.

        Raises `ProjectError` and `WorkerError`.
        """

    def graph(self) -> ProjectGraph:
        """Return the flows and the transitions between steps; empty for formats without flows."""

    def real_time_folder(self, environment: str) -> Path | None:
        """Return the folder of an environment's real-time configuration; None for formats without one."""

    def phrases(self) -> Sequence[str]:
        """Return fixed texts that are worth synthesising before a call: greeting, delay responses."""

    def pronounce(self, text: str, language: str | None) -> str:
        """Return the text as a voice should read it; transcript and history keep the original."""

    async def prompt_positions(
        self, at: datetime | None = None, state: JsonObject | None = None
    ) -> list[PromptPosition]:
        """Return the positions at which the project asks its model, as in a call at the time `at` with this state."""

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> Agent: ...

    async def close(self) -> None: ...


@runtime_checkable
class ResumableProject(Protocol):
    """A project with an end function that can run after the call's server was killed."""

    async def resume(self, info: CallInfo, write_metric: MetricWriter, stored: AgentRecord) -> Agent:
        """Return an agent for the end function of a call that is over; `stored` comes from the call's record."""
