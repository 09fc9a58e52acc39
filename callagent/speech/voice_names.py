"""Which of its voices a provider speaks with where a project asks for another provider's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Wanted = tuple[str, str]
"""Provider and that provider's name of the voice."""


@dataclass(frozen=True, slots=True)
class VoiceNames:
    """A wish travels as `provider/name` in `VoiceSettings.name`; a name without provider is the engine's own."""

    table: Mapping[Wanted, tuple[Wanted, ...]] = field(default_factory=dict)
    """What is asked for -> its likes of other providers."""

    def own(self, provider: str, name: str) -> str:
        """The name of the voice at `provider`; empty: its default."""
        wanted = parse(name)
        if not wanted[0]:
            return wanted[1]
        if wanted[0] == provider:
            return wanted[1]
        return next((own for other, own in self.table.get(wanted, ()) if other == provider), "")


def parse(name: str) -> Wanted:
    """`provider/name` in two; provider empty where there is none."""
    provider, slash, rest = name.partition("/")
    return (provider.lower(), rest) if slash else ("", name)
