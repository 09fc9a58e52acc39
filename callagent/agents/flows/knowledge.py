"""Which topics the model sees in a turn, and the automatic `QA` metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callagent.agents.flows.conversation import Conversation
from callagent.agents.flows.project import Project
from callagent.agents.flows.retrieval import TopicIndex, best_matches
from callagent.agents.flows.topics import Topic

QA_METRIC = "QA"


async def retrieve(conversation: Conversation, index: TopicIndex, text: str) -> None:
    """Look up what the caller said; the topics found come before those of earlier turns."""
    settings = conversation.project.experimental
    section = settings.section("ragdoll")
    in_flow = conversation.position.flow is not None
    threshold = (
        settings.number("ragdoll", "in_flow_threshold", 0.35)
        if in_flow
        else settings.number("ragdoll", "threshold", 0.4)
    )
    limit = int(settings.number("ragdoll", "top_k", 5))
    excluded = {*conversation.disabled_topics, *_names(section.get("channel_topic_exclusions"), conversation)}
    direct = best_matches(await index.search(text, excluded, conversation.variant), threshold, limit)
    found = direct
    if not direct and conversation.inputs:
        earlier = conversation.inputs[-int(settings.number("ragdoll", "previous_user_inputs_len", 2)) :]
        together = await index.search(" ".join((*earlier, text)), excluded, conversation.variant)
        found = best_matches(together, threshold, limit)
    kept = max(limit, int(settings.number("ragdoll", "history_len", 7)))
    left = [name for name in conversation.topics if name not in excluded]
    conversation.topics = list(dict.fromkeys((*(match.topic.name for match in found), *left)))[:kept]
    conversation.inputs = [*conversation.inputs[-4:], text]
    cited = best_matches(direct, settings.number("ragdoll", "qa_metric_threshold", 0.33), 1)
    if cited and cited[0].topic.name not in (section.get("qa_metric_exclusions") or ()):
        await conversation.write_metric(QA_METRIC, cited[0].topic.name)


def retrieved_topics(project: Project, names: Sequence[str]) -> list[Topic]:
    found = {topic.name: topic for topic in project.topics}
    return [found[name] for name in names if name in found]


def _names(exclusions: Any, conversation: Conversation) -> tuple[str, ...]:
    if not isinstance(exclusions, dict):
        return ()
    names = exclusions.get(conversation.channel_type) or exclusions.get(conversation.channel) or ()
    return tuple(str(name) for name in names)
