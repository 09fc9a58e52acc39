"""`callagent check` for flow projects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.flows.check.check import (
        check_imports,
        check_project,
    )

_MODULES = {
    "check_imports": "check",
    "check_project": "check",
}

__all__ = [
    "check_imports",
    "check_project",
]

__getattr__ = lazy_exports(__name__, _MODULES)
