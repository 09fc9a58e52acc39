"""One request to the model: which tools it is given, how its answer is looked at, its sentences as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from callagent.agents.flows.answer import Answer
from callagent.agents.flows.conversation import Conversation
from callagent.agents.flows.dialogue import Dialogue
from callagent.agents.flows.filters import StreamFilter
from callagent.agents.flows.knowledge import retrieved_topics
from callagent.agents.flows.output_checks import OutputChecks
from callagent.agents.flows.prompt import Prompt
from callagent.agents.flows.tools import Toolset, build_tools
from callagent.models.protocol import Tool


def toolset_of(conversation: Conversation) -> Toolset:
    """What the model may call now."""
    prompt = Prompt(conversation)
    topics = retrieved_topics(conversation.project, conversation.topics)
    return build_tools(
        conversation.project,
        prompt.references(topics),
        conversation.position.flow,
        prompt.step,
        [name for name, result in conversation.entities.items() if result.valid],
        prompt.text,
    )


def new_answer(conversation: Conversation, *, filtered: bool) -> Answer:
    """`filtered`: phrase filters still act in this turn."""
    project = conversation.project
    filters = project.voice.filters if filtered else ()
    guardrails = (each.name for each in project.guardrails)
    checks = OutputChecks(guardrails, project.safety_of(conversation.channel), project.rules)
    now = asyncio.get_running_loop().time()
    return Answer(now, StreamFilter(filters, conversation.language), conversation.history.new_utterance(), checks)


async def sentences_of(dialogue: Dialogue, answer: Answer, tools: list[Tool]) -> AsyncGenerator[str, None]:
    """What may be said of the answer, until it is over or a filter cuts it. Raises `ProviderError`."""
    loop = asyncio.get_running_loop()
    conversation = dialogue.conversation
    topics = retrieved_topics(conversation.project, conversation.topics)
    messages = Prompt(conversation).messages(topics)
    stream = dialogue.model.stream(messages, tools, dialogue.model_settings())
    async with aclosing(cast("Any", stream)) as deltas:
        async for delta in deltas:
            for sentence in answer.feed(delta, loop.time()):
                yield sentence
            if answer.hit is not None:
                return
    for sentence in answer.finish():
        yield sentence
