"""The store read from a command, without a server. Raises `UserError` where there is no store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from callagent.errors import UserError


def read_calls(path: Path, *, limit: int = 50) -> list[dict[str, Any]]:
    """The newest calls first, without turns."""
    columns = (
        "id, project_id, wire, from_number, to_number, started_at, ended_at, total_duration, end_reason, "
        "num_turns, handoff_destination, end_function, end_attempts"
    )
    return [dict(row) for row in _read(path, f"SELECT {columns} FROM calls ORDER BY started_at DESC LIMIT ?", (limit,))]


def read_call(path: Path, call_id: str) -> dict[str, Any] | None:
    """The whole record of the call whose id begins so; its metrics come from the rows written while it ran."""
    pattern = call_id.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    found = _read(path, "SELECT id, record, end_attempts FROM calls WHERE id LIKE ? ESCAPE '\\' LIMIT 1", (pattern,))
    for row in found:
        record: dict[str, Any] = json.loads(row["record"])
        metrics = _read(path, "SELECT name, value FROM metrics WHERE call_id = ? ORDER BY sequence", (row["id"],))
        record["metrics"] = [{"name": metric["name"], "value": json.loads(metric["value"])} for metric in metrics]
        record["end_attempts"] = row["end_attempts"]
        return record
    return None


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every record, oldest first."""
    for row in _read(path, "SELECT id FROM calls ORDER BY started_at, id", ()):
        if record := read_call(path, row["id"]):
            yield record


def _read(path: Path, statement: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
    if not path.is_file():
        raise UserError(f"no call has been recorded: '{path}' does not exist (setting records.path)")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return list(connection.execute(statement, values))
    except sqlite3.Error as error:
        raise UserError(f"records.path '{path}' cannot be read: {error}") from None
