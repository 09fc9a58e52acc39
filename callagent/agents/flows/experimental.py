"""`agent_settings/experimental_config.json`: settings with overrides by flow and step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Section = Mapping[str, Any]
_NO_SECTION: Section = {}


@dataclass(frozen=True, slots=True)
class Experimental:
    data: Section = field(default_factory=dict)

    def section(self, name: str) -> Section:
        value = self.data.get(name)
        return value if isinstance(value, dict) else _NO_SECTION

    def value(
        self, section: str, key: str, flow: str | None = None, step: str | None = None, language: str | None = None
    ) -> Any:
        """The value of a key; the step's, then the flow's, then the language's, then the base's. None: not set.

        A language with overrides of its own takes nothing from the flows and steps of the base.
        """
        base = self.section(section)
        own = _inner(_inner(base, "language_overrides"), language)
        places = (*_places(own or base, flow, step), base)
        return next((place[key] for place in places if place.get(key) is not None), None)

    def number(self, section: str, key: str, default: float) -> float:
        value = self.section(section).get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    def prompt(self, name: str, default: str = "") -> str:
        value = self.section("prompts").get(name)
        return value if isinstance(value, str) else default

    def by_language(self, section: str, key: str, language: str | None, default: str) -> str:
        """A text that may be one string or one per language."""
        value = self.section(section).get(key)
        if isinstance(value, dict):
            short = (language or "").split("-")[0]
            value = value.get(language) or value.get(short) or next(iter(value.values()), None)
        return value if isinstance(value, str) and value else default


def _places(section: Section, flow: str | None, step: str | None) -> tuple[Section, ...]:
    in_flow = _inner(_inner(section, "flow_overrides"), flow)
    return _inner(_inner(in_flow, "steps"), step), in_flow, section


def _inner(section: Section, key: str | None) -> Section:
    value = section.get(key) if key is not None else None
    return value if isinstance(value, dict) else _NO_SECTION
