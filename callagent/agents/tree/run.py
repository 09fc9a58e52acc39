"""One turn of a tree: which agent runs when, and what its callbacks change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from callagent.agents.tree.events import Actions, Event, RunFailed
from callagent.agents.tree.model_turn import run_llm
from callagent.agents.tree.nodes import CallbackPoint, CodeNode, LlmNode, LoopNode, Node, ParallelNode
from callagent.agents.tree.project_code import CodeAnswer, ProjectCode
from callagent.agents.tree.run_context import Outcome, Run, actions_of, has_changes, held, raise_error
from callagent.agents.tree.transfer import line_after


async def run_agent(run: Run, node: Node) -> bool:
    """Run an agent with its callbacks, and those it gives the conversation to; whether one escalated.

    Raises `RunFailed`.
    """
    # In a row, not one inside the other: agents may pass the conversation on more often than calls may be nested.
    finished: list[Node] = []
    outcome = Outcome()
    line, begun = [node], len(run.conversation.events)
    try:
        while not await _agent_callbacks(run, node, CallbackPoint.BEFORE_AGENT):
            outcome = await _run_kind(run, node)
            finished = [*finished, node] if run.nested else [node]
            if outcome.transfer is None:
                break
            node = outcome.transfer
            line, begun = line_after(line, node), len(run.conversation.events)
        if (outcome.transfer is not None or outcome.waits) and not run.nested:
            finished = []
        for node in reversed(finished):
            await _agent_callbacks(run, node, CallbackPoint.AFTER_AGENT)
    except RunFailed as failure:
        failure.agent, failure.author = node, _teller(run, line, begun)
        raise
    return outcome.escalated


def _teller(run: Run, line: list[Node], begun: int) -> str:
    """Whose event a failure is: of the agent that had an event since `begun`, else of the one that the failed one is
    below, as far as it gave the conversation away in this turn."""
    events = run.conversation.events[begun:]
    return events[-1].author if events else line[-2:][0].name


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
    escalated = False
    for child in node.children:
        escalated = await run_agent(run.inside(), child) or escalated
    return Outcome(escalated)


async def _run_loop(run: Run, node: LoopNode) -> bool:
    limit = run.settings.max_iterations if node.max_iterations is None else node.max_iterations
    for _ in range(limit if node.children else 0):
        for child in node.children:
            if await run_agent(run.inside(), child):
                return True
    if node.max_iterations is None and node.children:
        raise RunFailed("RuntimeError", f"the loop '{node.name}' did not end within {limit} rounds")
    return False


async def _run_parallel(run: Run, node: ParallelNode) -> bool:
    """The first error or escalation of a child ends the others."""
    tasks = [asyncio.create_task(run_agent(run.branched(node, child), child)) for child in node.children]
    waiting = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            escalated = [task.result() for task in done]
            if any(escalated):
                return True
        return False
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _run_code(run: Run, node: CodeNode) -> bool:
    escalated = False

    async def on_event(plain: Mapping[str, Any]) -> None:
        nonlocal escalated
        actions = Actions()
        actions.take(plain.get("actions") or {})
        escalated = escalated or actions.escalate
        await run.append(Event(str(plain.get("author") or node.name), plain.get("content"), actions))

    async def run_child(code: ProjectCode, number: int) -> bool:
        child = next((each for each in node.walk() if each.code == number and each is not node), None)
        if child is None:
            raise RunFailed("ValueError", f"agent '{node.name}' may only run agents below it")
        return await run_agent(replace(run.inside(), code=code), child)

    async def whole() -> CodeAnswer:
        answer = await run.code.agent(run.invocation(node), on_event, run_child)
        if has_changes(answer):
            await run.append(Event(node.name, None, actions_of(answer)))
        return answer

    raise_error(await held(run, whole()))
    return escalated


async def _agent_callbacks(run: Run, node: Node, point: CallbackPoint) -> bool:
    """Whether one of them had content; it is in the history then."""
    return bool(node.callbacks.get(point)) and await held(run, _call_agent_callbacks(run, node, point))


async def _call_agent_callbacks(run: Run, node: Node, point: CallbackPoint) -> bool:
    answer = await run.code.callbacks(run.invocation(node), point, {})
    if answer.returned or has_changes(answer):
        await run.append(Event(node.name, answer.returned or None, actions_of(answer)))
    raise_error(answer)
    return bool(answer.returned)
