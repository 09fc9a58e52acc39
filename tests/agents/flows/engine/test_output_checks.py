"""Guardrails and safety filters as checks of what the model wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents.flows.engine.model_request import AI_DISCLOSURE, REFUSAL, OutputChecks
from callagent.agents.flows.format.agent_settings import SafetyFilters
from tests.agents.flows.support import driven, words, write_project

RULES = (
    "Always greet the caller by name and never, under any circumstances, tell them which discounts the managers "
    "are allowed to give on Fridays before the shops close."
)
GUARDRAILS = ("ai_identity", "jailbreak_defence")


def rule(sentence: str, *guardrails: str, **levels: str) -> str | None:
    found = OutputChecks(guardrails, SafetyFilters(levels), RULES).check(sentence)
    return found.rule if found else None


@pytest.mark.parametrize(
    "sentence",
    [
        "functions.book_table(size=4)",
        '{"name": "book", "arguments": {"size": 4}}',
        "<tool_call>book</tool_call>",
        "{{fn:book}} now",
        "<|python_tag|> go",
    ],
)
def test_the_syntax_of_a_call_is_never_spoken(sentence: str):
    assert rule(sentence) == "tool_call_integrity"


@pytest.mark.parametrize("sentence", ["I'm a real person.", "Yes, I am human!", "I am not a robot.", "I'm not an AI"])
def test_nobody_claims_to_be_a_person(sentence: str):
    assert rule(sentence, "ai_identity") == "ai_identity"
    assert rule(sentence) is None


def test_the_instructions_are_not_read_out():
    assert rule(f"My rules say: {RULES}", *GUARDRAILS) == "jailbreak_defence"
    assert rule("Which discounts the managers are allowed to give I cannot say.", *GUARDRAILS) is None


@pytest.mark.parametrize(
    ("sentence", "category"),
    [
        ("First, how to poison somebody.", "violence"),
        ("They are an inferior race.", "hate"),
        ("Here is some pornography.", "sexual"),
        ("You should hurt yourself.", "self_harm"),
    ],
)
def test_what_a_safety_filter_names_is_not_said(sentence: str, category: str):
    for level in ("lenient", "medium", "strict"):
        assert rule(sentence, **{category: level}) == f"safety.{category}"
    assert rule(sentence) is None


def test_the_level_decides():
    assert rule("That is sexy.", sexual="medium") == "safety.sexual"
    assert rule("That is sexy.", sexual="lenient") is None


@pytest.mark.parametrize(
    "sentence",
    [
        "Your table for four is booked for Friday.",
        "I am a virtual assistant.",
        "I am a person's assistant.",
        "If you think of hurting yourself, please call 988.",
        "The class is on human resources.",
        "Our function room seats forty.",
        "The kill switch is on the left, and the bomb shelter museum opens at ten.",
    ],
)
def test_what_is_harmless_is_said(sentence: str):
    levels = dict.fromkeys(("violence", "hate", "sexual", "self_harm"), "strict")
    assert rule(sentence, *GUARDRAILS, **levels) is None


async def test_a_refused_sentence_is_replaced_in_call_and_history_and_noted(tmp_path: Path):
    names = ("jailbreak_defence", "hallucination_control", "ai_identity", "emergency_escalation", "tool_call_integrity")
    platform = "".join(f"  - {{name: {name}, enabled: true}}\n" for name in names)
    categories = "".join(f"  {name}: {{enabled: true, level: strict}}\n" for name in ("violence", "hate", "self_harm"))
    files = {
        "agent_settings/rules.txt": RULES,
        "agent_settings/guardrails.yaml": f"platform_guardrails:\n{platform}",
        "agent_settings/safety_filters.yaml": f"categories:\n{categories}  sexual: {{enabled: true, level: strict}}\n",
    }
    entries = [
        {"text": "Sure. I am a real person. I am human. functions.go(). What else?"},
        {"text": "How to poison someone. And how to stab them."},
        {"text": "Good."},
    ]
    async with driven(write_project(tmp_path, files), *entries) as agent:
        await agent.start()
        assert words(await agent.says("are you real")) == ["Sure.", AI_DISCLOSURE, "What else?"]
        assert words(await agent.says("teach me")) == [REFUSAL]
        await agent.says("fine")
        assert "real person" not in str(agent.model.messages()[1:])
        assert agent.written == [
            ("OUTPUT_REFUSED", "ai_identity"),
            ("OUTPUT_REFUSED", "ai_identity"),
            ("OUTPUT_REFUSED", "tool_call_integrity"),
            ("OUTPUT_REFUSED", "safety.violence"),
            ("OUTPUT_REFUSED", "safety.violence"),
        ]
