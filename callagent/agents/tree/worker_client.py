"""Project code in the call's worker.

A request is `{"op", "agent", "invocation": {"branch", "invocation_id", "user_content"}, "conversation", "released",
"state": {"set", "removed"}, "events_from", "events"}` and what the operation needs:

    {"op": "callbacks", "point", "subject"}   → {"answers": [answer]}
    {"op": "tools", "calls": [{"tool", "id", "args"}], "parallel", "seconds"}  → {"answers": [answer, …]}, one per call,
                                                                                  in order, after so long at most
    {"op": "instruction"} and {"op": "agent"} → {"answers": [answer]}

`agent` is the number that the worker gave an agent when it described the project. `conversation` is 0 for the call and
counts the agents that are tools; `released` lists those that are over. `events` replace what the worker has from
index `events_from` on. An answer is `{"returned", "subject", "actions": {"state_delta", "removed",
"transfer_to_agent", "escalate", "skip_summarization", "other"}, "error": None | [kind, text], "duration_ms", "logs"}`.

An agent made of code sends its events as messages `{"type": "event", "event": …, "ask": True}`. To run an agent below
it, it sends `{"type": "run_agent", "agent": number, "actions": …, "ask": True}`. It gets `{"request": request}` when
that agent needs code, to be answered by `{"type": "answers", "answers": …, "ask": True}`, and in the end
`{"error": None | [kind, text], "escalated", "state", "events_from", "events"}`.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from callagent.agents.tree.call_storage import STORAGE_REQUEST
from callagent.agents.tree.conversation import Conversation
from callagent.agents.tree.events import Content, RunFailed
from callagent.agents.tree.nodes import CallbackPoint
from callagent.agents.tree.project_code import CodeAnswer, CodeCall, Invocation, OnEvent, RunChild
from callagent.agents.tree.state import merge_changes
from callagent.errors import WorkerDied, WorkerError
from callagent.log import get_logger
from callagent.workers.protocol import Lease, Plain

log = get_logger(__name__)
MAX_LOGS = 200
W = TypeVar("W", bound="WorkerClient")
OnAsked = Callable[[Plain], Awaitable[Any]]
Spare = Callable[[], Awaitable[Lease]]
"""Another worker of the same call; raises `WorkerError`."""
MAX_APART = 4
"""Tools of one call that run at the same time in workers of their own."""


@dataclass(slots=True)
class _Worker:
    """What the conversations of one call share."""

    lease: Lease
    timeout: float
    agent_timeout: float
    spare: Spare | None = None
    side_by_side: bool = False
    tool_timeout: float | None = None
    apart: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_APART))
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    released: list[int] = field(default_factory=list)
    replaced: int = 0
    """How often the process was replaced; a conversation that knows less tells everything again."""


class WorkerClient:
    """Implements `project_code.ProjectCode`."""

    def __init__(
        self,
        lease: Lease,
        conversation: Conversation,
        timeout: float,
        agent_timeout: float,
        spare: Spare | None = None,
        *,
        side_by_side: bool = False,
        tool_timeout: float | None = None,
    ) -> None:
        """`spare`: who carries out tools that the model does not wait for; None: the same worker, in its turn.

        `tool_timeout`: for tools that have none of their own; None: `timeout`.
        `side_by_side`: tools of one answer of the model run in spare workers too, each from the same state.
        """
        self._begin(_Worker(lease, timeout, agent_timeout, spare, side_by_side, tool_timeout), conversation)

    def nested(self, conversation: Conversation) -> WorkerClient:
        return self._copy(WorkerClient, conversation)

    def _copy(self, kind: type[W], conversation: Conversation) -> W:
        inner = object.__new__(kind)
        inner._begin(self._worker, conversation)
        return inner

    def _begin(self, worker: _Worker, conversation: Conversation) -> None:
        self._worker = worker
        self._conversation = conversation
        self._number = next(worker.numbers)
        self._replaced = worker.replaced
        self._one_at_a_time = worker.one_at_a_time

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, subject: Mapping[str, Any]) -> CodeAnswer:
        request = {"op": "callbacks", "point": point.value, "subject": dict(subject)}
        return (await self._ask(invocation, request, 1))[0]

    async def tools(self, invocation: Invocation, calls: Sequence[CodeCall], *, parallel: bool) -> list[CodeAnswer]:
        """Side by side; else those that may take equally long together, as a deadline ends all that its worker runs."""
        spare = self._worker.spare
        if spare is not None and parallel and len(calls) > 1 and self._worker.side_by_side:
            alone = [self._request([call], self._seconds(call), parallel=False) for call in calls]
            return await self._side_by_side(spare, invocation, alone)
        answers: dict[int, CodeAnswer] = {}
        for seconds in dict.fromkeys(map(self._seconds, calls)):
            places = [place for place, call in enumerate(calls) if self._seconds(call) == seconds]
            group = [calls[place] for place in places]
            request = self._request(group, seconds, parallel=parallel)
            if spare is not None and all(call.tool.asynchronous for call in group):
                given = await self._apart(spare, invocation, request)
            else:
                given = await self._ask(invocation, request, len(group))
            answers.update(zip(places, given, strict=True))
        return [answers[place] for place in range(len(calls))]

    def _seconds(self, call: CodeCall) -> float:
        return call.tool.timeout or self._worker.tool_timeout or self._worker.timeout

    def _request(self, calls: Sequence[CodeCall], seconds: float, *, parallel: bool) -> Plain:
        reveal = self._conversation.vault.reveal
        plain = [{"tool": call.tool.name, "id": call.id, "args": reveal(dict(call.arguments))} for call in calls]
        return {"op": "tools", "calls": plain, "parallel": parallel, "seconds": seconds}

    async def withheld(self, invocation: Invocation) -> Content | None:
        return None

    async def instruction(self, invocation: Invocation) -> CodeAnswer:
        return (await self._ask(invocation, {"op": "instruction"}, 1))[0]

    async def agent(self, invocation: Invocation, on_event: OnEvent, run_child: RunChild) -> CodeAnswer:
        nested_run = NestedAgentRun(self, run_child)

        async def on_message(message: Plain) -> Any:
            match message["type"]:
                case "event":
                    self.take(message["event"].get("actions") or {})
                    return await on_event(message["event"])
                case "run_agent":
                    self.take(message.get("actions") or {})
                    return await nested_run.begin(int(message["agent"]))
                case "answers":
                    return await nested_run.go_on(message["answers"])

        try:
            return (await self._ask(invocation, {"op": "agent"}, 1, on_message))[0]
        finally:
            await nested_run.close()

    async def close(self) -> None:
        if self._number == 0:
            await self._worker.lease.close()
        else:
            self._worker.released.append(self._number)

    def news(self) -> Plain:
        """What the worker does not know yet of state and events; it knows it when it has this."""
        conversation = self._conversation
        told = {
            "state": conversation.state.unsent(),
            "events_from": conversation.revised,
            "events": [event.as_plain() for event in conversation.events[conversation.revised :]],
        }
        conversation.state.sent()
        conversation.revised = len(conversation.events)
        return told

    def take(self, actions: Mapping[str, Any]) -> None:
        """The state follows the worker's."""
        self._conversation.state.take(actions.get("state_delta") or {}, actions.get("removed") or ())

    async def _ask(
        self, invocation: Invocation, request: Plain, answers: int, on_asked: OnAsked | None = None
    ) -> list[CodeAnswer]:
        logs: list[Mapping[str, Any]] = []

        conceal = self._conversation.vault.conceal

        async def on_message(message: Plain) -> Any:
            message = conceal(message)
            if message.get("ask") and message.get("type") == STORAGE_REQUEST:
                return self._conversation.storage.answer(message, self._conversation.events, conceal)
            if message.get("ask") and on_asked is not None:
                return await on_asked(message)
            if len(logs) < MAX_LOGS:
                logs.append({key: value for key, value in message.items() if key != "ask"})
            return None

        async with self._one_at_a_time:
            try:
                given = await self._send(self._with_news(invocation, request), on_message)
            except WorkerError as error:
                self._worker.replaced += 1
                return self._failed(invocation, request, error, logs, answers)
            return [self._answer(conceal(plain), logs) for plain in given]

    async def _apart(self, spare: Spare, invocation: Invocation, request: Plain) -> list[CodeAnswer]:
        """In a worker of its own, which knows what is known now; the call's goes on meanwhile."""
        logs: list[Mapping[str, Any]] = []
        conceal = self._conversation.vault.conceal

        async def on_message(message: Plain) -> None:
            if len(logs) < MAX_LOGS:
                logs.append({key: value for key, value in conceal(message).items() if key != "ask"})

        conversation = self._conversation
        known = {
            "state": {"set": dict(conversation.state.values), "removed": []},
            "events_from": 0,
            "events": [event.as_plain() for event in conversation.events],
        }
        try:
            async with self._worker.apart:
                lease = await spare()
                try:
                    whole = {**request, **self._place(invocation), **known, "conversation": 0, "released": []}
                    data = await lease.run(whole, timeout=request["seconds"], on_message=on_message)
                finally:
                    await lease.close()
        except WorkerError as error:
            return self._failed(invocation, request, error, logs, len(request["calls"]))
        return [self._told(conceal(plain), logs) for plain in data["answers"]]

    async def _side_by_side(self, spare: Spare, invocation: Invocation, requests: Sequence[Plain]) -> list[CodeAnswer]:
        """The first in the call's worker, the others each in one of its own, all from the same beginning.

        What they did to the state is in agreement when they have all ended.
        """
        state = self._conversation.state
        before = copy.deepcopy(state.values)
        ended: list[CodeAnswer] = []

        async def run(request: Plain) -> CodeAnswer:
            first = request is requests[0]
            (answer,) = await (self._ask(invocation, request, 1) if first else self._apart(spare, invocation, request))
            ended.append(answer)
            return answer

        answers = await asyncio.gather(*map(run, requests))
        changes = [(each.actions.get("state_delta") or {}, each.actions.get("removed") or ()) for each in ended]
        for answer, (changed, removed) in zip(ended, merge_changes(before, changes), strict=True):
            answer.actions = {**answer.actions, "state_delta": changed, "removed": removed}
            state.apply(changed, removed)
        return answers

    async def _send(self, request: Plain, on_message: OnAsked) -> list[Plain]:
        """The answers. Raises `WorkerError`."""
        worker = self._worker
        timeout = worker.agent_timeout if request["op"] == "agent" else request.get("seconds") or worker.timeout
        data = await worker.lease.run(request, timeout=timeout, on_message=on_message)
        worker.released = [each for each in worker.released if each not in request["released"]]
        answers: list[Plain] = data["answers"]
        return answers

    def _with_news(self, invocation: Invocation, request: Plain) -> Plain:
        conversation = self._conversation
        if self._replaced != self._worker.replaced:
            self._replaced = self._worker.replaced
            conversation.state.unknown()
            conversation.revised = 0
        return {
            **request,
            **self._place(invocation),
            "conversation": self._number,
            "released": list(self._worker.released),
            **self.news(),
        }

    def _place(self, invocation: Invocation) -> Plain:
        return {
            "agent": invocation.node.code,
            "invocation": {
                "branch": invocation.branch,
                "invocation_id": invocation.invocation_id,
                "user_content": invocation.user_content,
            },
        }

    def _answer(self, plain: Mapping[str, Any], logs: Sequence[Mapping[str, Any]]) -> CodeAnswer:
        self.take(plain.get("actions") or {})
        return self._told(plain, logs)

    def _failed(
        self,
        invocation: Invocation,
        request: Plain,
        error: WorkerError,
        logs: Sequence[Mapping[str, Any]],
        answers: int,
    ) -> list[CodeAnswer]:
        """Of a request that the worker did not answer."""
        text = self._conversation.vault.conceal(str(error))
        log.warning("project_code_failed", op=request["op"], agent=invocation.node.name, error=text)
        return [CodeAnswer(error=(type(error).__name__, text), logs=logs) for _ in range(answers)]

    def _told(self, plain: Mapping[str, Any], logs: Sequence[Mapping[str, Any]]) -> CodeAnswer:
        actions = plain.get("actions") or {}
        error = plain.get("error")
        if error:
            log.warning("project_code_raised", kind=error[0], error=error[1], traceback=plain.get("traceback"))
        return CodeAnswer(
            returned=plain.get("returned"),
            subject=plain.get("subject") or {},
            actions=actions,
            error=(str(error[0]), str(error[1])) if error else None,
            duration_ms=float(plain.get("duration_ms") or 0.0),
            logs=logs,
        )


