"""Guardrails: checks of the caller's words and of the model's answers."""

from __future__ import annotations

from callagent.agents.cx.guardrails.enforcement import Gate
from callagent.agents.cx.guardrails.guardrail import MODEL_SAFETY, Guardrail, guardrails_of, problem_of, safety_of

__all__ = [
    "MODEL_SAFETY",
    "Gate",
    "Guardrail",
    "guardrails_of",
    "problem_of",
    "safety_of",
]
