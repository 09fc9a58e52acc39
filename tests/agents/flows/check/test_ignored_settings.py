from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.flows import check_project
from callagent.agents.flows.check.ignored_settings import ignored_settings, unknown_sections
from callagent.agents.flows.format.experimental import ExperimentalSettings
from callagent.agents.kernel.patterns import repeats_a_repeat
from tests.agents.flows.support import write_project

DATA: dict[str, Any] = {
    "asr": {
        "initial_timeout": 5,
        "eager_final": True,
        "use_asr_lib": True,
        "flow_overrides": {"F": {"steps": {"S": {"provider": "x"}}}},
    },
    "ragdoll": {"top_k": 3, "soft_threshold": 0.1},
    "filler_utterances": {"is_enabled": True, "anything": 1},
    "audio_enhancement": {"krisp": {}},
    "newer": {},
}
FILTER = "phrase_filtering: [{name: a, regular_expressions: ['(a+)+$']}]\n"


def test_settings_without_effect_are_named_and_the_others_are_not():
    experimental = ExperimentalSettings(DATA)
    assert ignored_settings(experimental) == [
        "asr.provider",
        "asr.use_asr_lib",
        "audio_enhancement",
        "ragdoll.soft_threshold",
    ]
    assert unknown_sections(experimental) == ["newer"]
    assert ignored_settings(ExperimentalSettings()) == unknown_sections(ExperimentalSettings()) == []


def test_check_says_it_once(tmp_path: Path):
    files = {
        "agent_settings/experimental_config.json": json.dumps(DATA),
        "voice/response_control/phrase_filtering.yaml": FILTER,
    }
    warnings = [str(each) for each in check_project(write_project(tmp_path, files)).warnings]
    assert sum("no effect on this server: asr.provider, asr.use_asr_lib, audio" in each for each in warnings) == 1
    assert any("Unknown sections: newer." in each for each in warnings)
    assert any("'(a+)+$' repeats a repetition" in each for each in warnings)


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(\w+)*x", r"(?:\d+|x)*", r"((a*))+", r"(?:[a-z]+\s?)+!", r"(x{2,})+"])
def test_nested_repetitions_are_found(pattern: str):
    assert repeats_a_repeat(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"(a+,)+", r"\b10([ -])digit", r"([Ll]et me|I'll) (put|hand) you", r"a+b+", r"(a+)?", r"\(\d+\)+", r"[(a+)]+"],
)
def test_ordinary_expressions_are_not(pattern: str):
    assert not repeats_a_repeat(pattern)
