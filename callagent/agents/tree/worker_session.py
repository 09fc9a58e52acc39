"""The worker's half of `worker_protocol`: one call's session, and the live state and events that project code changes.

A format subclasses `TreeSession` and makes the objects that its project code expects.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from callagent.agents.kernel import contain, error_report, to_json, to_json_or_note
from callagent.agents.tree import worker_protocol
from callagent.json_values import JsonValue
from callagent.workers import Channel, Plain

VALUE_LIMIT = 256 * 1024
"""Bytes of JSON that the value of one key may have."""
PICKLE_LIMIT = 4 * 1024 * 1024
"""Bytes of one pickled value in a checkpoint; a replacement worker gets larger values in their JSON form only."""


E = TypeVar("E")
"""The format's class of events."""
C = TypeVar("C")
"""The format's class of contexts."""


class LiveState(dict[str, object]):
    """A dict that notes which keys were written, even with the values that they had already."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        super().__init__(values or {})
        self.written: set[str] = set()

    def __setitem__(self, key: str, value: object) -> None:
        self.written.add(key)
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: object = None) -> object:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: object, **named: object) -> None:
        for key, value in dict(*args, **named).items():
            self[key] = value

    def __ior__(self, other: object) -> LiveState:  # type: ignore[override,misc]
        self.update(other)
        return self

    def has_delta(self) -> bool:
        return bool(self.written)

    def to_dict(self) -> dict[str, object]:
        return dict(self)


@dataclass(slots=True)
class LiveConversation(Generic[E]):
    """A conversation's state and events in the worker.

    The state's values are objects of the project. `_views` has the JSON form of each as the core knows it; comparing
    the two finds changes inside nested objects, which no dict subclass could notice.
    """

    state: LiveState = field(default_factory=LiveState)
    events: list[E] = field(default_factory=list)
    """The events as the format's objects."""
    _views: dict[str, JsonValue] = field(default_factory=dict)
    _pickles: dict[str, bytes] = field(default_factory=dict)
    """The pickled values of the last checkpoint."""

    def take_state(self, changes: worker_protocol.StateChanges) -> None:
        """Apply the core's changes. A value whose JSON form is unchanged stays the object that the code put there."""
        for key, value in changes.get("set", {}).items():
            if key not in self.state or self._views.get(key) != value:
                # Not by `LiveState.__setitem__`, because a change by the core is not one by project code.
                dict.__setitem__(self.state, key, value)
                self._views[key] = _view(value)
        for key in changes.get("removed", ()):
            self.state.pop(key, None)
            self._views.pop(key, None)

    def take_changes(self) -> tuple[dict[str, JsonValue], list[str]]:
        """Return what code has changed since the last time: values by key, and removed keys."""
        # `written` is compared too, because a key set to an equal value counts as changed in the ADK's events.
        views = {key: _view(value) for key, value in self.state.items()}
        changed = {
            key: view
            for key, view in views.items()
            if key in self.state.written or key not in self._views or self._views[key] != view
        }
        removed = [key for key in self._views if key not in views]
        self._views = views
        self.state.written.clear()
        return changed, removed

    def checkpoint(self) -> dict[str, bytes | None]:
        """Return the pickled values that have changed since the last checkpoint; None: the key is gone."""
        pickles: dict[str, bytes] = {}
        for key, value in self.state.items():
            # Pickled one by one, because others must not be lost with a value that has no pickle, such as a connection.
            pickled = _pickled(value)
            if pickled is not None and len(pickled) <= PICKLE_LIMIT:
                pickles[key] = pickled
        changes: dict[str, bytes | None] = {}
        changes |= {key: data for key, data in pickles.items() if self._pickles.get(key) != data}
        changes |= dict.fromkeys(self._pickles.keys() - pickles.keys())
        self._pickles = pickles
        return changes

    def restore(self, checkpoint: Mapping[str, bytes]) -> None:
        """Load the values that another worker's checkpoints kept."""
        for key, pickled in checkpoint.items():
            value = _unpickled(pickled)
            if value is _UNREADABLE:
                continue
            dict.__setitem__(self.state, key, value)
            self._views[key] = _view(value)
            self._pickles[key] = pickled


