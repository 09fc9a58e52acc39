"""The tools a model called in one answer: who carries them out, with which callbacks, and what they answer."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from callagent.agents.actions import Action, FunctionEnded, FunctionStarted, Listen, Say
from callagent.agents.tree.conversation import Conversation
from callagent.agents.tree.events import (
    USER,
    Actions,
    Event,
    Part,
    RunFailed,
    calls,
    response_part,
    responses,
    text_content,
    texts,
)
from callagent.agents.tree.nodes import CallbackPoint, LlmNode, Node, Tool, ToolKind
from callagent.agents.tree.phone_tools import phone_ending
from callagent.agents.tree.project_code import CodeAnswer, CodeCall
from callagent.agents.tree.run_context import Run, raise_error
from callagent.agents.tree.state import TEMP, SharedState, State
from callagent.agents.tree.structured_output import SavedOutput, conform, parse_output

RUNNING = {"status": "running"}
"""What the model is told of a call that it does not wait for."""


def parse_arguments(text: str) -> dict[str, Any]:
    """A model's arguments; what is not a JSON object becomes one that the tool will refuse."""
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError:
        return {"invalid_arguments": text}
    return value if isinstance(value, dict) else {"invalid_arguments": value}


async def call_tools(
    run: Run, node: LlmNode, tools: Mapping[str, Tool], called: Sequence[Part], output: SavedOutput
) -> Event | None:
    """Carry out the calls; the event with their responses is in the history then. None: all answer later.

    Raises `RunFailed` when project code fails.
    """
    numbers = {call["id"]: await _started(run, call) for call in called}
    later = [call for call in called if _is_asynchronous(tools, call)]
    answers = {call["id"]: CodeAnswer(dict(RUNNING)) for call in later}
    told = asyncio.Event()
    for call in later:
        run.leave(asyncio.create_task(_answer_later(run, node, tools, call, numbers[call["id"]], told)))

    async def in_code(group: Sequence[CodeCall]) -> None:
        given = await run.code.tools(run.invocation(node), group, parallel=len(group) > 1)
        answers.update(zip([each.id for each in group], given, strict=True))

    async def here(call: Part) -> None:
        try:
            answers[call["id"]] = await _call_here(run, node, tools, call)
        except RunFailed as failure:
            answers[call["id"]] = CodeAnswer(error=(failure.kind, failure.text))

    async def in_order(calls: Sequence[Part]) -> None:
        # Calls of project code that follow each other run together; what is quickly done keeps its place among them.
        for is_code, some in itertools.groupby(calls, key=lambda call: _code_call(tools, call) is not None):
            if is_code:
                await in_code([code for call in some if (code := _code_call(tools, call))])
            else:
                for call in some:
                    await here(call)

    for group in _groups(run, [call for call in called if call["id"] not in answers]):
        agents = [call for call in group if _is_agent(tools, call)]
        await _all([*(here(call) for call in agents), in_order([call for call in group if call not in agents])])
    for call in called:
        if call not in later:
            await _ended(run, numbers[call["id"]], call, answers[call["id"]])
    event, failed = await _response(run, node, tools, called, answers)
    if event.content is not None or any(not key.startswith(TEMP) for key in _changed(event)):
        output.save(event)
        await run.append(event)
    told.set()
    if failed is not None:
        raise_error(failed)
    return event if event.content is not None else None


def _changed(event: Event) -> list[str]:
    return [*event.actions.state_delta, *event.actions.removed]


def _is_agent(tools: Mapping[str, Tool], call: Part) -> bool:
    return call["name"] in tools and tools[call["name"]].kind is ToolKind.AGENT


def _is_asynchronous(tools: Mapping[str, Tool], call: Part) -> bool:
    return call["name"] in tools and tools[call["name"]].asynchronous


async def _answer_later(
    run: Run, node: LlmNode, tools: Mapping[str, Tool], call: Part, number: int, told: asyncio.Event
) -> None:
    """A call that the model does not wait for: its response is in the history when it comes.

    `told`: the model's other calls are answered; the true result comes after the preliminary one.
    """
    code_call = _code_call(tools, call)
    assert code_call is not None
    (answer,) = await run.code.tools(run.invocation(node), [code_call], parallel=False)
    await told.wait()
    await _ended(run, number, call, answer)
    response = {"error": ": ".join(answer.error)} if answer.error else as_result(answer.returned)
    actions = Actions()
    actions.take({**answer.actions, "transfer_to_agent": None, "escalate": False, "skip_summarization": False})
    # Not in the agent's name: it may have given the conversation to another one.
    await run.append(Event(USER, {"role": "user", "parts": [response_part(call, response)]}, actions))


def _groups(run: Run, called: Sequence[Part]) -> list[Sequence[Part]]:
    """Calls of one group run at the same time, the groups one after the other."""
    return [called] if run.settings.parallel_tools else [[call] for call in called]


