"""The contract between a call and its agent: the caller's turns go in, actions (`agents.actions`) come out.

An agent does not know that it is on the phone. It runs its own functions (in workers) and yields an action when one
starts and when one ends, so that the call can fill the wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from callagent.agents.actions import Action, LimitReached
from callagent.agents.kernel import PromptPosition
from callagent.call_info import NO_HEADERS, CallInfo, EndReason


@dataclass(frozen=True, slots=True)
class CallerTurn:
    """What the caller did. All empty: a silent turn."""

    text: str = ""
    alternatives: tuple[str, ...] = ()
    digits: str = ""
    """Key presses; they are the text of the turn when `text` is empty."""
    reopens: bool = False
    """The turn before was taken too early and nothing of its reply was heard: `text` is the whole of what was said."""
    secure: bool = False
    """The digits are to reach functions only: no model, no text, no log."""
    counts_as_silence: bool = True
    """False for the empty turn that a `listen` of the start function asked for."""


@dataclass(frozen=True, slots=True)
class HandoffFailed:
    """The transfer did not happen; the caller is still here."""

    destination: str
    reason: str


@dataclass(slots=True)
class AgentRecord:
    """What the agent knows at the end of a call, as JSON data."""

    project: str = ""
    flow: str | None = None
    step: str | None = None
    state: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """`[{"name", "value"}]` in the order written."""
    variant: str | None = None
    language: str | None = None
    handoff: dict[str, Any] | None = None
    entities: dict[str, Any] = field(default_factory=dict)
    recording: str = ""
    """Where below the folder of recordings the project wants the call's, in safe characters; empty: anywhere."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Text messages and e-mails: `{"kind", "to", "from", "text", "template", "status", "detail", …}`."""
    limits_reached: list[LimitReached] = field(default_factory=list)
    """Those that no action told of, as of the end function."""


class Agent(Protocol):
    """One call's agent. `start`, `reply` and `end` are never run at the same time."""

    def start(self) -> AsyncIterator[Action]:
        """The start function, then greeting; ends with Listen, Handoff or HangUp."""

    def reply(self, turn: CallerTurn | HandoffFailed) -> AsyncIterator[Action]:
        """The agent's turn; ends with Listen, Handoff or HangUp.

        Closing the iterator is a barge-in: a model's stream is cut, a running function is let finish and its effects
        are kept, nothing more is said.
        """

    def heard(self, text: str, *, cut: bool) -> None:
        """What the caller heard of the last turn's words; `cut`: the caller interrupted. History is corrected."""

    def filler_spoken(self, text: str) -> None:
        """A filler was played; it is kept for the record, the model never sees it."""

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        """The end function, for the `attempt`-th time (from 1). Whether it ran to its end; never raises.

        `headers` came with the peer's hang-up.
        """

    async def close(self) -> None:
        """Give back what the agent holds (its worker). Idempotent; never raises."""

    def record(self) -> AgentRecord: ...


MetricWriter = Callable[[str, Any], Awaitable[None]]
"""Takes name and value; the metric is durable when the awaitable ends. The agent calls it in the order written."""


class AgentProject(Protocol):
    """A loaded project: makes one agent per call. Shared by all calls."""

    name: str

    def phrases(self) -> Sequence[str]:
        """Fixed texts worth synthesising before they are needed: greeting, delay responses."""

    def pronounce(self, text: str, language: str | None) -> str:
        """The text as a voice should read it; transcript and history keep it as it is."""

    async def prompt_positions(
        self, at: datetime | None = None, state: Mapping[str, Any] | None = None
    ) -> list[PromptPosition]:
        """The positions at which the project asks its model, as in a call at the time `at` with this state."""

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> Agent: ...

    async def close(self) -> None: ...


@runtime_checkable
class ResumableProject(Protocol):
    """A project whose calls have an end function that can run after the call's server was killed."""

    async def resume(self, info: CallInfo, write_metric: MetricWriter, known: AgentRecord) -> Agent:
        """The agent of a call that is over, with what is known of it, for its end function."""