def _pickled(value: object) -> bytes | None:
    """Return a value's pickle; None where it has none, so that a replacement worker gets the value's JSON form."""
    return contain(lambda: pickle.dumps(value, protocol=5), lambda _: None)


_UNREADABLE = object()


def _unpickled(pickled: bytes) -> object:
    """Return the pickled value, or `_UNREADABLE` where its class fails, so that the core sends the JSON form."""
    return contain(lambda: pickle.loads(pickled), lambda _: _UNREADABLE)


def _view(value: object) -> JsonValue:
    """Return the value as JSON data that shares no objects with it."""
    return to_json_or_note(value, VALUE_LIMIT)


RETURN_LIMIT = 1024 * 1024
"""Bytes of JSON that a result of project code may have."""
_end_numbers = itertools.count()
"""Numbers the answers in the order in which they ended."""
_runner = asyncio.Runner()
"""The event loop of the worker process, which runs during requests only. A new loop for each request would cost more
than most functions."""


class ChildFailed(Exception):
    """The failure of an agent that a code agent ran; raised in the code agent."""


class CallbackPayload(ABC):
    """The arguments of a callback beside its context, as the format's objects."""

    by_name: Mapping[str, object]

    @abstractmethod
    def as_plain(self) -> Plain:
        """Return the arguments as the code left them, as plain data."""


