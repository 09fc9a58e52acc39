"""An agent that is a tool: it has a history of its own and a copy of the state; its last text is the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from callagent.agents.actions import Action, Say
from callagent.agents.tree.content import calls, responses, text_content, texts
from callagent.agents.tree.conversation import Conversation
from callagent.agents.tree.event import USER
from callagent.agents.tree.node import LlmNode, Node
from callagent.agents.tree.project_code import CodeAnswer
from callagent.agents.tree.run import Run, run_agent
from callagent.agents.tree.schema import conform, parse_output
from callagent.agents.tree.state import SharedState, State
from callagent.agents.tree.tool import Tool


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
    conversation.take_caller(content, run.invocation)
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
        await run_agent(inner, node)
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
