"""Carrying out the tool calls of one model answer: by project code, by another agent, or by the engine itself."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace

from callagent.agents.actions import Action, FunctionEnded, FunctionStarted, Listen, Say
from callagent.agents.protocol import Emit
from callagent.agents.tree.conversation import TEMP, Conversation, SharedState, State
from callagent.agents.tree.events import (
    USER,
    Actions,
    Event,
    FunctionCall,
    PlainObject,
    RunFailed,
    calls,
    response_part,
    responses,
    text_content,
    texts,
)
from callagent.agents.tree.nodes import CallbackPoint, JsonSchema, LlmNode, Node, Tool, ToolKind, phone_ending
from callagent.agents.tree.run_context import CodeAnswer, CodeCall, Run, has_changes, raise_error
from callagent.agents.tree.structured_output import SavedOutput, conform, parse_output

RUNNING = {"status": "running"}
"""The preliminary result of an asynchronous tool, which the model does not wait for."""


def parse_arguments(text: str) -> PlainObject:
    """Read a model's arguments; anything but a JSON object becomes an object that the tool will refuse."""
    # Some providers stream an empty text for a call without arguments.
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError:
        return {"invalid_arguments": text}
    return value if isinstance(value, dict) else {"invalid_arguments": value}


async def call_tools(
    run: Run, node: LlmNode, tools: Mapping[str, Tool], called: Sequence[FunctionCall], saved_output: SavedOutput
) -> Event | None:
    """Carry out the calls and add the event with their responses to the history.

    Returns that event, or None when no call has a response yet. Raises `RunFailed` when project code fails.
    """
    # All starts are reported before any end, so that the record shows the calls in the order in which the model made
    # them.
    numbers = {call["id"]: _report_start(run, call) for call in called}
    asynchronous = [call for call in called if _is_asynchronous(tools, call)]
    responded = asyncio.Event()
    for call in asynchronous:
        run.run_in_background(
            asyncio.create_task(_answer_later(run, node, tools, call, numbers[call["id"]], responded))
        )
    answers = {call["id"]: CodeAnswer(dict(RUNNING)) for call in asynchronous}
    answers |= await _carry_out_all(run, node, tools, [call for call in called if call not in asynchronous])
    for call in called:
        if call not in asynchronous:
            _report_end(run, numbers[call["id"]], call, answers[call["id"]])
    event, failed = _response(run, node, tools, called, answers)
    # Changes of `temp:` keys alone make no event, because the history leaves these keys out.
    if event.content is not None or any(not key.startswith(TEMP) for key in _changed_keys(event)):
        saved_output.save(event)
        run.append(event)
    # This is set even if a failure is raised next, because asynchronous calls wait for it to add their results.
    responded.set()
    if failed is not None:
        raise_error(failed)
    return event if event.content is not None else None


async def _carry_out_all(
    run: Run, node: LlmNode, tools: Mapping[str, Tool], called: Sequence[FunctionCall]
) -> dict[str, CodeAnswer]:
    """Carry out calls that the model waits for; return their answers by the calls' identifiers.

    A failure is returned like an answer, after all calls have ended, so that the state has the changes of each.
    """
    answers: dict[str, CodeAnswer] = {}

    async def call_code(group: Sequence[CodeCall]) -> None:
        answered = await run.code.tools(run.invocation(node), group, parallel=len(group) > 1)
        answers.update(zip([each.id for each in group], answered, strict=True))

    async def call_engine(call: FunctionCall) -> None:
        try:
            answers[call["id"]] = await _call_engine(run, node, tools, call)
        except RunFailed as failure:
            answers[call["id"]] = CodeAnswer(error=(failure.kind, failure.text))

    async def call_in_order(calls: Sequence[FunctionCall]) -> None:
        # Consecutive calls of project code go to the worker in one request. A tool of the engine between two calls
        # splits them into two requests, because it sees the state that earlier calls have left.
        for is_code, consecutive in itertools.groupby(calls, key=lambda call: _code_call(tools, call) is not None):
            if is_code:
                await call_code([code for call in consecutive if (code := _code_call(tools, call))])
            else:
                for call in consecutive:
                    await call_engine(call)

    for group in _groups(run, called):
        # Agents run beside everything else, because each of them takes whole model turns.
        agents = [call for call in group if _is_agent(tools, call)]
        others = [call for call in group if call not in agents]
        await _run_all([*(call_engine(call) for call in agents), call_in_order(others)])
    return answers


