"""Guardrails: checks of the caller's words and of the model's answers."""

from __future__ import annotations

from callagent.agents.cx.guardrails.guardrail import (
    MODEL_SAFETY,
    Guardrail,
    GuardrailChecker,
    guardrails_for,
    safety_problem,
    safety_settings,
)

__all__ = [
    "MODEL_SAFETY",
    "Guardrail",
    "GuardrailChecker",
    "guardrails_for",
    "safety_problem",
    "safety_settings",
]
