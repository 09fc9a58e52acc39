"""The messages between a call in the core and its worker, which runs the project's Python.

The core sends one `WorkerRequest` at a time and gets `{"answers": [Answer, …]}`: one answer for each tool call, in
order, else exactly one. While a request runs, the worker may ask the core:

* `StorageRequest`: artifacts and memories (`call_storage`).
* `EventMessage`: a code agent has produced an event; the reply comes once the event is in the history.
* `RunAgentMessage`: a code agent runs an agent below it. The core replies with `{"request": WorkerRequest}` whenever
  that agent needs project code, which the worker answers with an `AnswersMessage`, and finally with a `ChildResult`.

Every message of the worker that is not a question is a log line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from callagent.agents.tree.events import Content, Part, PlainObject
from callagent.workers import Plain

CALL_CONVERSATION = 0
"""The number of the call's own conversation; those of agents that run as tools have the numbers that follow."""
OUTSIDE_TURN = "alone"
"""The call identifier of a tool that is run outside of any turn; the worker runs no callbacks around it."""


# The wire carries plain dicts. These types are for the two sides that write and read them; nothing checks them at run
# time, because both sides are our own code of the same version.


class ActionsMessage(TypedDict, total=False):
    """What project code did or asked for beside its return value: `events.Actions` as plain data."""

    state_delta: dict[str, object]
    removed: list[str]
    transfer_to_agent: str | None
    escalate: bool
    skip_summarization: bool
    other: dict[str, object]


class StateChanges(TypedDict):
    """State keys that the core has changed since its last message to the worker."""

    set: dict[str, object]
    removed: list[str]


class ConversationUpdate(TypedDict):
    """The changes of a conversation that the worker does not know yet."""

    state: StateChanges
    events_from: int
    """`events` replace the worker's events from this index on."""
    events: list[dict[str, object]]


class InvocationMessage(TypedDict):
    """`run_context.Invocation` without its agent."""

    branch: str
    invocation_id: str
    user_content: Content | None


class ToolCallMessage(TypedDict):
    tool: str
    id: str
    args: Plain


class CallbacksRequest(TypedDict):
    """A request to run the callbacks of a point, in order, until one returns a result."""

    op: Literal["callbacks"]
    point: str
    payload: Plain


class ToolsRequest(TypedDict):
    """A request to carry out tool calls with the tool callbacks around them."""

    op: Literal["tools"]
    calls: list[ToolCallMessage]
    parallel: bool
    seconds: float
    """Time for the request, after which the worker is killed."""


class AgentRequest(TypedDict):
    """A request to make the agent's instruction, or to run an agent that is project code."""

    op: Literal["instruction", "agent"]


Operation = CallbacksRequest | ToolsRequest | AgentRequest


class WorkerRequest(ConversationUpdate):
    """An operation, the place in the turn where it runs, and what has changed since the last request."""

    op: Literal["callbacks", "tools", "instruction", "agent"]
    agent: int
    """The number that the worker gave the agent when it described the project."""
    invocation: InvocationMessage
    conversation: int
    released: list[int]
    """The numbers of conversations that are over and that the worker drops."""
    point: NotRequired[str]
    payload: NotRequired[Plain]
    calls: NotRequired[list[ToolCallMessage]]
    parallel: NotRequired[bool]
    seconds: NotRequired[float]


class Answer(TypedDict):
    """The result of one operation, or of one tool call."""

    returned: object
    payload: NotRequired[Plain]
    """The arguments of a callback as the code left them."""
    actions: ActionsMessage
    error: list[str] | None
    """Kind and text of the error. Changes that the code made before it failed are kept."""
    traceback: str
    duration_ms: float
    ended: int
    """A number that increases from answer to answer, in the order in which they were completed."""


class StorageRequest(TypedDict):
    """A question about artifacts or memories; which fields are needed depends on `what` (`CallStorage.answer`)."""

    type: Literal["call_storage"]
    ask: Literal[True]
    what: str
    name: NotRequired[str]
    part: NotRequired[Part]
    version: NotRequired[int | None]
    query: NotRequired[str]


class EventMessage(TypedDict):
    type: Literal["event"]
    ask: Literal[True]
    event: PlainObject


class RunAgentMessage(TypedDict):
    type: Literal["run_agent"]
    ask: Literal[True]
    agent: int
    actions: ActionsMessage
    """The state changes that the code agent made before it let the other agent run."""


class AnswersMessage(TypedDict):
    type: Literal["answers"]
    ask: Literal[True]
    answers: Sequence[Answer]


class ChildRequest(TypedDict):
    """A request for project code by the agent that a code agent runs."""

    request: WorkerRequest


class ChildResult(ConversationUpdate):
    """The end of the agent that a code agent ran."""

    error: list[str] | None
    escalated: bool
