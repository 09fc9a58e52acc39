"""What `callagent check` finds in an app."""

from __future__ import annotations

from callagent.agents.cx.check.checker import check_cx_app, check_cx_imports

__all__ = [
    "check_cx_app",
    "check_cx_imports",
]
