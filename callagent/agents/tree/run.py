"""One turn of a tree: which agent runs when, and what its callbacks change."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from callagent.agents.tree.events import Actions, Event, PlainObject, RunFailed
from callagent.agents.tree.model_turn import run_llm
from callagent.agents.tree.nodes import CallbackPoint, CodeNode, LlmNode, LoopNode, Node, ParallelNode
from callagent.agents.tree.run_context import (
    CodeAnswer,
    Outcome,
    ProjectCode,
    Run,
    finish_despite_interruption,
    has_changes,
    merged_actions,
    raise_error,
)
from callagent.agents.tree.transfer import extend_transfer_path


async def run_agent(run: Run, node: Node) -> bool:
    """Run an agent with its callbacks, and then the agents that it transfers to; return whether one escalated.

    Raises `RunFailed`.
    """
    # A loop, not recursion: agents may transfer back and forth more often than Python's stack allows.
    finished: list[Node] = []
    outcome = Outcome()
    # `path` and `events_before` only serve to name the author of a failure event (`_failure_author`).
    path, events_before = [node], len(run.conversation.events)
    try:
        while not await _agent_callbacks(run, node, CallbackPoint.BEFORE_AGENT):
            outcome = await _run_kind(run, node)
            finished = [*finished, node] if run.nested else [node]
            if outcome.transfer is None:
                break
            node = outcome.transfer
            path, events_before = extend_transfer_path(path, node), len(run.conversation.events)
        # After-agent callbacks run for the last agent, and in a nested run also for the agents that transferred and
        # waited for it, from the last to the first. `outcome.transfer` is still set here when a before-agent callback
        # ended the agent that was transferred to; at the top of the tree, no callbacks run then.
        if (outcome.transfer is not None or outcome.awaits_tool) and not run.nested:
            finished = []
        for node in reversed(finished):
            await _agent_callbacks(run, node, CallbackPoint.AFTER_AGENT)
    except RunFailed as failure:
        failure.agent, failure.author = node.name, _failure_author(run, path, events_before)
        raise
    return outcome.escalated


def _failure_author(run: Run, path: list[Node], events_before: int) -> str:
    """Return the author of the failure event: the last agent that emitted an event in this run, or else the agent
    that transferred to the failing one."""
    events = run.conversation.events[events_before:]
    return events[-1].author if events else path[-2:][0].name


async def _run_kind(run: Run, node: Node) -> Outcome:
    match node:
        case LlmNode():
            return await run_llm(run, node)
        case LoopNode():
            return Outcome(await _run_loop(run, node))
        case ParallelNode():
            return Outcome(await _run_parallel(run, node))
        case CodeNode():
            return Outcome(await _run_code(run, node))
    # A sequential agent. An escalation does not end it, but is passed on to a loop around it.
    escalated = False
    for child in node.children:
        escalated = await run_agent(run.for_children(), child) or escalated
    return Outcome(escalated)


async def _run_loop(run: Run, node: LoopNode) -> bool:
    limit = run.settings.max_iterations if node.max_iterations is None else node.max_iterations
    for _ in range(limit if node.children else 0):
        for child in node.children:
            if await run_agent(run.for_children(), child):
                return True
    # A limit that the project set is a normal end; at the engine's own limit, the loop would never have ended.
    if node.max_iterations is None and node.children:
        remedy = "let one of its agents escalate, or set max_iterations"
        raise RunFailed("RuntimeError", f"the loop '{node.name}' did not end within {limit} rounds; {remedy}")
    return False


async def _run_parallel(run: Run, node: ParallelNode) -> bool:
    """Run all children at the same time; the first one that fails or escalates ends the others."""
    tasks = [asyncio.create_task(run_agent(run.for_branch(node, child), child)) for child in node.children]
    waiting = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            escalated = [task.result() for task in done]
            if any(escalated):
                return True
        return False
    finally:
        # Also when the turn is interrupted, because no branch may go on speaking. Project code that a branch has begun
        # still runs to its end (`finish_despite_interruption`).
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _run_code(run: Run, node: CodeNode) -> bool:
    """Run an agent that is project code; return whether one of its events escalated."""
    escalated = False

    async def on_event(plain: PlainObject) -> None:
        nonlocal escalated
        actions = Actions()
        actions.merge(plain.get("actions") or {})
        escalated = escalated or actions.escalate
        run.append(Event(str(plain.get("author") or node.name), plain.get("content"), actions))

    async def run_child(code: ProjectCode, number: int) -> bool:
        # The number comes from project code, which may only name an agent below this one.
        child = next((each for each in node.walk() if each.code == number and each is not node), None)
        if child is None:
            raise RunFailed("ValueError", f"agent '{node.name}' may only run agents below it")
        return await run_agent(replace(run.for_children(), code=code), child)

    async def run_and_record() -> CodeAnswer:
        # One coroutine, so that an interruption cannot come between the answer and the event that records it.
        answer = await run.code.agent(run.invocation(node), on_event, run_child)
        if has_changes(answer):
            run.append(Event(node.name, None, merged_actions(answer)))
        return answer

    raise_error(await finish_despite_interruption(run, run_and_record()))
    return escalated


async def _agent_callbacks(run: Run, node: Node, point: CallbackPoint) -> bool:
    """Run an agent's callbacks of a point; return whether one returned content, which is added to the history."""
    return bool(node.callbacks.get(point)) and await finish_despite_interruption(
        run, _call_agent_callbacks(run, node, point)
    )


async def _call_agent_callbacks(run: Run, node: Node, point: CallbackPoint) -> bool:
    answer = await run.code.callbacks(run.invocation(node), point, {})
    if answer.returned or has_changes(answer):
        run.append(Event(node.name, answer.returned or None, merged_actions(answer)))
    raise_error(answer)
    return bool(answer.returned)
