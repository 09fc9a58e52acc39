"""`safety_filters.yaml`: what the agent must not say, and how strictly; part of the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callagent.agents.kernel import Reader

_SUBJECTS = {
    "violence": "violence",
    "hate": "hate or harassment of people for what they are",
    "sexual": "sexual content",
    "self_harm": "self-harm",
}
_LEVELS = {
    "lenient": "Do not promote or describe in detail {subject}.",
    "medium": "Do not talk about {subject}, unless the caller needs help because of it.",
    "strict": "Do not talk about {subject} at all; say that you cannot, and return to what you are here for.",
}


@dataclass(frozen=True, slots=True)
class SafetyFilters:
    levels: Mapping[str, str]
    """Category -> level, of those that are enabled."""

    def as_prompt(self) -> str:
        rules = [f"- {_LEVELS[level].format(subject=_SUBJECTS[name])}" for name, level in self.levels.items()]
        return "Safety:\n" + "\n".join(rules) if rules else ""


def load_safety_filters(root: Reader, *, of_channel: bool) -> SafetyFilters:
    """A channel's file has to say whether it holds."""
    if of_channel and "enabled" not in root:
        root.error("'enabled' is required.", "enabled")
    categories = root.map("categories")
    if missing := [name for name in _SUBJECTS if name not in categories]:
        root.error(f"Safety filter categories are missing: {missing}. List all four.", "categories")
    levels = {}
    for name in _SUBJECTS:
        category = categories.map(name)
        level = category.text("level") or "medium"
        if level not in _LEVELS:
            category.error(f"'level' should be one of {', '.join(_LEVELS)}, not '{level}'.", "level")
        elif category.flag("enabled"):
            levels[name] = level
    return SafetyFilters(levels if root.flag("enabled", not of_channel) else {})