def _changed_keys(event: Event) -> list[str]:
    return [*event.actions.state_delta, *event.actions.removed]


def _is_agent(tools: Mapping[str, Tool], call: FunctionCall) -> bool:
    return call["name"] in tools and tools[call["name"]].kind is ToolKind.AGENT


def _is_asynchronous(tools: Mapping[str, Tool], call: FunctionCall) -> bool:
    return call["name"] in tools and tools[call["name"]].asynchronous


async def _answer_later(
    run: Run, node: LlmNode, tools: Mapping[str, Tool], call: FunctionCall, number: int, responded: asyncio.Event
) -> None:
    """Carry out an asynchronous call and add its result to the history whenever it comes.

    `responded` is set once the preliminary result is in the history, because the true one has to follow it.
    """
    # Only project code can be asynchronous (`Tool.asynchronous`).
    code_call = _code_call(tools, call)
    assert code_call is not None
    (answer,) = await run.code.tools(run.invocation(node), [code_call], parallel=False)
    await responded.wait()
    _report_end(run, number, call, answer)
    response = {"error": ": ".join(answer.error)} if answer.error else as_result(answer.returned)
    actions = Actions()
    actions.merge({**answer.actions, "transfer_to_agent": None, "escalate": False, "skip_summarization": False})
    # The author is the user: an event of this agent would take the conversation back from another agent that may have
    # it by now.
    run.append(Event(USER, {"role": "user", "parts": [response_part(call, response)]}, actions))


def _groups(run: Run, called: Sequence[FunctionCall]) -> list[Sequence[FunctionCall]]:
    """Return groups of calls that run one after the other: one if tools may run in parallel, else one per call."""
    return [called] if run.settings.parallel_tools else [[call] for call in called]


def _code_call(tools: Mapping[str, Tool], call: FunctionCall) -> CodeCall | None:
    """Return the call as project code takes it, or None when the tool is not project code."""
    tool = tools.get(call["name"])
    if tool is None or tool.kind is not ToolKind.CODE:
        return None
    return CodeCall(tool, call["id"], copy.deepcopy(call.get("args") or {}))


async def _run_all(jobs: Sequence[Coroutine[object, None, None]]) -> None:
    """Run all jobs to their end, then raise the first failure."""
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _response(
    run: Run,
    node: LlmNode,
    tools: Mapping[str, Tool],
    called: Sequence[FunctionCall],
    answers: Mapping[str, CodeAnswer],
) -> tuple[Event, CodeAnswer | None]:
    """Return the event with the responses to the calls, and the first answer that is a failure."""
    actions = Actions()
    parts = []
    failed = next((answer for call in called if (answer := answers[call["id"]]).error), None)
    for call in called:
        answer = answers[call["id"]]
        if failed is not None and (answer.error or _redirects(answer)):
            # The turn fails: the tool's changes of the state are kept, and the transfer that it asked for is dropped.
            actions.merge({key: answer.actions.get(key) for key in ("state_delta", "removed")})
            continue
        tool = tools.get(call["name"])
        if tool is not None and tool.long_running and not answer.returned:
            # It has no result yet, so there is no response, and of its actions only the state changes apply.
            actions.merge({key: answer.actions.get(key) for key in ("state_delta", "removed")})
            continue
        actions.merge(answer.actions)
        parts.append(response_part(call, as_result(answer.returned)))
        if tool is not None and (text := _spoken_result(tool, answer)):
            parts.append({"text": text})
            run.say(text)
    return Event(node.name, {"role": "user", "parts": parts} if parts else None, actions), failed


def _redirects(answer: CodeAnswer) -> bool:
    """Return whether a tool asked for a transfer to another agent or for the end of a loop."""
    return bool(answer.actions.get("escalate") or answer.actions.get("transfer_to_agent") is not None)


def _spoken_result(tool: Tool, answer: CodeAnswer) -> str:
    """Return the result of an agent tool that skips summarization, for the caller to hear; empty for other tools."""
    if not tool.skip_summarization or answer.error or answer.returned in (None, "", {"result": None}):
        return ""
    if isinstance(answer.returned, dict) and "error" in answer.returned:
        return ""
    is_text = isinstance(answer.returned, str)
    return str(answer.returned) if is_text else json.dumps(answer.returned, ensure_ascii=False, default=str)


