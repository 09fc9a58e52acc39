"""The keys of YAML; and the schema for editors accepts what the loader accepts, and refuses what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from callagent.agents.adk import agent_config_schema
from callagent.agents.adk.config_keys import COMMON_KEYS, KEYS, agent_kind, suggest
from tests.agents.adk.support import PROJECTS

VALIDATOR = Draft202012Validator(agent_config_schema())


def samples() -> list[Path]:
    folders = [path for path in PROJECTS.iterdir() if path.name.startswith("adk_")]
    if published := os.environ.get("CALLAGENT_ADK_SAMPLES"):
        folders.append(Path(published))
    return sorted(file for folder in folders for file in folder.rglob("*.yaml"))


def problems(text: str) -> list[str]:
    data: Any = YAML(typ="safe", pure=True).load(text)
    return [error.message for error in VALIDATOR.iter_errors(data)]


@pytest.mark.parametrize("path", samples(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_samples_are_valid(path: Path) -> None:
    assert problems(path.read_text(encoding="utf-8")) == []


def test_samples_are_valid_in_the_published_schema_too() -> None:
    """google-adk's own, of the interpreter that `CALLAGENT_ADK_PYTHON` names."""
    python = os.environ.get("CALLAGENT_ADK_PYTHON") or sys.executable
    program = "import google.adk as adk; print(adk.__path__[0])"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip("google-adk is not installed")
    schema = Path(done.stdout.strip(), "agents/config_schemas/AgentConfig.json").read_text(encoding="utf-8")
    published = Draft202012Validator(json.loads(schema))
    yaml = YAML(typ="safe", pure=True)
    read = {f"{path.parent.name}/{path.name}": yaml.load(path.read_text(encoding="utf-8")) for path in samples()}
    refused = {name for name, data in read.items() if not published.is_valid(data)}
    # `max_iterations: "3"`: the library itself takes it.
    assert refused == {"adk_steps/rounds.yaml"}


LLM = "name: a\ninstruction: x\n"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "name: a",
        "instruction: x",
        LLM + "intsruction: y",
        LLM + "max_iterations: 3",
        "name: user\ninstruction: x",
        "name: 1a\ninstruction: x",
        LLM + "sub_agents: [child.yaml]",
        LLM + "sub_agents: [{config_path: a.yaml, code: a.b}]",
        LLM + "sub_agents: [{}]",
        LLM + "tools: [google_search]",
        LLM + "tools: [{args: {}}]",
        LLM + "include_contents: some",
        LLM + "before_agent_callbacks: [a.b]",
        LLM + "generate_content_config: {temperature: hot}",
        LLM + "generate_content_config: {tools: []}",
        LLM + "generate_content_config: {temprature: 1}",
        LLM + "agent_class: LoopAgent",
        "agent_class: SequentialAgent\nname: a\nmax_iterations: 3",
        "agent_class: my.Class",
    ],
)
def test_what_the_loader_refuses_is_marked(text: str) -> None:
    assert problems(text)


@pytest.mark.parametrize(
    "text",
    [
        LLM + "agent_class: ''",
        LLM + "agent_class: google.adk.agents.llm_agent.LlmAgent",
        LLM + "generate_content_config: {maxOutputTokens: 3, thinkingConfig: {}}",
        LLM + "tools: [{name: AgentTool, args: [{name: agent, value: a.yaml}]}]",
        "agent_class: LoopAgent\nname: a\nmax_iterations: '3'",
        "agent_class: my.Class\nname: a\nown_field: 3",
    ],
)
def test_what_the_loader_takes_is_valid(text: str) -> None:
    assert problems(text) == []


def test_every_key_of_the_loader_is_known() -> None:
    cases = agent_config_schema()["allOf"]
    known = [set(case["then"]["properties"]) for case in cases]
    assert known == [set(COMMON_KEYS | KEYS[kind]) for kind in ("llm", "sequential", "loop", "parallel", "code")]


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
    assert suggest("instructoin", KEYS["llm"]) == "; the nearest is 'instruction'"
    assert suggest("xyz", KEYS["llm"]) == ""
