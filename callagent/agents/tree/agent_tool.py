"""An agent that is a tool: it has a history of its own and a copy of the state; its last text is the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from callagent.agents.action import Action, Say
from callagent.agents.tree.content import text_content, texts
from callagent.agents.tree.conversation import Conversation
from callagent.agents.tree.event import USER
from callagent.agents.tree.node import LlmNode
from callagent.agents.tree.project_code import CodeAnswer
from callagent.agents.tree.run import Run, run_agent
from callagent.agents.tree.schema import missing_keys, parse_output
from callagent.agents.tree.state import SharedState, State
from callagent.agents.tree.tool import Tool


async def run_agent_tool(run: Run, tool: Tool, arguments: Mapping[str, Any]) -> CodeAnswer:
    """Raises `RunFailed` when the agent fails."""
    node = tool.agent
    schema = node.input_schema if isinstance(node, LlmNode) else None
    if schema is not None and (missing := missing_keys(arguments, schema)):
        return CodeAnswer({"error": f"The arguments of `{tool.name}()` lack {', '.join(missing)}."})
    if schema is None and "request" in arguments:
        text = str(arguments["request"])
    elif schema is None:
        text = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    else:
        text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
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
        user_content=content,
        emit=_without_speech(run),
    )
    try:
        await run_agent(inner, node)
    finally:
        await code.close()
    actions: dict[str, Any] = {"state_delta": {}, "removed": []}
    result = ""
    for event in conversation.events:
        actions["state_delta"].update(event.actions.state_delta)
        actions["removed"] += event.actions.removed
        if event.author != USER and event.content is not None:
            result = "\n".join(texts(event.content))
    actions["skip_summarization"] = tool.skip_summarization
    output = node.output_schema if isinstance(node, LlmNode) else None
    return CodeAnswer(parse_output(result, output) if result else result, actions=actions)


def _without_speech(run: Run) -> Any:
    async def emit(action: Action) -> None:
        if not isinstance(action, Say):
            await run.emit(action)

    return emit