class _NestedClient(WorkerClient):
    """The code of agents that a code agent runs: the worker is busy with that one and works requests off in between."""

    _nested_run: NestedAgentRun

    def inside(self, nested_run: NestedAgentRun) -> None:
        self._nested_run = nested_run
        self._one_at_a_time = asyncio.Lock()

    def nested(self, conversation: Conversation) -> WorkerClient:
        inner = self._copy(_NestedClient, conversation)
        inner._nested_run, inner._one_at_a_time = self._nested_run, self._one_at_a_time
        return inner

    async def _send(self, request: Plain, on_message: OnAsked) -> list[Plain]:
        return await self._nested_run.ask(request)


class NestedAgentRun:
    """A code agent lets another agent run and waits for it."""

    def __init__(self, code: WorkerClient, run_child: RunChild) -> None:
        self._code = code
        self._run_child = run_child
        self._child: asyncio.Task[bool] | None = None
        self._requests: asyncio.Queue[tuple[Plain, asyncio.Future[list[Plain]]]] = asyncio.Queue(1)
        self._open: asyncio.Future[list[Plain]] | None = None
        self._closed = False

    async def begin(self, number: int) -> Plain:
        inside = self._code._copy(_NestedClient, self._code._conversation)
        # The same conversation: the worker knows it by the same number.
        inside._number = self._code._number
        inside.inside(self)
        self._child = asyncio.create_task(self._as_bool(self._run_child(inside, number)))
        return await self._next()

    async def go_on(self, answers: list[Plain]) -> Plain:
        if self._open is not None and not self._open.done():
            self._open.set_result(answers)
        return await self._next()

    async def ask(self, request: Plain) -> list[Plain]:
        """A request of the agent that runs; answered by the worker in between."""
        if self._closed:
            raise WorkerDied("the agent that ran this one has ended")
        answered: asyncio.Future[list[Plain]] = asyncio.get_running_loop().create_future()
        await self._requests.put((request, answered))
        return await answered

    async def close(self) -> None:
        """The code agent is done or its worker is gone: nobody answers any more."""
        self._closed = True
        waiting = [self._open] if self._open is not None else []
        while not self._requests.empty():
            waiting.append(self._requests.get_nowait()[1])
        for answered in waiting:
            if not answered.done():
                answered.set_exception(WorkerDied("the agent that ran this one has ended"))
        if self._child is not None and not self._child.done():
            self._child.cancel()
            await asyncio.wait({self._child})

    async def _next(self) -> Plain:
        assert self._child is not None
        asked = asyncio.create_task(self._requests.get())
        await asyncio.wait({self._child, asked}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            request, self._open = asked.result()
            return {"request": request}
        asked.cancel()
        error = self._child.exception()
        if error is not None and not isinstance(error, RunFailed):
            raise error
        escalated = error is None and self._child.result()
        failed = None if error is None else [error.kind, error.text]
        return {"error": failed, "escalated": escalated, **self._code.news()}

    @staticmethod
    async def _as_bool(running: Awaitable[bool]) -> bool:
        return await running
