"""One call's session in a worker: it handles the core's requests with the objects of a project format."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from callagent.agents.kernel import error_report, project
from callagent.agents.tree.runtime.live import LiveConversation
from callagent.agents.tree.worker_protocol import (
    ActionsMessage,
    Answer,
    ConversationUpdate,
    ToolCallMessage,
    WorkerRequest,
)
from callagent.workers import Channel

RETURN_LIMIT = 1024 * 1024
"""Bytes of JSON of a result."""
Plain = dict[str, Any]

_ends = itertools.count()
"""Numbers the answers in the order in which they ended."""
_runner = asyncio.Runner()
"""The event loop of the worker process. It stands still between requests; a new loop for each request would cost more
than most functions."""


class ChildFailed(Exception):
    """An agent that a code agent ran has failed; raised in the code agent."""


class Subject(ABC):
    """The arguments of a callback beside its context, as the format's objects."""

    named: Mapping[str, Any]
    """The arguments by name."""

    @abstractmethod
    def as_plain(self) -> Plain:
        """Return the arguments as the code left them, as plain data."""


class TreeSession(ABC):
    """Handles the requests of `tree.worker_protocol`; a format fills in how its objects are made and called."""

    def __init__(self, checkpoint: Mapping[str, bytes], channel: Channel) -> None:
        self.channel = channel
        self._conversations: dict[int, LiveConversation] = {0: LiveConversation()}
        self._conversations[0].restore(checkpoint)

    # What a format brings ------------------------------------------------------------------------------------------

    @abstractmethod
    def functions(self, agent: int, point: str) -> Sequence[Callable[..., Any]]:
        """Return an agent's callbacks of a point, in order."""

    @abstractmethod
    def event(self, plain: Mapping[str, Any]) -> Any:
        """Return an event as the format's object."""

    @abstractmethod
    def context(self, live: LiveConversation, request: Mapping[str, Any], call_id: str | None) -> Any:
        """Return the context for a callback, or for a tool when there is a `call_id`."""

    @abstractmethod
    def context_actions(self, context: Any) -> Plain:
        """Return what code asked for through its context, beside changes of the state."""

    @abstractmethod
    def subject(self, point: str, context: Any, plain: Mapping[str, Any], agent: int) -> Subject:
        """Return a callback's arguments as the format's objects."""

    @abstractmethod
    def call(self, function: Callable[..., Any], context: Any, subject: Subject, point: str) -> Any:
        """Call a callback with the arguments that it takes; the caller awaits a returned coroutine."""

    @abstractmethod
    def is_result(self, point: str, returned: Any) -> bool:
        """Return whether a callback's value is a result, so that the callbacks after it are not called."""

    @abstractmethod
    def returned(self, value: Any) -> Any:
        """Return a result as plain data."""

    @abstractmethod
    async def run_tool(self, agent: int, name: str, arguments: Plain, context: Any) -> Any:
        """Run a tool of an agent and return its result."""

    @abstractmethod
    async def run_agent(self, agent: int, live: LiveConversation, request: Mapping[str, Any]) -> None:
        """Run an agent that is project code, sending its events to the core as they come."""

    @abstractmethod
    async def make_instruction(self, agent: int, context: Any) -> str:
        """Call the project code that makes an agent's instruction."""

    def describe(self) -> Plain:
        """Return the project's description, the answer to `{"op": "describe"}`."""
        return {}

    # The protocol --------------------------------------------------------------------------------------------------

    def handle(self, request: Plain) -> Plain:
        """Handle one request of the core. The checkpoint has the call's own state, not that of agent tools."""
        if request.get("op") == "describe":
            return self.describe()
        typed = cast("WorkerRequest", request)
        live = self._updated(typed)
        answers = _run(self._operate(typed, live))
        checkpoint = live.checkpoint() if request["conversation"] == 0 else {}
        return {"answers": answers, "checkpoint": checkpoint}

    async def run_child(self, agent: int, live: LiveConversation) -> list[Any]:
        """Have the core run another agent while this code agent waits; return that agent's events.

        The core runs the agent's model turns; what it needs of project code comes back as requests, which are handled
        here until the result comes. Raises `ChildFailed`.
        """
        changed, removed = live.take_changes()
        actions = {"state_delta": changed, "removed": removed}
        reply = self.channel.ask({"type": "run_agent", "agent": agent, "actions": actions, "ask": True})
        while "request" in reply:
            request: WorkerRequest = reply["request"]
            answers = await self._operate(request, self._updated(request))
            reply = self.channel.ask({"type": "answers", "answers": answers, "ask": True})
        before = len(live.events)
        self._update(live, reply)
        if reply.get("error"):
            raise ChildFailed(": ".join(reply["error"]))
        return live.events[before:]

    def _updated(self, request: WorkerRequest) -> LiveConversation:
        """Return the conversation of a request, brought up to date with the core's."""
        for number in request.get("released") or ():
            self._conversations.pop(number, None)
        live = self._conversations.setdefault(request["conversation"], LiveConversation())
        self._update(live, request)
        return live

    def _update(self, live: LiveConversation, update: ConversationUpdate) -> None:
        live.take_state(update.get("state") or {})
        live.events[update.get("events_from") or 0 :] = [self.event(each) for each in update.get("events") or ()]

    async def _operate(self, request: WorkerRequest, live: LiveConversation) -> list[Answer]:
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

    async def _callbacks(self, request: WorkerRequest, live: LiveConversation) -> Answer:
        point, plain = request["point"], request.get("subject") or {}
        context = self.context(live, request, plain.get("call_id"))
        subject = self.subject(point, context, plain, request["agent"])
        answer = await self._answer(live, context, self.run_callbacks(request["agent"], point, context, subject))
        answer["subject"] = project(subject.as_plain(), RETURN_LIMIT)
        return answer

    async def _tools(self, request: WorkerRequest, live: LiveConversation) -> list[Answer]:
        # Concurrent tools share the worker's one event loop: only coroutines run side by side, functions one by one.
        jobs = [self._tool(request, live, call) for call in request["calls"]]
        if request.get("parallel"):
            return _reconciled(list(await asyncio.gather(*jobs)))
        return [await job for job in jobs]

    async def _tool(self, request: WorkerRequest, live: LiveConversation, call: ToolCallMessage) -> Answer:
        context = self.context(live, request, call["id"])
        return await self._answer(live, context, self._around_tool(request, call, context))

    async def _around_tool(self, request: WorkerRequest, call: ToolCallMessage, context: Any) -> Any:
        """Run a tool with its callbacks: one before it may answer in its place, one after it may replace the result."""
        agent = request["agent"]
        plain: Plain = {"tool": {"name": call["tool"]}, "args": call["args"]}
        subject = self.subject("before_tool", context, plain, agent)
        returned = await self.run_callbacks(agent, "before_tool", context, subject)
        if returned is None:
            returned = await self.run_tool(agent, call["tool"], subject.as_plain()["args"], context)
        plain = {**plain, "args": subject.as_plain()["args"], "tool_response": returned}
        subject = self.subject("after_tool", context, plain, agent)
        after = await self.run_callbacks(agent, "after_tool", context, subject)
        return returned if after is None else after

    async def run_callbacks(self, agent: int, point: str, context: Any, subject: Subject) -> Any:
        """Call an agent's callbacks of a point until one returns a result; return it, or None."""
        for function in self.functions(agent, point):
            returned = self.call(function, context, subject, point)
            if inspect.isawaitable(returned):
                returned = await returned
            if self.is_result(point, returned):
                return returned
        return None

    async def _answer(self, live: LiveConversation, context: Any, work: Awaitable[Any]) -> Answer:
        """Await a piece of work and return its result, its actions and its error as one answer."""
        started = time.monotonic()
        returned, error, traceback = None, None, ""
        # The state is read even after a failure: what the code did before it stands.
        try:
            returned = project(self.returned(await work), RETURN_LIMIT)
        except BaseException as raised:  # the edge of project code: sys.exit() ends the function only
            report = error_report(raised)
            error, traceback = [report["type"], report["message"]], report["traceback"]
        asked = self.context_actions(context) if context is not None else {}
        changed, removed = live.take_changes()
        actions = cast("ActionsMessage", {**asked, "state_delta": changed, "removed": removed})
        return {
            "returned": returned,
            "actions": actions,
            "error": error,
            "traceback": traceback,
            "duration_ms": (time.monotonic() - started) * 1000,
            "ended": next(_ends),
        }


def _reconciled(answers: list[Answer]) -> list[Answer]:
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


def server_timeout(request: Mapping[str, Any]) -> float | None:
    """Return the seconds that a tool may wait for a server, or None without a deadline.

    It is a little less than the request's deadline: the tool gives up first and the model is told, whereas the
    deadline kills the whole worker.
    """
    seconds = request.get("seconds")
    return None if not seconds else float(seconds) - min(1.0, float(seconds) * 0.1)


def _run(work: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
    """Run a request to its end and cancel the tasks that functions left running, as `asyncio.run` does."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)

    async def whole() -> list[Answer]:
        answers = await work
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return answers

    return _runner.run(whole())
