"""The engine's benchmark measures something and says it."""

from __future__ import annotations

import json

import pytest

from callagent.commands import main
from tests.agents.flows.support import FERRY


def test_the_figures_of_a_project(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "engine", str(FERRY), "--turns", "12", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["turn_ms"]["count"] == figures["function_call_ms"]["count"] == 12
    assert 0 < figures["function_overhead_ms"]["p50"] < figures["function_call_ms"]["max"]
    assert figures["request_characters"] > 0
    for kind in ("adk", "cx"):
        measured = figures["callbacks"][kind]
        assert measured["turn_ms"]["count"] == measured["turn_with_callbacks_ms"]["count"] == 12
        assert measured["callback_ms"] < measured["turn_with_callbacks_ms"]["p50"]
    assert main(["bench", "engine", str(FERRY), "--turns", "1"]) == 0
    shown = capsys.readouterr().out
    assert "engine, a turn" in shown
    assert "callback (cx " in shown
