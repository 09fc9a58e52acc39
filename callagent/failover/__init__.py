"""Failover between providers of one kind: circuit breakers, and line-ups in which the next takes over."""

from __future__ import annotations

from callagent.failover.breaker import (
    ON_PROVIDER_FAILURE,
    Breaker,
    BreakerState,
    Change,
    Lineup,
    Member,
    is_alarm,
)

__all__ = ["ON_PROVIDER_FAILURE", "Breaker", "BreakerState", "Change", "Lineup", "Member", "is_alarm"]