def _code_call(tools: Mapping[str, Tool], call: Part) -> CodeCall | None:
    """The call as project code takes it; None when it is not project code that carries it out."""
    tool = tools.get(call["name"])
    if tool is None or tool.kind is not ToolKind.CODE:
        return None
    return CodeCall(tool, call["id"], copy.deepcopy(call.get("args") or {}))


async def _all(jobs: Sequence[Any]) -> None:
    """All to their end, then the first failure."""
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _response(
    run: Run, node: LlmNode, tools: Mapping[str, Tool], called: Sequence[Part], answers: Mapping[str, CodeAnswer]
) -> tuple[Event, CodeAnswer | None]:
    """What the calls that were carried out answer, and the first that failed."""
    actions = Actions()
    parts = []
    failed = next((answer for call in called if (answer := answers[call["id"]]).error), None)
    for call in called:
        answer = answers[call["id"]]
        if failed is not None and (answer.error or _leads_on(answer)):
            # What a tool wanted to happen next does not happen; what it did to the state did.
            actions.take({key: answer.actions.get(key) for key in ("state_delta", "removed")})
            continue
        tool = tools.get(call["name"])
        if tool is not None and tool.long_running and not answer.returned:
            # It has not answered yet, so nothing follows from it.
            actions.take({key: answer.actions.get(key) for key in ("state_delta", "removed")})
            continue
        actions.take(answer.actions)
        parts.append(response_part(call, as_result(answer.returned)))
        if tool is not None and (shown := _shown(tool, answer)):
            parts.append({"text": shown})
            await run.say(shown)
    return Event(node.name, {"role": "user", "parts": parts} if parts else None, actions), failed


def _leads_on(answer: CodeAnswer) -> bool:
    return bool(answer.actions.get("escalate") or answer.actions.get("transfer_to_agent") is not None)


def _shown(tool: Tool, answer: CodeAnswer) -> str:
    """The result of an agent that nobody puts into words: the caller hears it as it is."""
    if not tool.skip_summarization or answer.error or answer.returned in (None, "", {"result": None}):
        return ""
    if isinstance(answer.returned, dict) and "error" in answer.returned:
        return ""
    is_text = isinstance(answer.returned, str)
    return str(answer.returned) if is_text else json.dumps(answer.returned, ensure_ascii=False, default=str)


def as_result(returned: Any) -> dict[str, Any]:
    return returned if isinstance(returned, dict) else {"result": returned}


async def _started(run: Run, call: Part) -> int:
    number = run.conversation.new_function()
    await run.emit(FunctionStarted(number, call["name"], dict(call.get("args") or {})))
    return number


async def _ended(run: Run, number: int, call: Part, answer: CodeAnswer) -> None:
    delta = answer.actions.get("state_delta") or {}
    changes = {"added": {}, "updated": delta, "removed": answer.actions.get("removed") or []} if delta else {}
    await run.emit(
        FunctionEnded(
            number=number,
            name=call["name"],
            arguments=dict(call.get("args") or {}),
            result=answer.returned,
            error=": ".join(answer.error) if answer.error else None,
            duration_ms=answer.duration_ms,
            logs=tuple(answer.logs),
            state_changes=changes,
        )
    )


async def _call_here(run: Run, node: LlmNode, tools: Mapping[str, Tool], call: Part) -> CodeAnswer:
    """A tool that is not project code, with the callbacks around it."""
    started = asyncio.get_running_loop().time()
    tool = tools.get(call["name"])
    described = tool or Tool(call["name"], ToolKind.UNAVAILABLE, "Tool not found")
    subject = {"tool": described.declaration, "args": copy.deepcopy(call.get("args") or {}), "call_id": call["id"]}
    before = await _callbacks(run, node, CallbackPoint.BEFORE_TOOL, subject)
    arguments = before.subject.get("args", subject["args"])
    answer = before
    if before.returned is None and before.error is None:
        answer = await _carry_out(run, node, tools, tool, {**call, "args": arguments})
        answer = _joined(before, answer)
    if answer.error is None and tool is not None and tool.kind is not ToolKind.CLIENT:
        subject = {**subject, "args": arguments, "tool_response": answer.returned}
        after = await _callbacks(run, node, CallbackPoint.AFTER_TOOL, subject)
        returned = answer.returned if after.returned is None else after.returned
        answer = replace(_joined(answer, after), returned=returned)
    answer.duration_ms = (asyncio.get_running_loop().time() - started) * 1000
    return answer


async def _callbacks(run: Run, node: LlmNode, point: CallbackPoint, subject: Mapping[str, Any]) -> CodeAnswer:
    if not node.callbacks.get(point):
        return CodeAnswer()
    return await run.code.callbacks(run.invocation(node), point, subject)


def _joined(first: CodeAnswer, second: CodeAnswer) -> CodeAnswer:
    """The second answer with what the first did before it."""
    actions = Actions()
    actions.take(first.actions)
    actions.take(second.actions)
    return replace(second, actions={**actions.as_plain(), "removed": actions.removed}, logs=(*first.logs, *second.logs))


