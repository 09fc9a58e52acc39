"""One call's session in a worker. What contexts, requests and tools look like is the format's."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from callagent.agents.kernel.runtime import error_report, project
from callagent.agents.tree.runtime.live import LiveConversation
from callagent.workers.protocol import Channel

RETURN_LIMIT = 1024 * 1024
"""Bytes of a result."""
Plain = dict[str, Any]


_ends = itertools.count()
"""Which answer came before which."""
_runner = asyncio.Runner()
"""Of the worker process: a loop of its own for each request would cost more than most functions."""


class ChildFailed(Exception):
    """An agent that a code agent ran has failed."""


class Subject(ABC):
    """What a callback or a tool is about, as the format's objects."""

    named: Mapping[str, Any]
    """The arguments that functions take beside the context."""

    @abstractmethod
    def as_plain(self) -> Plain:
        """The subject as code left it."""


class TreeSession(ABC):
    """Handles the requests of `tree.worker_client`."""

    def __init__(self, checkpoint: Mapping[str, bytes], channel: Channel) -> None:
        self.channel = channel
        self._conversations: dict[int, LiveConversation] = {0: LiveConversation()}
        self._conversations[0].restore(checkpoint)

    # What a format brings ------------------------------------------------------------------------------------------

    @abstractmethod
    def functions(self, agent: int, point: str) -> Sequence[Callable[..., Any]]: ...

    @abstractmethod
    def event(self, plain: Mapping[str, Any]) -> Any:
        """An event as code sees it."""

    @abstractmethod
    def context(self, live: LiveConversation, request: Mapping[str, Any], call_id: str | None) -> Any:
        """What functions get as their context."""

    @abstractmethod
    def context_actions(self, context: Any) -> Plain:
        """What code asked for through its context, beside changes of the state."""

    @abstractmethod
    def subject(self, point: str, context: Any, plain: Mapping[str, Any], agent: int) -> Subject: ...

    @abstractmethod
    def call(self, function: Callable[..., Any], context: Any, subject: Subject, point: str) -> Any:
        """Call a callback with the arguments it takes; a coroutine is awaited by the caller."""

    @abstractmethod
    def is_result(self, point: str, returned: Any) -> bool:
        """Whether a callback's value ends the row."""

    @abstractmethod
    def returned(self, value: Any) -> Any:
        """A result as plain data."""

    @abstractmethod
    async def run_tool(self, agent: int, name: str, arguments: Plain, context: Any) -> Any: ...

    @abstractmethod
    async def run_agent(self, agent: int, live: LiveConversation, request: Mapping[str, Any]) -> None: ...

    @abstractmethod
    async def make_instruction(self, agent: int, context: Any) -> str: ...

    def describe(self) -> Plain:
        """The project, for `{"op": "describe"}`."""
        return {}

    # The protocol --------------------------------------------------------------------------------------------------

    def handle(self, request: Plain) -> Plain:
        if request.get("op") == "describe":
            return self.describe()
        live = self._told(request)
        answers = _run(self._work(request, live))
        checkpoint = live.checkpoint() if request["conversation"] == 0 else {}
        return {"answers": answers, "checkpoint": checkpoint}

    async def run_child(self, agent: int, live: LiveConversation) -> list[Any]:
        """Let the core run another agent while this one waits; its events. What it needs of the code is done here.

        Raises `ChildFailed`.
        """
        changed, removed = live.look()
        actions = {"state_delta": changed, "removed": removed}
        reply = self.channel.ask({"type": "run_agent", "agent": agent, "actions": actions, "ask": True})
        while "request" in reply:
            request = reply["request"]
            answers = await self._work(request, self._told(request))
            reply = self.channel.ask({"type": "answers", "answers": answers, "ask": True})
        before = len(live.events)
        self._take(live, reply)
        if reply.get("error"):
            raise ChildFailed(": ".join(reply["error"]))
        return live.events[before:]

    def _told(self, request: Plain) -> LiveConversation:
        for number in request.get("released") or ():
            self._conversations.pop(number, None)
        live = self._conversations.setdefault(request["conversation"], LiveConversation())
        self._take(live, request)
        return live

    def _take(self, live: LiveConversation, news: Plain) -> None:
        live.take_state(news.get("state") or {})
        live.events[news.get("events_from") or 0 :] = [self.event(each) for each in news.get("events") or ()]

    async def _work(self, request: Plain, live: LiveConversation) -> list[Plain]:
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

    async def _callbacks(self, request: Plain, live: LiveConversation) -> Plain:
        point, plain = request["point"], request.get("subject") or {}
        context = self.context(live, request, plain.get("call_id"))
        subject = self.subject(point, context, plain, request["agent"])
        answer = await self._answer(live, context, self.run_row(request["agent"], point, context, subject))
        answer["subject"] = project(subject.as_plain(), RETURN_LIMIT)
        return answer

    async def _tools(self, request: Plain, live: LiveConversation) -> list[Plain]:
        jobs = [self._tool(request, live, call) for call in request["calls"]]
        if request.get("parallel"):
            return _reconciled(list(await asyncio.gather(*jobs)))
        return [await job for job in jobs]

    async def _tool(self, request: Plain, live: LiveConversation, call: Plain) -> Plain:
        context = self.context(live, request, call["id"])
        return await self._answer(live, context, self._around_tool(request, call, context))

    async def _around_tool(self, request: Plain, call: Plain, context: Any) -> Any:
        agent, plain = request["agent"], {"tool": {"name": call["tool"]}, "args": call["args"]}
        subject = self.subject("before_tool", context, plain, agent)
        returned = await self.run_row(agent, "before_tool", context, subject)
        if returned is None:
            returned = await self.run_tool(agent, call["tool"], subject.as_plain()["args"], context)
        plain = {**plain, "args": subject.as_plain()["args"], "tool_response": returned}
        after = await self.run_row(agent, "after_tool", context, self.subject("after_tool", context, plain, agent))
        return returned if after is None else after

    async def run_row(self, agent: int, point: str, context: Any, subject: Subject) -> Any:
        """The functions at a point until one has a result; None when none has."""
        for function in self.functions(agent, point):
            returned = self.call(function, context, subject, point)
            if inspect.isawaitable(returned):
                returned = await returned
            if self.is_result(point, returned):
                return returned
        return None

    async def _answer(self, live: LiveConversation, context: Any, work: Any) -> Plain:
        started = time.monotonic()
        returned, error, traceback = None, None, ""
        try:
            returned = project(self.returned(await work), RETURN_LIMIT)
        except BaseException as raised:  # the edge of project code: sys.exit() ends the function only
            report = error_report(raised)
            error, traceback = [report["type"], report["message"]], report["traceback"]
        actions = self.context_actions(context) if context is not None else {}
        changed, removed = live.look()
        return {
            "returned": returned,
            "actions": {**actions, "state_delta": changed, "removed": removed},
            "error": error,
            "traceback": traceback,
            "duration_ms": (time.monotonic() - started) * 1000,
            "ended": next(_ends),
        }


def _reconciled(answers: list[Plain]) -> list[Plain]:
    """Of calls side by side: each tells what is in the state now, whichever of them put it there last."""
    newest: Plain = {}
    for answer in sorted(answers, key=lambda each: each["ended"]):
        newest.update(answer["actions"]["state_delta"])
    for answer in answers:
        delta = answer["actions"]["state_delta"]
        delta.update({key: newest[key] for key in delta})
    return answers


def patience(request: Mapping[str, Any]) -> float | None:
    """Seconds for what waits for a server: it gives up before the deadline, so that the worker lives on and the model
    is told. None: there is no deadline."""
    seconds = request.get("seconds")
    return None if not seconds else float(seconds) - min(1.0, float(seconds) * 0.1)


def _run(work: Coroutine[Any, Any, list[Plain]]) -> list[Plain]:
    """To its end; what functions left running is cancelled, as `asyncio.run` does."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)

    async def whole() -> list[Plain]:
        answers = await work
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return answers

    return _runner.run(whole())
