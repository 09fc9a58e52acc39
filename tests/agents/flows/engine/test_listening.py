from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import DigitSettings
from callagent.agents.flows import FlowSettings, load_project
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.decision import Position
from callagent.agents.flows.engine.listening import is_interruptible, listen_settings
from tests.agents.flows.support import call_info, flow_config, step, write_project


async def write(name: str, value: Any) -> None:
    pass


def conversation(root: Path, step_more: dict[str, str] | None = None, **files: str) -> Conversation:
    texts = {
        "agent_settings/rules.txt": "Rules.",
        "flows/f/flow_config.yaml": flow_config("F", "S"),
        "flows/f/steps/s.yaml": step("S", "Prompt.", **(step_more or {})),
        **{name.replace("__", "/"): text for name, text in files.items()},
    }
    project, findings = load_project(write_project(root, texts))
    assert findings.errors == []
    found = Conversation.begin(call_info(), project, FlowSettings(), write)
    found.position, found.turns = Position("F", "S"), 1
    return found


def experimental(**sections: Any) -> dict[str, str]:
    return {"agent_settings/experimental_config.json": json.dumps(sections)}


def test_nothing_set_is_the_call_s_default(tmp_path: Path):
    settings = listen_settings(conversation(tmp_path))
    assert (settings.no_input_timeout, settings.barge_in, settings.digits, settings.endpointing) == (None,) * 4
    assert settings.speech
    assert is_interruptible(conversation(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{is_enabled: false, max_digits: 4}", None),
        ("{is_enabled: true}", DigitSettings()),
        (
            "{is_enabled: true, max_digits: 10, end_key: '#', inter_digit_timeout: 3000, is_pii: true}",
            DigitSettings(max_digits=10, end_key="#", inter_digit_timeout=3.0, is_pii=True),
        ),
        (
            "{is_enabled: true, max_digits: -1, inter_digit_timeout: 0, collect_while_agent_speaking: true}",
            DigitSettings(while_speaking=True),
        ),
    ],
)
def test_key_presses_are_taken_as_the_step_says(tmp_path: Path, text: str, expected: DigitSettings | None):
    assert listen_settings(conversation(tmp_path, {"dtmf_config": text})).digits == expected


def test_key_presses_may_be_set_for_the_project_and_speech_turned_off(tmp_path: Path):
    sections = experimental(
        dtmf={
            "global": {"is_enabled": True, "max_digits": 3},
            "flow_overrides": {"F": {"disable_speech": True, "steps": {"S": {"first_digit_timeout": 9}}}},
        }
    )
    settings = listen_settings(conversation(tmp_path, **sections))
    assert settings.digits == DigitSettings(max_digits=3, first_digit_timeout=9)
    assert not settings.speech


@pytest.mark.parametrize(
    ("more", "sections", "seconds"),
    [
        ({}, {}, 0.4),
        ({}, {"vad": {"vad_end": 800}}, 0.8),
        ({}, {"vad": {"vad_end": 800, "flow_overrides": {"F": {"steps": {"S": {"vad_end": 2500}}}}}}, 2.5),
        ({"vad": "{vad_end: 1.5}"}, {"vad": {"vad_end": 800}}, 1.5),
    ],
)
def test_the_step_then_the_flow_then_the_project_says_when_the_caller_has_finished(
    tmp_path: Path, more: dict[str, str], sections: dict[str, Any], seconds: float
):
    files = {"voice/speech_recognition/asr_settings.yaml": "interaction_style: swift\n", **experimental(**sections)}
    assert listen_settings(conversation(tmp_path, more, **files)).endpointing == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("more", "asr", "sections", "expected"),
    [
        ({}, "barge_in: false\n", {}, False),
        ({}, "barge_in: {enabled: false}\n", {}, False),
        ({}, "barge_in: false\n", {"barge_in": {"is_enabled": True}}, True),
        ({}, "barge_in: true\n", {"barge_in": {"flow_overrides": {"F": {"is_enabled": False}}}}, False),
        ({"barge_in": "{is_enabled: true}"}, "", {"barge_in": {"is_enabled": False}}, True),
    ],
)
def test_who_says_whether_the_caller_may_interrupt(
    tmp_path: Path, more: dict[str, str], asr: str, sections: dict[str, Any], expected: bool
):
    files = {"voice/speech_recognition/asr_settings.yaml": asr or "{}\n", **experimental(**sections)}
    assert is_interruptible(conversation(tmp_path, more, **files)) is expected