async def _carry_out(run: Run, node: LlmNode, tools: Mapping[str, Tool], tool: Tool | None, call: Part) -> CodeAnswer:
    if tool is None:
        names = ", ".join(tools) or "none"
        error = (
            f"Invoking `{call['name']}()` failed as no tool with that name is available. The tools you can call are: "
            f"{names}. You could retry, but it is IMPORTANT that you only call a tool from that list."
        )
        return CodeAnswer({"error": error})
    missing = _missing(tool, call["args"])
    if missing and tool.kind is not ToolKind.AGENT:
        return CodeAnswer({"error": missing})
    match tool.kind:
        case ToolKind.TRANSFER:
            return CodeAnswer(None, actions={"transfer_to_agent": str(call["args"]["agent_name"])})
        case ToolKind.EXIT_LOOP:
            return CodeAnswer(None, actions={"escalate": True, "skip_summarization": True})
        case ToolKind.USER_CHOICE:
            await run.say(", ".join(str(option) for option in call["args"]["options"]))
            return CodeAnswer(None, actions={"skip_summarization": True})
        case ToolKind.CLIENT:
            # The turn is over although nothing may have been said.
            run.decide(Listen())
            return CodeAnswer(None)
        case ToolKind.AGENT:
            return await run_agent_tool(run, tool, call["args"])
        case _:
            run.decide(phone_ending(tool, call["args"]))
            return CodeAnswer({"status": "ok"}, actions={"skip_summarization": True})


def _missing(tool: Tool, arguments: Mapping[str, Any]) -> str:
    required = [key for key in (tool.parameters or {}).get("required") or () if key not in arguments]
    if not required:
        return ""
    return (
        f"Invoking `{tool.name}()` failed as the following mandatory input parameters are not present:\n"
        + "\n".join(required)
        + "\nYou could retry calling this tool, but it is IMPORTANT for you to provide all the mandatory parameters."
    )


async def run_agent_tool(run: Run, tool: Tool, arguments: Mapping[str, Any]) -> CodeAnswer:
    """Raises `RunFailed` when the agent fails."""
    node = tool.agent
    try:
        text = _request(arguments, _input_schema(node))
    except ValueError as error:
        return CodeAnswer({"error": f"The arguments of `{tool.name}()` are not as declared: {error}."})
    state = State(run.conversation.state.values)
    conversation = Conversation(node, state, SharedState(), "")
    conversation.count_on(run.conversation)
    content = text_content("user", text)
    conversation.take_caller(content, run.invocation_id)
    code = run.code.nested(conversation)
    inner = replace(
        run,
        conversation=conversation,
        code=code,
        branch="",
        speaks=False,
        nested=False,
        user_content=content,
        emit=_without_speech(run),
    )
    try:
        await run.run_agent(inner, node)
    finally:
        await code.close()
    actions: dict[str, Any] = {"state_delta": {}, "removed": []}
    result, said = "", False
    for event in conversation.events:
        actions["state_delta"].update(event.actions.state_delta)
        actions["removed"] += event.actions.removed
        if event.author != USER and event.content is not None:
            result, said = "\n".join(texts(event.content)), True
    if pending := _unanswered(conversation):
        # Its events are gone when the tool has answered: nobody could take the late result.
        result = f"Error: agent '{node.name}' stopped waiting on {', '.join(pending)}, which cannot answer here."
        return CodeAnswer(result, actions=actions)
    actions["skip_summarization"] = tool.skip_summarization
    return CodeAnswer(parse_output(result, _output_schema(node) if said else None), actions=actions)


def _request(arguments: Mapping[str, Any], schema: Mapping[str, Any] | None) -> str:
    """What the agent is told. Raises `ValueError`."""
    if schema is not None:
        return json.dumps(conform(dict(arguments), schema), ensure_ascii=False, separators=(",", ":"))
    if "request" in arguments:
        return str(arguments["request"])
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True)


def _input_schema(node: Node) -> Mapping[str, Any] | None:
    """That of the agent that begins."""
    while not isinstance(node, LlmNode) and node.children:
        node = node.children[0]
    return node.input_schema if isinstance(node, LlmNode) else None


def _output_schema(node: Node) -> Mapping[str, Any] | None:
    """That of the agent that ends."""
    while not isinstance(node, LlmNode) and node.children:
        node = node.children[-1]
    return node.output_schema if isinstance(node, LlmNode) else None


def _unanswered(conversation: Conversation) -> list[str]:
    """The tools whose results were to come later, and did not."""
    events = conversation.events
    answered = {each["id"] for event in events for each in responses(event.content)}
    asked = [each for event in events for each in calls(event.content) if each["id"] in event.long_running]
    return [each["name"] for each in asked if each["id"] not in answered]


def _without_speech(run: Run) -> Any:
    async def emit(action: Action) -> None:
        if not isinstance(action, Say):
            await run.emit(action)

    return emit
