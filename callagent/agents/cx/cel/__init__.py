"""The Common Expression Language (CEL), in which transfer rules and instructions state their conditions."""

from __future__ import annotations

from callagent.agents.cx.cel.expression import Expression

__all__ = [
    "Expression",
]
