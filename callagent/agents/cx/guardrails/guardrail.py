"""Checks of what the caller said and of what the model answered."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from callagent.agents.cx.format import AgentConfig, Code, CxApp, GuardrailConfig
from callagent.agents.cx.guardrails.llm_policy import Policy, policy_of
from callagent.agents.kernel import Pattern

MODEL_SAFETY = "modelSafety"
HARMS = ("HATE_SPEECH", "DANGEROUS_CONTENT", "HARASSMENT", "SEXUALLY_EXPLICIT")
THRESHOLDS = ("BLOCK_LOW_AND_ABOVE", "BLOCK_MEDIUM_AND_ABOVE", "BLOCK_ONLY_HIGH", "BLOCK_NONE", "OFF")


@dataclass(frozen=True, slots=True)
class Guardrail:
    name: str
    filter: Mapping[str, Any]
    callbacks: Mapping[str, Code]
    action: Mapping[str, Any]
    policy: Policy | None = None
    safety: Mapping[str, str] = field(default_factory=dict)
    """Kinds of harm -> from where on the model's provider is to withhold an answer."""

    @property
    def checks_answers(self) -> bool:
        by_model = self.policy is not None and self.policy.of_agent
        return (
            by_model
            or bool(self._banned("bannedContentsInAgentResponse"))
            or not {"after_model", "after_agent"}.isdisjoint(self.callbacks)
        )

    def bans_input(self, text: str) -> bool:
        return self._matches(text, self._banned("bannedContentsInUserInput"))

    def bans_answer(self, text: str) -> bool:
        return self._matches(text, self._banned("bannedContentsInAgentResponse"))

    def answer(self, app: CxApp) -> dict[str, Any] | None:
        """What is said or done in the model's place; None: the model answers with another instruction."""
        responses = (self.action.get("respondImmediately") or {}).get("responses") or ()
        texts = [str(each.get("text")) for each in responses if each.get("text") and not each.get("disabled")]
        if texts:
            return {"role": "model", "parts": [{"text": random.choice(texts)}]}
        target = app.agent_named(str((self.action.get("transferAgent") or {}).get("agent") or ""))
        if target is not None:
            call = {"name": "transfer_to_agent", "args": {"agent_name": target}}
            return {"role": "model", "parts": [{"function_call": call}]}
        return None if self.prompt else {"role": "model", "parts": []}

    @property
    def prompt(self) -> str:
        return str((self.action.get("generativeAnswer") or {}).get("prompt") or "")

    def _banned(self, key: str) -> list[str]:
        return [str(each) for each in (*(self.filter.get("bannedContents") or ()), *(self.filter.get(key) or ()))]

    def _matches(self, text: str, banned: list[str]) -> bool:
        kind = str(self.filter.get("matchType") or "SIMPLE_STRING_MATCH")
        plain = bool(self.filter.get("disregardDiacritics"))
        said = _without_marks(text) if plain else text
        for each in banned:
            wanted = _without_marks(each) if plain else each
            pattern = wanted if kind == "REGEXP_MATCH" else re.escape(wanted)
            if kind == "WORD_BOUNDARY_STRING_MATCH":
                pattern = rf"(?<!\w){pattern}(?!\w)"
            if _pattern(pattern).search(said):
                return True
        return False


def guardrails_of(app: CxApp, agent: AgentConfig) -> list[Guardrail]:
    """The app's, then the agent's, without those that are switched off."""
    names = (*(app.data.get("guardrails") or ()), *agent.guardrails)
    found = dict.fromkeys(name for each in names if (name := app.guardrail_named(str(each))))
    enabled = [app.guardrails[name] for name in found if app.guardrails[name].data.get("enabled", True)]
    return [_guardrail(each) for each in enabled]


def safety_of(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Kinds and thresholds of `modelSafety`, as they are written."""
    own = data.get(MODEL_SAFETY)
    for each in own.get("safetySettings") or () if isinstance(own, Mapping) else ():
        if isinstance(each, Mapping):
            yield str(each.get("category") or ""), str(each.get("threshold") or "")


def problem_of(kind: str, threshold: str) -> str:
    """Why a setting of safety has no effect; empty: it has."""
    if kind not in [f"HARM_CATEGORY_{harm}" for harm in HARMS]:
        return f"'{kind}' is no kind of harm; HARM_CATEGORY_{', HARM_CATEGORY_'.join(HARMS)} are"
    return "" if threshold in THRESHOLDS else f"'{threshold}' is no threshold; {', '.join(THRESHOLDS)} are"


def _guardrail(config: GuardrailConfig) -> Guardrail:
    given = config.data.get("contentFilter")
    return Guardrail(
        name=config.name,
        filter=given if isinstance(given, Mapping) else {},
        callbacks=config.callbacks,
        action=config.data.get("action") or {},
        policy=policy_of(config.data),
        safety={kind: threshold for kind, threshold in safety_of(config.data) if not problem_of(kind, threshold)},
    )


@lru_cache(maxsize=1000)
def _pattern(text: str) -> Pattern:
    """Kept: an expression that took too long is not tried for ever. Raises ValueError."""
    return Pattern(text, ignore_case=True)


def _without_marks(text: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFD", text) if not unicodedata.combining(each))
