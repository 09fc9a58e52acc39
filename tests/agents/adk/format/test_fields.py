from __future__ import annotations

import pytest

from callagent.agents.adk.format.fields import KEYS, agent_kind, suggest


@pytest.mark.parametrize(
    ("agent_class", "kind"),
    [
        ("LlmAgent", "llm"),
        ("Agent", "llm"),
        ("google.adk.agents.LlmAgent", "llm"),
        ("google.adk.agents.loop_agent.LoopAgent", "loop"),
        ("SequentialAgent", "sequential"),
        ("ParallelAgent", "parallel"),
        ("agency.agents.LlmAgent", "code"),
        ("Workflow", "code"),
    ],
)
def test_classes_are_known_by_all_their_names(agent_class: str, kind: str) -> None:
    assert agent_kind(agent_class) == kind


def test_a_misspelt_key_is_told_its_neighbour() -> None:
    assert suggest("instructoin", KEYS["llm"]) == "; 'instruction' is"
    assert suggest("xyz", KEYS["llm"]) == ""
