"""The prompt positions of a flow project: outside flows, once for each topic, and on every step that asks the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.decision import Position
from callagent.agents.flows.engine.entity_values import validate
from callagent.agents.flows.engine.model_request import build_request
from callagent.agents.flows.engine.prompt import Prompt
from callagent.agents.flows.engine.settings import FlowSettings
from callagent.agents.flows.format import Project, Topic
from callagent.agents.kernel import ExampleQuery, PromptPosition
from callagent.call_info import CallInfo


def flow_prompt_positions(
    project: Project, settings: FlowSettings, at: datetime | None, state: Mapping[str, Any]
) -> Iterator[PromptPosition]:
    """As a call sees them that takes place `at`; of its `state`, what has an entity's name was collected."""
    info = CallInfo("", "inbound", None, None, "text", at or datetime.now(UTC))
    conversation = Conversation.begin(info, project, replace(settings, at=at or settings.at), _no_metric)
    conversation.state = dict(state)
    found = [
        validate(each, state[name], info.started.date()) for name, each in project.entities.items() if name in state
    ]
    conversation.entities = {result.name: result for result in found if result.valid}
    yield _place(conversation, [])
    for topic in project.topics:
        place = _place(conversation, [topic])
        yield replace(place, queries=tuple(_queries(topic, place, Prompt(conversation))))
    for flow in project.flows.values():
        for step in flow.steps:
            conversation.position = Position(flow.name, step)
            yield _place(conversation, [])


async def _no_metric(name: str, value: Any) -> None:
    """Nothing runs here that could write one."""


def _place(conversation: Conversation, topics: list[Topic]) -> PromptPosition:
    position, request = conversation.position, build_request(conversation, topics)
    instructions = [message for message in request.messages if message["role"] == "system"]
    return PromptPosition(
        position.flow, position.step, str(instructions[-1]["content"]), tuple(request.toolset.schemas)
    )


def _queries(topic: Topic, place: PromptPosition, prompt: Prompt) -> Iterator[ExampleQuery]:
    """The topic's example queries: they lead to the one function that the topic names, or to none."""
    named = {reference.tool for reference in prompt.resolve(topic.actions).tools}
    functions = [tool["function"] for tool in place.tools if tool["function"]["name"] in named]
    if len(functions) > 1 or any(function["parameters"].get("required") for function in functions):
        # Which one, and with what, no file tells.
        return
    for said in topic.examples:
        yield ExampleQuery(said, tuple({"name": each["name"], "arguments": {}} for each in functions), topic.file)