def as_result(returned: object) -> PlainObject:
    """Return a tool's result as the object that a function response needs."""
    return returned if isinstance(returned, dict) else {"result": returned}


def _report_start(run: Run, call: FunctionCall) -> int:
    number = run.conversation.new_function_number()
    run.emit(FunctionStarted(number, call["name"], dict(call.get("args") or {})))
    return number


def _report_end(run: Run, number: int, call: FunctionCall, answer: CodeAnswer) -> None:
    # Records distinguish added from updated keys. A tree's state knows only which were written: all count as updated.
    updated, removed = answer.actions.get("state_delta") or {}, answer.actions.get("removed") or []
    changes = {"added": {}, "updated": updated, "removed": removed} if has_changes(answer) else {}
    run.emit(
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


async def _call_engine(run: Run, node: LlmNode, tools: Mapping[str, Tool], call: FunctionCall) -> CodeAnswer:
    """Carry out a tool that is not project code, with the agent's tool callbacks around it."""
    started = asyncio.get_running_loop().time()
    tool = tools.get(call["name"])
    described = tool or Tool(call["name"], ToolKind.UNAVAILABLE, "Tool not found")
    payload = {"tool": described.declaration, "args": copy.deepcopy(call.get("args") or {}), "call_id": call["id"]}
    before = await _callbacks(run, node, CallbackPoint.BEFORE_TOOL, payload)
    arguments = before.payload.get("args", payload["args"])
    answer = before
    if before.returned is None and before.error is None:
        answer = await _carry_out(run, tools, tool, {**call, "args": arguments})
        answer = _joined(before, answer)
    # A client's tool has no result yet, so there is nothing for the after-tool callbacks.
    if answer.error is None and tool is not None and tool.kind is not ToolKind.CLIENT:
        payload = {**payload, "args": arguments, "tool_response": answer.returned}
        after = await _callbacks(run, node, CallbackPoint.AFTER_TOOL, payload)
        returned = answer.returned if after.returned is None else after.returned
        answer = replace(_joined(answer, after), returned=returned)
    answer.duration_ms = (asyncio.get_running_loop().time() - started) * 1000
    return answer


async def _callbacks(run: Run, node: LlmNode, point: CallbackPoint, payload: PlainObject) -> CodeAnswer:
    """Run the agent's callbacks of one point with `payload`, their arguments by name."""
    if not node.callbacks.get(point):
        return CodeAnswer()
    return await run.code.callbacks(run.invocation(node), point, payload)


def _joined(first: CodeAnswer, second: CodeAnswer) -> CodeAnswer:
    """Return the second answer with the actions and logs of the first before its own."""
    actions = Actions()
    actions.merge(first.actions)
    actions.merge(second.actions)
    return replace(second, actions={**actions.as_plain(), "removed": actions.removed}, logs=(*first.logs, *second.logs))


async def _carry_out(run: Run, tools: Mapping[str, Tool], tool: Tool | None, call: FunctionCall) -> CodeAnswer:
    # Models invent tools; the answer tells them which there are.
    if tool is None:
        names = ", ".join(tools) or "none"
        error = (
            f"Invoking `{call['name']}()` failed as no tool with that name is available. The tools you can call are: "
            f"{names}. You could retry, but it is IMPORTANT that you only call a tool from that list."
        )
        return CodeAnswer({"error": error})
    # The arguments of an agent are checked against its input schema in `run_agent_tool`.
    missing = _missing_parameters_error(tool, call["args"])
    if missing and tool.kind is not ToolKind.AGENT:
        return CodeAnswer({"error": missing})
    match tool.kind:
        case ToolKind.TRANSFER:
            return CodeAnswer(None, actions={"transfer_to_agent": str(call["args"]["agent_name"])})
        case ToolKind.EXIT_LOOP:
            return CodeAnswer(None, actions={"escalate": True, "skip_summarization": True})
        case ToolKind.USER_CHOICE:
            run.say(", ".join(str(option) for option in call["args"]["options"]))
            return CodeAnswer(None, actions={"skip_summarization": True})
        case ToolKind.CLIENT:
            # The client sends the result as the next turn. Without `Listen`, this turn would end with the fallback
            # utterance if it had no words.
            run.add_ending(Listen())
            return CodeAnswer(None)
        case ToolKind.AGENT:
            return await run_agent_tool(run, tool, call["args"])
        case _:
            # Phone tools are the only other kind that models are offered.
            run.add_ending(phone_ending(tool, call["args"]))
            return CodeAnswer({"status": "ok"}, actions={"skip_summarization": True})


def _missing_parameters_error(tool: Tool, arguments: PlainObject) -> str:
    required = [key for key in (tool.parameters or {}).get("required") or () if key not in arguments]
    if not required:
        return ""
    return (
        f"Invoking `{tool.name}()` failed as the following mandatory input parameters are not present:\n"
        + "\n".join(required)
        + "\nYou could retry calling this tool, but it is IMPORTANT for you to provide all the mandatory parameters."
    )


async def run_agent_tool(run: Run, tool: Tool, arguments: PlainObject) -> CodeAnswer:
    """Run an agent as a tool and return its last text as the result. Raises `RunFailed` when the agent fails.

    The agent has a history of its own and a copy of the state; its changes to the state become the tool's.
    """
    node = tool.agent
    assert node is not None
    try:
        text = _request_text(arguments, _input_schema(node))
    except ValueError as error:
        return CodeAnswer({"error": f"The arguments of `{tool.name}()` are not as declared: {error}."})
    # The agent's changes of `user:` and `app:` keys are shared only once the tool's answer is applied to the call.
    state = State(run.conversation.state.values)
    conversation = Conversation(node, state, SharedState(), "")
    conversation.continue_from(run.conversation)
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
        # This ends no worker: the next request tells it to drop the nested conversation.
        await code.close()
    answer, has_spoken = _agent_result(conversation)
    if pending := _pending_tools(conversation):
        # The agent's history is dropped when the tool returns, so a later result would have nowhere to go.
        stopped = f"Error: agent '{node.name}' stopped waiting on {', '.join(pending)}, which cannot answer here."
        return replace(answer, returned=stopped)
    returned = parse_output(answer.returned, _output_schema(node) if has_spoken else None)
    return replace(answer, returned=returned, actions={**answer.actions, "skip_summarization": tool.skip_summarization})


def _agent_result(conversation: Conversation) -> tuple[CodeAnswer, bool]:
    """Return an agent's last text with its state changes as an answer, and whether it has said anything at all."""
    delta: dict[str, object] = {}
    removed: list[str] = []
    text, has_spoken = "", False
    for event in conversation.events:
        delta.update(event.actions.state_delta)
        removed += event.actions.removed
        if event.author != USER and event.content is not None:
            text, has_spoken = "\n".join(texts(event.content)), True
    return CodeAnswer(text, actions={"state_delta": delta, "removed": removed}), has_spoken


def _request_text(arguments: PlainObject, schema: JsonSchema | None) -> str:
    """Return the arguments as the user's words to the agent. Raises `ValueError` when they violate the schema."""
    if schema is not None:
        return json.dumps(conform(dict(arguments), schema), ensure_ascii=False, separators=(",", ":"))
    if "request" in arguments:
        return str(arguments["request"])
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True)


def _input_schema(node: Node) -> JsonSchema | None:
    """Return the input schema of the agent that runs first."""
    while not isinstance(node, LlmNode) and node.children:
        node = node.children[0]
    return node.input_schema if isinstance(node, LlmNode) else None


def _output_schema(node: Node) -> JsonSchema | None:
    """Return the output schema of the agent that runs last."""
    while not isinstance(node, LlmNode) and node.children:
        node = node.children[-1]
    return node.output_schema if isinstance(node, LlmNode) else None


def _pending_tools(conversation: Conversation) -> list[str]:
    """Return the names of the long-running tools that have no result yet."""
    events = conversation.events
    answered = {each["id"] for event in events for each in responses(event.content)}
    pending = [each for event in events for each in calls(event.content) if each["id"] in event.long_running]
    return [each["name"] for each in pending if each["id"] not in answered]


def _without_speech(run: Run) -> Emit:
    """Return the run's `emit` without speech: an agent tool's words are its result."""

    def emit(action: Action) -> None:
        if not isinstance(action, Say):
            run.emit(action)

    return emit
