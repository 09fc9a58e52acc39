"""Read calls, figures and recordings: for pages and programs, and for commands that run without a server.

`Reader` asks SQLite or PostgreSQL for the server's pages. The functions `read_calls`, `read_call` and `read_records`
open the SQLite file themselves and raise `UserError` where there is none.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from callagent.errors import UserError
from callagent.records import query
from callagent.records.query import CallFilter, Dialect, Statement
from callagent.records.reading_process import ReadingProcess, Row, call_json, fetch, hide_personal_data, waveform


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


_BUCKET_MS = 50
_VALUES_SHOWN = 8


class Database(Protocol):
    dialect: Dialect

    async def fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """The rows of each. Raises `StoreUnavailable`."""

    async def close(self) -> None: ...


class SqliteDatabase:
    dialect = Dialect.SQLITE

    def __init__(self, path: Path, process: ReadingProcess) -> None:
        self._path = path
        self._process = process

    async def fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return await self._process.run(fetch, self._path, statements)

    async def close(self) -> None:
        """The process belongs to who made it."""


@dataclass(frozen=True, slots=True)
class Page:
    calls: list[Row]
    total: int
    next_cursor: str


class Reader:
    """`personal`: whether who asks may see who called and what was said."""

    def __init__(self, database: Database, process: ReadingProcess) -> None:
        self._database = database
        self._process = process

    async def calls(self, asked: CallFilter, *, limit: int = 50, cursor: str = "", personal: bool = True) -> Page:
        """Raises `ValueError` for a wrong cursor."""
        dialect = self._database.dialect
        page = query.calls(dialect, asked, limit=limit, cursor=cursor)
        rows, totals = await self._database.fetch([page, query.count(dialect, asked)])
        bound = page.values[-1] - 1
        more, rows = len(rows) > bound, rows[:bound]
        for row in rows:
            row["handoff"] = bool(row["handoff"])
            row["in_progress"] = row["ended_at"] is None
            row["recording"] = bool(row["recording"])
        if not personal:
            rows = hide_personal_data(rows)
        return Page(rows, totals[0]["calls"], query.cursor_of(rows[-1]) if more else "")

    async def call(self, call_id: str, *, personal: bool = True) -> str | None:
        """The record as JSON text."""
        (found, metrics) = await self._database.fetch(query.call(call_id))
        if not found:
            return None
        return await self._process.run(call_json, found[0]["record"], found[0]["end_attempts"], metrics, personal)

    async def recording(self, call_id: str) -> Path | None:
        """Where the recording of a call is."""
        statement = Statement("SELECT recording FROM calls WHERE id = ?", (call_id,))
        (found,) = await self._database.fetch([statement])
        return Path(found[0]["recording"]) if found and found[0]["recording"] else None

    async def waveform(self, path: Path, points: int) -> dict[str, Any]:
        """Raises `OSError`."""
        return await self._process.run(waveform, path, points)

    async def overview(self, days: int, project_id: str = "") -> dict[str, Any]:
        """Volume, containment, reasons, latency and business metrics of the last days."""
        since = _days_ago(days)
        statements = query.overview(self._database.dialect, since, project_id)
        rows = dict(zip(statements, await self._database.fetch(list(statements.values())), strict=True))
        latency = _percentiles(rows["latency"])
        for day in rows["days"]:
            day["handoffs"] = int(day["handoffs"] or 0)
            day.update(latency["days"].get(day["day"], {"p50": None, "p95": None}))
        return {
            "since": since,
            "days": rows["days"],
            "reasons": rows["reasons"],
            "handoffs": rows["handoffs"],
            "response": latency["all"],
            "stages": {name: _rounded(value) for name, value in rows["stages"][0].items()},
            "metrics": _metrics(rows["metrics"]),
        }

    async def traffic(self, project_id: str, days: int) -> list[Row]:
        """`{"previous", "position", "turns"}` of the last days."""
        (rows,) = await self._database.fetch([query.traffic(project_id, _days_ago(days))])
        return rows

    async def projects(self) -> list[str]:
        """Names of the projects that calls were for."""
        (rows,) = await self._database.fetch([query.projects()])
        return [row["project_id"] for row in rows]

    async def close(self) -> None:
        await self._database.close()
        await self._process.close()


def _days_ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days - 1)).date().isoformat()


def _percentiles(rows: Sequence[Row]) -> dict[str, Any]:
    """Milliseconds, to a bucket of fifty."""
    by_day: dict[str, dict[int, int]] = {}
    everything: dict[int, int] = {}
    for row in rows:
        bucket, turns = int(row["bucket"]), int(row["turns"])
        by_day.setdefault(row["day"], {})[bucket] = turns
        everything[bucket] = everything.get(bucket, 0) + turns
    histogram = [{"ms": bucket * _BUCKET_MS, "turns": turns} for bucket, turns in sorted(everything.items())]
    days = {day: {"p50": _percentile(some, 0.5), "p95": _percentile(some, 0.95)} for day, some in by_day.items()}
    whole = {f"p{part}": _percentile(everything, part / 100) for part in (50, 90, 95, 99)}
    return {"days": days, "all": {**whole, "histogram": histogram}}


def _percentile(buckets: dict[int, int], part: float) -> int | None:
    left = part * sum(buckets.values())
    for bucket, turns in sorted(buckets.items()):
        left -= turns
        if left <= 0:
            return bucket * _BUCKET_MS + _BUCKET_MS // 2
    return None


def _metrics(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """By name: how often it was written, the mean of its numbers, its commonest values."""
    names: dict[str, dict[str, Any]] = {}
    for row in rows:
        metric = names.setdefault(row["name"], {"name": row["name"], "written": 0, "values": [], "_sum": 0.0, "_n": 0})
        value, written = json.loads(row["value"]), int(row["written"])
        metric["written"] += written
        if isinstance(value, int | float) and not isinstance(value, bool):
            metric["_sum"] += value * written
            metric["_n"] += written
        if len(metric["values"]) < _VALUES_SHOWN:
            metric["values"].append({"value": value, "written": written})
    for metric in names.values():
        total, numbers = metric.pop("_sum"), metric.pop("_n")
        metric["mean"] = round(total / numbers, 3) if numbers else None
    return sorted(names.values(), key=lambda metric: -metric["written"])


def _rounded(value: Any) -> int | None:
    return None if value is None else round(float(value))
