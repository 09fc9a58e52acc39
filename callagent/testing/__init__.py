"""`callagent test` and `callagent functions execute`: a project's test suite with a simulated caller, one function."""

from __future__ import annotations
