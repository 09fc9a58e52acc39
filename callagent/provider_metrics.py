"""How the providers do, as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from callagent.breaker import BreakerState, Lineup


def provider_metrics(lineups: Iterable[Lineup[Any]]) -> list[str]:
    """Lines of failures and open breakers of every provider, and of outages of every role."""
    lineups = list(lineups)
    members = [(lineup.role, member) for lineup in lineups for member in lineup.members if not member.embedded]
    failures = [(f'role="{role}",provider="{member.name}"', member.breaker.failures) for role, member in members]
    resting = [
        (f'role="{role}",provider="{member.name}"', int(member.breaker.state is not BreakerState.CLOSED))
        for role, member in members
    ]
    alarms = [(f'role="{role}",provider="{member.name}"', int(member.breaker.alarm)) for role, member in members]
    outages = [(f'role="{lineup.role}"', lineup.outages) for lineup in lineups]
    return [
        *_family("callagent_provider_failures_total", "counter", "What providers did not do.", failures),
        *_family("callagent_provider_resting", "gauge", "1: it failed lately and is only probed.", resting),
        *_family("callagent_provider_alarm", "gauge", "1: its key is refused, somebody has to act.", alarms),
        *_family("callagent_provider_outages_total", "counter", "How often nobody could do it.", outages),
    ]


def _family(name: str, kind: str, text: str, values: Iterable[tuple[str, int]]) -> list[str]:
    lines = [f"{name}{{{labels}}} {value}" for labels, value in values]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines] if lines else []
