from __future__ import annotations

import json
from pathlib import Path

import pytest

import callagent.agents.adk as adk
from callagent.agents.adk.fields import COMMON_KEYS, GENERATION_KEYS, KEYS, agent_kind, snake_case, suggest

SCHEMA = json.loads((Path(adk.__file__).parent / "agent_config.schema.json").read_text())


def test_the_editors_schema_has_the_keys_of_the_check() -> None:
    assert SCHEMA["properties"].keys() == COMMON_KEYS.keys()
    llm, loop, plain = (each["then"]["properties"].keys() - COMMON_KEYS.keys() for each in SCHEMA["allOf"])
    assert llm == KEYS["llm"].keys()
    assert loop == KEYS["loop"].keys()
    assert plain == set()
    generation = SCHEMA["allOf"][0]["then"]["properties"]["generate_content_config"]["properties"]
    assert {snake_case(key) for key in generation} == GENERATION_KEYS.keys()


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
