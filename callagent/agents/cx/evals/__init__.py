"""Tests that lie with an app: goldens, simulations and tests of single tools."""

from __future__ import annotations

from callagent.agents.cx.evals.evaluations import Evaluations, Simulation, read_evaluations
from callagent.agents.cx.evals.goldens import Golden, Judge, call_failures, read_goldens, run_goldens
from callagent.agents.cx.evals.tool_tests import read_tool_tests, run_tool_tests

__all__ = [
    "Evaluations",
    "Golden",
    "Judge",
    "Simulation",
    "call_failures",
    "read_evaluations",
    "read_goldens",
    "read_tool_tests",
    "run_goldens",
    "run_tool_tests",
]