class TreeSession(ABC, Generic[C, E]):
    """Handles the requests of `tree.worker_protocol`; a format fills in how its objects are made and called."""

    def __init__(self, checkpoint: Mapping[str, bytes], channel: Channel) -> None:
        self.channel = channel
        self._conversations: dict[int, LiveConversation[E]] = {worker_protocol.CALL_CONVERSATION: LiveConversation()}
        self._conversations[worker_protocol.CALL_CONVERSATION].restore(checkpoint)

    # What a format brings ------------------------------------------------------------------------------------------

    @abstractmethod
    def functions(self, agent: int, point: str) -> Sequence[Callable[..., object]]:
        """Return an agent's callbacks of a point, in order."""

    @abstractmethod
    def event(self, plain: Mapping[str, object]) -> E:
        """Return an event as the format's object."""

    @abstractmethod
    def context(self, live: LiveConversation[E], request: worker_protocol.WorkerRequest, call_id: str | None) -> C:
        """Return the context for a tool if there is a `call_id`, else for a callback."""

    @abstractmethod
    def context_actions(self, context: C) -> Plain:
        """Return the actions that code asked for through its context, beside changes of the state."""

    @abstractmethod
    def payload(self, point: str, context: C, plain: Plain, agent: int) -> CallbackPayload:
        """Return a callback's arguments as the format's objects."""

    @abstractmethod
    def call(self, function: Callable[..., object], context: C, payload: CallbackPayload, point: str) -> object:
        """Call a callback with the arguments that it takes; the caller awaits a returned coroutine."""

    @abstractmethod
    def is_result(self, point: str, returned: object) -> bool:
        """Return whether a callback's value is a result, so that the callbacks after it are not called."""

    @abstractmethod
    def plain_result(self, value: object) -> object:
        """Return the result of project code as plain data."""

    @abstractmethod
    async def run_tool(self, agent: int, name: str, arguments: Plain, context: C) -> object:
        """Run a tool of an agent and return its result."""

    @abstractmethod
    async def run_agent(self, agent: int, live: LiveConversation[E], request: worker_protocol.WorkerRequest) -> None:
        """Run an agent that is project code, sending its events to the core as they come."""

    @abstractmethod
    async def make_instruction(self, agent: int, context: C) -> str:
        """Call the project code that makes an agent's instruction."""

    def describe(self) -> Plain:
        """Return the project's description, the answer to `{"op": "describe"}`."""
        return {}

    # The protocol --------------------------------------------------------------------------------------------------

    def handle(self, request: Plain) -> Plain:
        """Handle one request of the core. The checkpoint has the call's own state, not that of agent tools."""
        if request.get("op") == "describe":
            return self.describe()
        # Messages are not checked, because the core on the other side of the socket is our own code.
        typed = cast("worker_protocol.WorkerRequest", request)
        live = self._update_conversation(typed)
        answers = _run(self._operate(typed, live))
        checkpoint = live.checkpoint() if request["conversation"] == worker_protocol.CALL_CONVERSATION else {}
        return {"answers": answers, "checkpoint": checkpoint}

    async def run_child(self, agent: int, live: LiveConversation[E]) -> list[E]:
        """Have the core run another agent while this code agent waits; return that agent's events.

        The core runs the agent's model turns. Its requests for project code are handled here until the result comes.
        Raises `ChildFailed`.
        """
        # The other agent has to see what the code agent has written to the state so far.
        changed, removed = live.take_changes()
        actions = {"state_delta": changed, "removed": removed}
        reply = self.channel.ask({"type": "run_agent", "agent": agent, "actions": actions, "ask": True})
        while "request" in reply:
            request: worker_protocol.WorkerRequest = reply["request"]
            answers = await self._operate(request, self._update_conversation(request))
            reply = self.channel.ask({"type": "answers", "answers": answers, "ask": True})
        before = len(live.events)
        self._apply_update(live, reply)
        if reply.get("error"):
            raise ChildFailed(": ".join(reply["error"]))
        return live.events[before:]

    def _update_conversation(self, request: worker_protocol.WorkerRequest) -> LiveConversation[E]:
        """Bring the conversation of a request up to date with the core's, and return it."""
        for number in request.get("released") or ():
            self._conversations.pop(number, None)
        live = self._conversations.setdefault(request["conversation"], LiveConversation())
        self._apply_update(live, request)
        return live

    def _apply_update(self, live: LiveConversation[E], update: worker_protocol.ConversationUpdate) -> None:
        live.take_state(update["state"])
        live.events[update["events_from"] :] = [self.event(each) for each in update["events"]]

    async def _operate(
        self, request: worker_protocol.WorkerRequest, live: LiveConversation[E]
    ) -> list[worker_protocol.Answer]:
        match request["op"]:
            case "callbacks":
                return [await self._callbacks(request, live)]
            case "tools":
                return await self._tools(request, live)
            case "instruction":
                context = self.context(live, request, None)
                return [await self._answer(live, context, self.make_instruction(request["agent"], context))]
            case "agent":
                return [await self._answer(live, None, self.run_agent(request["agent"], live, request))]
            case other:
                raise ValueError(f"unknown request {other!r}")

    async def _callbacks(
        self, request: worker_protocol.WorkerRequest, live: LiveConversation[E]
    ) -> worker_protocol.Answer:
        point, plain = request["point"], request.get("payload") or {}
        context = self.context(live, request, plain.get("call_id"))
        payload = self.payload(point, context, plain, request["agent"])
        answer = await self._answer(live, context, self.run_callbacks(request["agent"], point, context, payload))
        answer["payload"] = to_json(payload.as_plain(), RETURN_LIMIT)
        return answer

    async def _tools(
        self, request: worker_protocol.WorkerRequest, live: LiveConversation[E]
    ) -> list[worker_protocol.Answer]:
        # Concurrent tools share the worker's one event loop: only coroutines overlap, plain functions run one by one.
        jobs = [self._tool(request, live, call) for call in request["calls"]]
        if request.get("parallel"):
            return _reconciled(list(await asyncio.gather(*jobs)))
        return [await job for job in jobs]

    async def _tool(
        self, request: worker_protocol.WorkerRequest, live: LiveConversation[E], call: worker_protocol.ToolCallMessage
    ) -> worker_protocol.Answer:
        context = self.context(live, request, call["id"])
        return await self._answer(live, context, self._around_tool(request, call, context))

    async def _around_tool(
        self, request: worker_protocol.WorkerRequest, call: worker_protocol.ToolCallMessage, context: C
    ) -> object:
        """Run a tool and its callbacks: one before it may answer instead of it, one after it may replace the result."""
        agent = request["agent"]
        plain: Plain = {"tool": {"name": call["tool"]}, "args": call["args"]}
        payload = self.payload("before_tool", context, plain, agent)
        returned = await self.run_callbacks(agent, "before_tool", context, payload)
        if returned is None:
            returned = await self.run_tool(agent, call["tool"], payload.as_plain()["args"], context)
        plain = {**plain, "args": payload.as_plain()["args"], "tool_response": returned}
        payload = self.payload("after_tool", context, plain, agent)
        after = await self.run_callbacks(agent, "after_tool", context, payload)
        return returned if after is None else after

    async def run_callbacks(self, agent: int, point: str, context: C, payload: CallbackPayload) -> object:
        """Call an agent's callbacks of a point until one returns a result; return it, or None."""
        for function in self.functions(agent, point):
            returned = self.call(function, context, payload, point)
            if inspect.isawaitable(returned):
                returned = await returned
            if self.is_result(point, returned):
                return returned
        return None

    async def _answer(
        self, live: LiveConversation[E], context: C | None, work: Awaitable[object]
    ) -> worker_protocol.Answer:
        """Await project code and return its result, its actions and its error as one answer."""
        started = time.monotonic()
        returned, error, traceback = None, None, ""
        # The state is read even after a failure, because changes made before it are kept.
        try:
            returned = to_json(self.plain_result(await work), RETURN_LIMIT)
        except BaseException as raised:  # the edge of project code: sys.exit() ends the function only
            report = error_report(raised)
            error, traceback = [report["type"], report["message"]], report["traceback"]
        requested = self.context_actions(context) if context is not None else {}
        changed, removed = live.take_changes()
        actions = cast("worker_protocol.ActionsMessage", {**requested, "state_delta": changed, "removed": removed})
        return {
            "returned": returned,
            "actions": actions,
            "error": error,
            "traceback": traceback,
            "duration_ms": (time.monotonic() - started) * 1000,
            "ended": next(_end_numbers),
        }


