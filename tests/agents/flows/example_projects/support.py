"""Projects of others, played as text. Their folder is named by CALLAGENT_FLOW_PROJECTS; without it the tests skip."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callagent.commands import main

FOLDER = Path(os.environ.get("CALLAGENT_FLOW_PROJECTS") or "/nonexistent")
NAMES = (
    "field-service-scheduling",
    "financial-services-bill-pay-and-collection",
    "healthcare-appointment-scheduling",
    "restaurant-table-booking",
    "retail-order-status-and-modification",
)
needs_projects = pytest.mark.skipif(not FOLDER.is_dir(), reason="CALLAGENT_FLOW_PROJECTS names no folder")


@dataclass(frozen=True, slots=True)
class Trace:
    """What `callagent chat --json` wrote."""

    turns: list[dict[str, Any]]
    record: dict[str, Any]

    @property
    def steps(self) -> list[tuple[str | None, str | None]]:
        return [(turn["flow"], turn["step"]) for turn in self.turns]

    def functions(self, turn: int) -> list[str]:
        return [function["name"] for function in self.turns[turn]["functions"]]

    def metric(self, name: str) -> list[Any]:
        return [metric["value"] for metric in self.record["metrics"] if metric["name"] == name]

    @property
    def errors(self) -> list[str]:
        return [function["error"] for turn in self.turns for function in turn["functions"] if function["error"]]

    @property
    def ended(self) -> dict[str, Any]:
        ended: dict[str, Any] = self.turns[-1]["ended"]
        return ended


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """One tool call of the model."""
    return {"calls": [{"name": name, "arguments": arguments}]}


def calls(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"calls": [each for entry in entries for each in entry["calls"]]}


def text(words: str) -> dict[str, Any]:
    return {"text": words}


@dataclass(frozen=True, slots=True)
class Chat:
    """Plays one project and reads what was printed."""

    tmp_path: Path
    capsys: pytest.CaptureFixture[str]

    def play(self, project: str | Path, says: Sequence[str], script: Sequence[dict[str, Any]], *options: str) -> Trace:
        file = self.tmp_path / "script.yaml"
        file.write_text(json.dumps(list(script)), encoding="utf-8")
        said = [part for line in says for part in ("-m", line)]
        assert main(["chat", str(FOLDER / project), "--json", "--model", f"script:{file}", *options, *said]) == 0
        rows = [json.loads(line) for line in self.capsys.readouterr().out.splitlines()]
        return Trace(rows[:-1], rows[-1]["record"])


@pytest.fixture
def chat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Chat:
    return Chat(tmp_path, capsys)
