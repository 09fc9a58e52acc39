"""Structured log lines, with keys and passwords taken out of every text that others wrote."""

from __future__ import annotations

from callagent.log.scrubbing import HIDDEN, MIN_SECRET, remember_secrets, scrub
from callagent.log.structured import Boundary, Logger, configure, get_logger, plain

__all__ = [
    "HIDDEN",
    "MIN_SECRET",
    "Boundary",
    "Logger",
    "configure",
    "get_logger",
    "plain",
    "remember_secrets",
    "scrub",
]
