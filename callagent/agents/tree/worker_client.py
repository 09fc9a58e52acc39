"""The core's half of `worker_protocol`: runs a call's project code by requests to the call's worker."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from callagent.agents.tree import worker_protocol
from callagent.agents.tree.call_storage import STORAGE_REQUEST
from callagent.agents.tree.conversation import Conversation, merge_changes
from callagent.agents.tree.events import Content, PlainObject, RunFailed
from callagent.agents.tree.nodes import CallbackPoint
from callagent.agents.tree.run_context import CodeAnswer, CodeCall, Invocation, OnEvent, RunChild
from callagent.errors import WorkerDied, WorkerError
from callagent.json_values import object_at, objects_at
from callagent.log import get_logger
from callagent.workers import Lease, Plain

log = get_logger(__name__)
MAX_LOGS = 200
"""Log lines kept of one request; further ones are dropped."""
MAX_SPARE_WORKERS = 4
"""Tools of one call that may run at the same time in workers of their own."""
C = TypeVar("C", bound="WorkerClient")
OnMessage = Callable[[Plain], Awaitable[object]]
LeaseSpare = Callable[[], Awaitable[Lease]]
"""Leases another worker for the same call. Raises `WorkerError`."""


@dataclass(slots=True)
class _Worker:
    """The worker of one call, shared by the call's conversation and those of agents that run as tools."""

    lease: Lease
    timeout: float
    agent_timeout: float
    lease_spare: LeaseSpare | None = None
    parallel_in_spares: bool = False
    tool_timeout: float | None = None
    spares: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SPARE_WORKERS))
    request_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(worker_protocol.CALL_CONVERSATION))
    """The numbers of the conversations."""
    released: list[int] = field(default_factory=list)
    replaced: int = 0
    """How often the process was replaced. A client that has noted fewer replacements sends everything again."""