def test_the_greeting_may_be_interrupted_only_where_the_project_says_so(tmp_path: Path):
    found = conversation(tmp_path, **{"voice/speech_recognition/asr_settings.yaml": "barge_in: true\n"})
    found.turns = 0
    assert not is_interruptible(found)
    allowed = "barge_in: {enabled: true, allow_on_first_turn: true}\n"
    found = conversation(tmp_path, **{"voice/speech_recognition/asr_settings.yaml": allowed})
    found.turns = 0
    assert is_interruptible(found)


def test_after_so_many_interruptions_the_agent_speaks_on(tmp_path: Path):
    asr = "barge_in: {enabled: true, max_per_call: 2}\n"
    found = conversation(tmp_path, **{"voice/speech_recognition/asr_settings.yaml": asr})
    found.interruptions = 1
    assert is_interruptible(found)
    found.interruptions = 2
    assert not is_interruptible(found)


def test_words_to_expect_come_from_function_call_step_and_project(tmp_path: Path):
    files = {
        "voice/speech_recognition/keyphrase_boosting.yaml": (
            "keyphrases:\n- {keyphrase: low}\n- {keyphrase: high, level: maximum}\n- {keyphrase: step}\n"
        )
    }
    found = conversation(
        tmp_path, {"asr_biasing": "{is_enabled: true, numeric: true, custom_keywords: [step]}"}, **files
    )
    found.keywords = ("dynamic",)
    settings = listen_settings(found, {"asr": {"keywords": ["now"]}})
    assert settings.keywords == ("now", "dynamic", "step", "high", "low")
    assert settings.expected == "5 5 5 0 1 4 2"


def test_biasing_that_is_not_enabled_is_absent(tmp_path: Path):
    found = conversation(tmp_path, {"asr_biasing": "{is_enabled: false, numeric: true, custom_keywords: [a]}"})
    assert (listen_settings(found).expected, listen_settings(found).keywords) == ("", ())


@pytest.mark.parametrize(
    ("channel", "speech", "digits"),
    [("SPEECH", True, None), ("DTMF", False, DigitSettings()), ("SPEECH_AND_DTMF", True, None)],
)
def test_a_function_may_choose_the_channel(tmp_path: Path, channel: str, speech: bool, digits: DigitSettings | None):
    settings = listen_settings(conversation(tmp_path), {"channel": channel})
    assert (settings.speech, settings.digits) == (speech, digits)


@pytest.mark.parametrize(
    "listen", [{"asr": 3}, {"asr": {"timeout": "x"}}, {"dtmf": {"num_digits": "many"}}, {"channel": 5}]
)
def test_a_listen_that_makes_no_sense_is_read_as_not_given(tmp_path: Path, listen: dict[str, Any]):
    assert listen_settings(conversation(tmp_path), listen).no_input_timeout is None


def test_a_language_has_its_own_recogniser_settings(tmp_path: Path):
    asr = {
        "initial_timeout": 5,
        "hard_timeout": 30,
        "flow_overrides": {"F": {"initial_timeout": 6}},
        "language_overrides": {
            "es-ES": {"initial_timeout": 7},
            "de-DE": {"flow_overrides": {"F": {"steps": {"S": {"initial_timeout": 8}}}}},
        },
    }
    found = conversation(tmp_path, **experimental(asr=asr))
    for language, seconds in (("en-US", 6), ("es-ES", 7), ("de-DE", 8)):
        found.language = language
        settings = listen_settings(found)
        assert (settings.no_input_timeout, settings.longest_turn) == (seconds, 30)


def test_interruptions_may_be_counted_and_forbidden_in_the_finer_settings(tmp_path: Path):
    found = conversation(tmp_path, **experimental(barge_in={"experimental_config": {"max_per_call": 1}}))
    assert is_interruptible(found)
    found.interruptions = 1
    assert not is_interruptible(found)
    never = conversation(tmp_path / "b", **experimental(barge_in={"experimental_config": {"force_disable": True}}))
    assert not is_interruptible(never)


def test_a_turn_models_settings_and_eager_finals_are_handed_on(tmp_path: Path):
    sections = {"eot": {"provider": "smart_turn", "threshold": 0.7, "timeout_ms": 900}, "asr": {"eager_final": True}}
    settings = listen_settings(conversation(tmp_path, **experimental(**sections)))
    assert (settings.turn_threshold, settings.unfinished, settings.eager_final) == (0.7, 0.9, True)
    plain = listen_settings(conversation(tmp_path / "plain"))
    assert (plain.turn_threshold, plain.unfinished, plain.eager_final) == (None, None, False)
