"""What the model wrote, looked at before it is spoken: guardrails and safety filters as checks.

They catch what can be told from the words alone and stand beside the same rules in the prompt, which reach further.
Only the model's own text is checked: what a function says, its author wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from callagent.agents.flows.safety import SafetyFilters

REFUSAL = "I am sorry, I cannot talk about that."
ASSISTANT = "I am a virtual assistant."
LEAK_WORDS = 20
"""So many words of the instructions in a row are no coincidence."""

_TOOL_SYNTAX = re.compile(
    r"\{\{\s*(?:fn|ft|ho|twilio_sms|sms)\s*:|</?(?:tool_call|function_call|function)\b|<\|[\w ]+\|>"
    r"|\"(?:name|arguments|parameters)\"\s*:\s*[\"{]|\bfunctions\.\w+\s*\(|\bprint\(default_api",
    re.IGNORECASE,
)
_HUMAN = re.compile(
    r"\bI(?:'m| am) (?:not (?:a |an )?(?:AI|bot|robot|machine|virtual assistant|computer)\b"
    r"|(?:a |an )?(?:real |actual |living )?(?:human(?: being)?|real person)\b)",
    re.IGNORECASE,
)
_CATEGORIES: Mapping[str, tuple[str, str]] = {
    "violence": (
        r"how to (?:kill|murder|stab|poison|shoot) (?:some|a|your|him|her|them)"
        r"|\b(?:build|mak)(?:e|ing)? (?:a |the )?bombs?\b",
        r"\bbehead\w*|\bdismember\w*|\btortur\w+|\bmassacre\w*",
    ),
    "hate": (
        r"\b(?:subhuman|vermin|inferior race|master race|ethnic cleansing)\b",
        r"\b(?:go back to your (?:own )?country|those people are (?:all )?(?:criminals|animals|dirty))\b",
    ),
    "sexual": (
        r"\b(?:blowjob|handjob|cunnilingus|fellatio|orgasm\w*|masturbat\w+|pornograph\w+)\b",
        r"\b(?:erotic\w*|nude pictures?|have sex with|sexy|horny)\b",
    ),
    "self_harm": (
        r"how to (?:kill|hang|cut|hurt) yourself|(?:you should|just) (?:kill|hurt|cut) yourself",
        r"\b(?:lethal dose|painless way to die|ways? to end (?:your|my) life)\b",
    ),
}
"""Category -> what is out of place at every level, and what is from `medium` on."""
_COMPILED = {
    name: (re.compile(always, re.IGNORECASE), re.compile(more, re.IGNORECASE))
    for name, (always, more) in _CATEGORIES.items()
}


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    """`safety.<category>`, or the guardrail's name."""
    instead: str
    """Said in place of the sentence; empty: nothing."""


class OutputChecks:
    """For one request: which rules hold, and the instructions that must not be read out."""

    def __init__(self, guardrails: Iterable[str], safety: SafetyFilters | None, instructions: str) -> None:
        self._guardrails = frozenset(guardrails)
        self._safety = safety
        self._instructions = instructions

    def look(self, sentence: str) -> Finding | None:
        """What is wrong with a sentence of the model; None: it may be said."""
        # Whatever the project asks for: nobody wants to hear the syntax of a call.
        if _TOOL_SYNTAX.search(sentence):
            return Finding("tool_call_integrity", "")
        if "ai_identity" in self._guardrails and _HUMAN.search(sentence):
            return Finding("ai_identity", ASSISTANT)
        for name, level in (self._safety.levels if self._safety else {}).items():
            always, more = _COMPILED[name]
            if always.search(sentence) or (level != "lenient" and more.search(sentence)):
                return Finding(f"safety.{name}", REFUSAL)
        if "jailbreak_defence" in self._guardrails and self._leaks(sentence):
            return Finding("jailbreak_defence", REFUSAL)
        return None

    def _leaks(self, sentence: str) -> bool:
        said = _runs_of(sentence)
        return bool(said) and not _runs_in(self._instructions).isdisjoint(said)


@lru_cache(maxsize=32)
def _runs_in(instructions: str) -> frozenset[tuple[str, ...]]:
    """Of a project's rules: the same in every call."""
    return frozenset(_runs_of(instructions))


def _runs_of(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[start : start + LEAK_WORDS]) for start in range(len(words) - LEAK_WORDS + 1)]