def _reconciled(answers: list[worker_protocol.Answer]) -> list[worker_protocol.Answer]:
    """Let the state changes of concurrent calls agree: each key gets the value that was written last.

    The calls share one state, so each answer has the keys that it saw change, and the core applies the answers in the
    order of the calls, not in the order in which they ended.
    """
    newest: Plain = {}
    for answer in sorted(answers, key=lambda each: each["ended"]):
        newest.update(answer["actions"]["state_delta"])
    for answer in answers:
        delta = answer["actions"]["state_delta"]
        delta.update({key: newest[key] for key in delta})
    return answers


def server_timeout(request: worker_protocol.WorkerRequest) -> float | None:
    """Return the seconds that a tool may wait for a server, or None without a deadline.

    It is a little less than the request's deadline: the tool gives up first and the model is told, whereas the
    deadline kills the whole worker.
    """
    seconds = request.get("seconds")
    return None if not seconds else seconds - min(1.0, seconds * 0.1)


def _run(work: Coroutine[object, None, list[worker_protocol.Answer]]) -> list[worker_protocol.Answer]:
    """Run a request to its end and cancel the tasks that functions left running, as `asyncio.run` does."""
    # Workers inside the process of a test run in threads, where the one loop of a worker process cannot be shared.
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)

    async def run_and_clean_up() -> list[worker_protocol.Answer]:
        answers = await work
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return answers

    return _runner.run(run_and_clean_up())