class WorkerClient:
    """Implements `run_context.ProjectCode` by requests to a worker."""

    def __init__(
        self,
        lease: Lease,
        conversation: Conversation,
        timeout: float,
        agent_timeout: float,
        lease_spare: LeaseSpare | None = None,
        *,
        parallel_in_spares: bool = False,
        tool_timeout: float | None = None,
    ) -> None:
        """Make the client of a call's worker.

        Args:
            lease: the call's worker; `close()` of this client gives it back.
            conversation: the call's events and state, which the client keeps in step with the worker's.
            timeout: seconds for a request.
            agent_timeout: seconds for a run of an agent that is project code.
            lease_spare: leases workers for tools that the model does not wait for; without it, these run in the
                call's worker, one after the other.
            parallel_in_spares: whether tools of one model answer run in spare workers, each from the same state.
            tool_timeout: seconds for tools that declare no timeout; None: `timeout`.
        """
        worker = _Worker(lease, timeout, agent_timeout, lease_spare, parallel_in_spares, tool_timeout)
        self._attach(worker, conversation)

    def nested(self, conversation: Conversation) -> WorkerClient:
        return self._copy(WorkerClient, conversation)

    def _copy(self, kind: type[C], conversation: Conversation) -> C:
        # Without the constructor, which would make a new `_Worker`; the copy shares this one's.
        inner = object.__new__(kind)
        inner._attach(self._worker, conversation)
        return inner

    def _attach(self, worker: _Worker, conversation: Conversation) -> None:
        self._worker = worker
        self._conversation = conversation
        self._number = next(worker.numbers)
        self._replaced = worker.replaced
        self._request_lock = worker.request_lock

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, payload: PlainObject) -> CodeAnswer:
        request: worker_protocol.CallbacksRequest = {"op": "callbacks", "point": point.value, "payload": dict(payload)}
        return (await self._ask(invocation, request, 1))[0]

    async def tools(self, invocation: Invocation, calls: Sequence[CodeCall], *, parallel: bool) -> list[CodeAnswer]:
        """Run tool calls concurrently in spare workers where that is allowed, else in the call's worker.

        In the call's worker, calls are grouped by timeout, because a timeout kills the whole worker: the shorter
        timeout of one call must not kill another call.
        """
        lease_spare = self._worker.lease_spare
        if lease_spare is not None and parallel and len(calls) > 1 and self._worker.parallel_in_spares:
            single = [self._tools_request([call], self._timeout_of(call), parallel=False) for call in calls]
            return await self._run_side_by_side(lease_spare, invocation, single)
        answers: dict[int, CodeAnswer] = {}
        # `dict.fromkeys` gives each timeout once, in the order of the calls.
        for seconds in dict.fromkeys(map(self._timeout_of, calls)):
            indices = [index for index, call in enumerate(calls) if self._timeout_of(call) == seconds]
            group = [calls[index] for index in indices]
            request = self._tools_request(group, seconds, parallel=parallel)
            # The model does not wait for asynchronous tools, and the call's worker must stay free for the next turns.
            if lease_spare is not None and all(call.tool.asynchronous for call in group):
                answered = await self._run_in_spare(lease_spare, invocation, request)
            else:
                answered = await self._ask(invocation, request, len(group))
            answers.update(zip(indices, answered, strict=True))
        return [answers[index] for index in range(len(calls))]

    def _timeout_of(self, call: CodeCall) -> float:
        return call.tool.timeout or self._worker.tool_timeout or self._worker.timeout

    def _tools_request(
        self, calls: Sequence[CodeCall], seconds: float, *, parallel: bool
    ) -> worker_protocol.ToolsRequest:
        # Project code gets secure digits in clear; everything that comes back has them concealed again.
        reveal = self._conversation.vault.reveal
        messages: list[worker_protocol.ToolCallMessage] = [
            {"tool": call.tool.name, "id": call.id, "args": reveal(dict(call.arguments))} for call in calls
        ]
        return {"op": "tools", "calls": messages, "parallel": parallel, "seconds": seconds}

    async def replace_withheld(self, invocation: Invocation) -> Content | None:
        return None

    async def instruction(self, invocation: Invocation) -> CodeAnswer:
        return (await self._ask(invocation, {"op": "instruction"}, 1))[0]

    async def agent(self, invocation: Invocation, on_event: OnEvent, run_child: RunChild) -> CodeAnswer:
        nested_run = NestedAgentRun(self, run_child)

        async def on_message(message: Plain) -> object:
            match message["type"]:
                case "event":
                    self.apply_changes(message["event"].get("actions") or {})
                    await on_event(message["event"])
                case "run_agent":
                    self.apply_changes(message.get("actions") or {})
                    return await nested_run.start(int(message["agent"]))
                case "answers":
                    return await nested_run.resume(message["answers"])
            return None

        try:
            return (await self._ask(invocation, {"op": "agent"}, 1, on_message))[0]
        finally:
            # Also after a timeout, which leaves the agent that the code agent ran waiting for a dead worker.
            await nested_run.close()

    async def close(self) -> None:
        """Give the worker back, or after an agent that ran as a tool, only have it drop that agent's conversation."""
        if self._number == worker_protocol.CALL_CONVERSATION:
            await self._worker.lease.close()
        else:
            self._worker.released.append(self._number)

    def take_update(self) -> worker_protocol.ConversationUpdate:
        """Return the changes that the worker does not know yet, and regard them as known."""
        conversation = self._conversation
        update: worker_protocol.ConversationUpdate = {
            "state": conversation.state.unsent_changes(),
            "events_from": conversation.sent_events,
            "events": [event.as_plain() for event in conversation.events[conversation.sent_events :]],
        }
        conversation.state.mark_sent()
        conversation.sent_events = len(conversation.events)
        return update

    def apply_changes(self, actions: PlainObject) -> None:
        """Apply to the conversation's state the changes that code in the worker made to its copy."""
        self._conversation.state.apply_worker_changes(actions.get("state_delta") or {}, actions.get("removed") or ())

    async def _ask(
        self,
        invocation: Invocation,
        operation: worker_protocol.Operation,
        answer_count: int,
        on_question: OnMessage | None = None,
    ) -> list[CodeAnswer]:
        """Send a request to the call's worker; return its answers, or `answer_count` failures if the worker fails."""
        logs: list[PlainObject] = []
        conceal = self._conversation.vault.conceal

        async def on_message(message: Plain) -> object:
            message = conceal(message)
            if message.get("ask") and message.get("type") == STORAGE_REQUEST:
                return self._conversation.storage.answer(message, self._conversation.events, conceal)
            if message.get("ask") and on_question is not None:
                return await on_question(message)
            _keep_log(logs, message)
            return None

        # A lease runs one request at a time. The request is completed under the lock, because the answer to the one
        # before it may change the state.
        async with self._request_lock:
            try:
                answered = await self._send(self._complete(invocation, operation), on_message)
            except WorkerError as error:
                # The lease starts a new process from the last checkpoint, which has to be told everything again.
                self._worker.replaced += 1
                return self._failures(invocation, operation, error, logs, answer_count)
            return [self._apply_answer(conceal(answer), logs) for answer in answered]

    async def _run_in_spare(
        self, lease_spare: LeaseSpare, invocation: Invocation, operation: worker_protocol.ToolsRequest
    ) -> list[CodeAnswer]:
        """Run tool calls in a spare worker, which starts from the present state, and return their answers.

        The call's worker stays free. Applying the answers to the conversation is left to the caller of this method.
        """
        logs: list[PlainObject] = []
        conceal = self._conversation.vault.conceal

        async def on_message(message: Plain) -> None:
            _keep_log(logs, conceal(message))

        conversation = self._conversation
        request = {
            **operation,
            "agent": invocation.node.code,
            "invocation": _as_message(invocation),
            "state": {"set": dict(conversation.state.values), "removed": []},
            "events_from": 0,
            "events": [event.as_plain() for event in conversation.events],
            "conversation": worker_protocol.CALL_CONVERSATION,
            "released": [],
        }
        try:
            async with self._worker.spares:
                lease = await lease_spare()
                try:
                    data = await lease.run(request, timeout=operation["seconds"], on_message=on_message)
                finally:
                    await lease.close()
        except WorkerError as error:
            return self._failures(invocation, operation, error, logs, len(operation["calls"]))
        return [_code_answer(conceal(answer), logs) for answer in data["answers"]]

    async def _run_side_by_side(
        self, lease_spare: LeaseSpare, invocation: Invocation, requests: Sequence[worker_protocol.ToolsRequest]
    ) -> list[CodeAnswer]:
        """Run the first request in the call's worker and each other one in a spare, all from the same state.

        When all have ended, their state changes are merged and applied in the order in which the calls ended.
        """
        state = self._conversation.state
        before = copy.deepcopy(state.values)
        ended: list[CodeAnswer] = []

        async def run(request: worker_protocol.ToolsRequest) -> CodeAnswer:
            if request is requests[0]:
                (answer,) = await self._ask(invocation, request, 1)
            else:
                (answer,) = await self._run_in_spare(lease_spare, invocation, request)
            ended.append(answer)
            return answer

        answers = await asyncio.gather(*map(run, requests))
        # The first request's changes are in the state already (`_ask`). They are merged and applied again, because
        # another request may have changed the same object.
        changes = [(each.actions.get("state_delta") or {}, each.actions.get("removed") or ()) for each in ended]
        for answer, (changed, removed) in zip(ended, merge_changes(before, changes), strict=True):
            answer.actions = {**answer.actions, "state_delta": changed, "removed": removed}
            state.apply(changed, removed)
        return answers

    async def _send(self, request: worker_protocol.WorkerRequest, on_message: OnMessage) -> list[PlainObject]:
        """Send a request and return its answers. Raises `WorkerError`."""
        worker = self._worker
        timeout = worker.agent_timeout if request["op"] == "agent" else request.get("seconds") or worker.timeout
        data = await worker.lease.run(dict(request), timeout=timeout, on_message=on_message)
        # The answer shows that the worker has dropped the conversations that were listed.
        worker.released = [each for each in worker.released if each not in request["released"]]
        return objects_at(data, "answers")

    def _complete(self, invocation: Invocation, operation: worker_protocol.Operation) -> worker_protocol.WorkerRequest:
        """Add to an operation the place where it runs and the changes that the worker does not know yet."""
        conversation = self._conversation
        # A replacement worker starts from the checkpoint, which has neither events nor the core's own changes.
        if self._replaced != self._worker.replaced:
            self._replaced = self._worker.replaced
            conversation.state.mark_unknown()
            conversation.sent_events = 0
        request = {
            **operation,
            "agent": invocation.node.code,
            "invocation": _as_message(invocation),
            "conversation": self._number,
            "released": list(self._worker.released),
            **self.take_update(),
        }
        return cast("worker_protocol.WorkerRequest", request)

    def _apply_answer(self, answer: PlainObject, logs: Sequence[PlainObject]) -> CodeAnswer:
        self.apply_changes(object_at(answer, "actions"))
        return _code_answer(answer, logs)

    def _failures(
        self,
        invocation: Invocation,
        operation: worker_protocol.Operation,
        error: WorkerError,
        logs: Sequence[PlainObject],
        answer_count: int,
    ) -> list[CodeAnswer]:
        """Return `answer_count` failures as the answers to a request that the worker did not answer."""
        text = self._conversation.vault.conceal(str(error))
        log.warning("project_code_failed", op=operation["op"], agent=invocation.node.name, error=text)
        return [CodeAnswer(error=(type(error).__name__, text), logs=logs) for _ in range(answer_count)]


class _NestedClient(WorkerClient):
    """The project code of agents that a code agent runs.

    The worker is busy with the code agent, which handles these agents' requests while it waits for their results.
    """

    _nested_run: NestedAgentRun

    def run_within(self, nested_run: NestedAgentRun) -> None:
        self._nested_run = nested_run
        self._request_lock = asyncio.Lock()

    def nested(self, conversation: Conversation) -> WorkerClient:
        inner = self._copy(_NestedClient, conversation)
        inner._nested_run, inner._request_lock = self._nested_run, self._request_lock
        return inner

    async def _send(self, request: worker_protocol.WorkerRequest, on_message: OnMessage) -> list[PlainObject]:
        return await self._nested_run.ask(request)


class NestedAgentRun:
    """A run of an agent below a code agent, while the code agent waits in the worker.

    `start()` and `resume()` return the replies to the code agent's questions: the next request for project code by the
    agent that runs, or this agent's result once it has ended.
    """

    def __init__(self, code: WorkerClient, run_child: RunChild) -> None:
        self._code = code
        self._run_child = run_child
        self._child: asyncio.Task[bool] | None = None
        self._requests: asyncio.Queue[tuple[worker_protocol.WorkerRequest, asyncio.Future[list[PlainObject]]]] = (
            asyncio.Queue(1)
        )
        self._unanswered: asyncio.Future[list[PlainObject]] | None = None
        self._closed = False

    async def start(self, agent: int) -> worker_protocol.ChildRequest | worker_protocol.ChildResult:
        """Start the agent with this number."""
        client = self._code._copy(_NestedClient, self._code._conversation)
        # It is the same conversation, which the worker knows by the number of the code agent's client.
        client._number = self._code._number
        client.run_within(self)
        self._child = asyncio.create_task(self._run(client, agent))
        return await self._next_reply()

    async def resume(self, answers: list[PlainObject]) -> worker_protocol.ChildRequest | worker_protocol.ChildResult:
        """Pass on the answers to the last request."""
        if self._unanswered is not None and not self._unanswered.done():
            self._unanswered.set_result(answers)
        return await self._next_reply()

    async def ask(self, request: worker_protocol.WorkerRequest) -> list[PlainObject]:
        """Return the worker's answers to a request of the agent that runs. Raises `WorkerDied`."""
        if self._closed:
            raise WorkerDied("the agent that ran this one has ended")
        answered: asyncio.Future[list[PlainObject]] = asyncio.get_running_loop().create_future()
        await self._requests.put((request, answered))
        return await answered

    async def close(self) -> None:
        """End the agent that still runs, because the code agent or its worker, which would answer it, has ended."""
        self._closed = True
        waiting = [self._unanswered] if self._unanswered is not None else []
        while not self._requests.empty():
            waiting.append(self._requests.get_nowait()[1])
        for answered in waiting:
            if not answered.done():
                answered.set_exception(WorkerDied("the agent that ran this one has ended"))
        if self._child is not None and not self._child.done():
            self._child.cancel()
            await asyncio.wait({self._child})

    async def _run(self, code: WorkerClient, agent: int) -> bool:
        return await self._run_child(code, agent)

    async def _next_reply(self) -> worker_protocol.ChildRequest | worker_protocol.ChildResult:
        assert self._child is not None
        # Wait until the child asks for project code or has ended.
        requested = asyncio.create_task(self._requests.get())
        await asyncio.wait({self._child, requested}, return_when=asyncio.FIRST_COMPLETED)
        if requested.done():
            request, self._unanswered = requested.result()
            return {"request": request}
        requested.cancel()
        error = self._child.exception()
        # The code agent may catch a failure of its child, but must not see an error of our own code as one.
        if error is not None and not isinstance(error, RunFailed):
            raise error
        escalated = error is None and self._child.result()
        failed = None if error is None else [error.kind, error.text]
        return {"error": failed, "escalated": escalated, **self._code.take_update()}


def _as_message(invocation: Invocation) -> worker_protocol.InvocationMessage:
    return {
        "branch": invocation.branch,
        "invocation_id": invocation.invocation_id,
        "user_content": invocation.user_content,
    }


def _keep_log(logs: list[PlainObject], message: Plain) -> None:
    if len(logs) < MAX_LOGS:
        logs.append({key: value for key, value in message.items() if key != "ask"})


def _code_answer(answer: PlainObject, logs: Sequence[PlainObject]) -> CodeAnswer:
    error = answer.get("error")
    if error:
        log.warning("project_code_raised", kind=error[0], error=error[1], traceback=answer.get("traceback"))
    return CodeAnswer(
        returned=answer.get("returned"),
        payload=answer.get("payload") or {},
        actions=answer.get("actions") or {},
        error=(str(error[0]), str(error[1])) if error else None,
        duration_ms=float(answer.get("duration_ms") or 0.0),
        logs=logs,
    )
