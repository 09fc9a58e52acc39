"""Read records, statistics and recordings of calls: for the HTTP API, and for commands that run without a server.

`Reader` queries SQLite or PostgreSQL for the server's HTTP API. Queries of SQLite, and what decodes long texts or
audio, run in a process of their own, so that no request delays a call's audio. The functions `read_calls`, `read_call`
and `read_records` open the SQLite file themselves and raise `UserError` if there is none.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeAlias, TypeVar

from callagent.errors import CallagentError, UserError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, number_at, parse_json, parse_object, text_at
from callagent.records import query
from callagent.records.privacy import hide_personal_data
from callagent.records.query import CallFilter, Dialect, Statement
from callagent.records.recording import waveform
from callagent.records.tables import SqlValue

Row: TypeAlias = MutableJsonObject
"""A row of an answer: the value of each column by its name."""
P = ParamSpec("P")
T = TypeVar("T")

MAX_QUERY_SECONDS: Final = 20.0
_BUCKET_MS: Final = 50
"""Width of the buckets in which response times are counted; the queries divide by it."""
_MAX_METRIC_VALUES: Final = 8
"""Values of a metric that the overview shows."""


def read_calls(path: Path, *, limit: int = 50) -> list[Row]:
    """Return the newest calls, newest first, without their turns."""
    columns = (
        "id, project_id, wire, from_number, to_number, started_at, ended_at, total_duration, end_reason, "
        "num_turns, handoff_destination, end_function, end_attempts"
    )
    return [dict(row) for row in _read(path, f"SELECT {columns} FROM calls ORDER BY started_at DESC LIMIT ?", (limit,))]


def read_call(path: Path, call_id: str) -> MutableJsonObject | None:
    """Return the record of a call whose identifier begins with `call_id`; None: there is none.

    Its metrics come from their own rows, which were written while the call ran.
    """
    # LIKE would take `%` and `_` in the identifier for wildcards.
    pattern = call_id.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    found = _read(path, "SELECT id, record, end_attempts FROM calls WHERE id LIKE ? ESCAPE '\\' LIMIT 1", (pattern,))
    for row in found:
        metrics = _read(path, "SELECT name, value FROM metrics WHERE call_id = ? ORDER BY sequence", (row["id"],))
        return {
            **parse_object(row["record"]),
            "metrics": [{"name": metric["name"], "value": parse_json(metric["value"])} for metric in metrics],
            "end_attempts": row["end_attempts"],
        }
    return None


def read_records(path: Path) -> Iterator[MutableJsonObject]:
    """Yield every record, oldest first."""
    for row in _read(path, "SELECT id FROM calls ORDER BY started_at, id", ()):
        if record := read_call(path, row["id"]):
            yield record


def _read(path: Path, statement: str, values: tuple[SqlValue, ...]) -> list[sqlite3.Row]:
    if not path.is_file():
        raise UserError(f"no call has been recorded: '{path}' does not exist (setting records.path)")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return list(connection.execute(statement, values))
    except sqlite3.Error as error:
        raise UserError(f"the store '{path}' (setting records.path) cannot be read: {error}") from None


class StoreUnavailable(CallagentError):
    """The store does not answer."""


class ReadingProcess:
    """Runs functions of this package in a process of its own, one at a time; a process that died is replaced."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns. Raises what it raises, and `StoreUnavailable`."""
        assert not kwargs, "arguments are positional"
        if self._pool is None:
            # The process is spawned and not forked: a fork would inherit the server's sockets and its threads' locks.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=_ignore_interrupts)
        try:
            async with asyncio.timeout(MAX_QUERY_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
        except (BrokenProcessPool, TimeoutError) as error:
            # A query cannot be cancelled, and the next one would wait for it: its process is killed and replaced.
            self._end(self._pool)
            raise StoreUnavailable(f"the store could not be read: {str(error) or 'it took too long'}") from None

    async def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._end(self._pool)

    def _end(self, pool: ProcessPoolExecutor) -> None:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None


def _ignore_interrupts() -> None:
    # An interrupt at the terminal reaches both processes; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_connections: dict[Path, sqlite3.Connection] = {}
"""Open connections of the reading process."""


def fetch(path: Path, statements: Sequence[Statement]) -> list[list[Row]]:
    """Return the rows of each statement, in the reading process. Raises `StoreUnavailable`."""
    try:
        connection = _connections.get(path) or _connect(path)
        results = []
        for statement in statements:
            cursor = connection.execute(statement.sql, statement.values)
            names = [column[0] for column in cursor.description]
            results.append([dict(zip(names, row, strict=True)) for row in cursor])
    except sqlite3.Error as error:
        # The file may have been replaced: the next query opens it again.
        _connections.pop(path, None)
        raise StoreUnavailable(f"the store could not be read: {error}") from None
    return results


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    # Wait up to 2 s for a writer that checkpoints. Cache 64 MiB, because statistics read the same indices repeatedly.
    connection.execute("PRAGMA busy_timeout = 2000")
    connection.execute("PRAGMA cache_size = -65536")
    _connections[path] = connection
    return connection


def call_json(record: str, end_attempts: int, metrics: Sequence[Row], personal: bool) -> str:
    """Return a call's record as JSON text; unless `personal`, hide who called and what was said."""
    stored = parse_object(record)
    data = {
        **stored,
        "metrics": [
            {
                "name": metric["name"],
                "value": parse_json(text_at(metric, "value")),
                "written_at": metric["written_at"],
            }
            for metric in metrics
        ],
        "end_attempts": end_attempts,
        "recording": bool(stored.get("recording")),
    }
    return json.dumps(data if personal else hide_personal_data(data), ensure_ascii=False)


class Database(Protocol):
    """A database that holds the records of calls, and runs queries on them."""

    dialect: Dialect

    async def fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Return the rows of each statement. Raises `StoreUnavailable`."""

    async def close(self) -> None: ...


class SqliteDatabase:
    """The SQLite store of this server, read in the reading process."""

    dialect = Dialect.SQLITE

    def __init__(self, path: Path, process: ReadingProcess) -> None:
        self._path = path
        self._process = process

    async def fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return await self._process.run(fetch, self._path, statements)

    async def close(self) -> None:
        """Do nothing: whoever made the process ends it."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the calls that a filter finds."""

    calls: list[Row]
    total: int
    """Number of all calls that the filter finds."""
    next_cursor: str
    """The cursor of the next page; empty: there is none."""


class Reader:
    """The queries of the dashboard and the HTTP API.

    `personal`: whether the user may see who called and what was said.
    """

    def __init__(self, database: Database, process: ReadingProcess) -> None:
        self._database = database
        self._process = process

    async def calls(self, call_filter: CallFilter, *, limit: int = 50, cursor: str = "", personal: bool = True) -> Page:
        """Return a page of calls, newest first. Raises `ValueError` for a wrong cursor."""
        dialect, limit = self._database.dialect, query.page_size(limit)
        page = query.calls(dialect, call_filter, limit=limit, cursor=cursor)
        rows, totals = await self._database.fetch([page, query.count(dialect, call_filter)])
        # The query asks for one row more than a page has: if it comes, there is a next page.
        more, rows = len(rows) > limit, rows[:limit]
        next_cursor = query.cursor_of(rows[-1]) if more else ""
        for row in rows:
            row["handoff"] = bool(row["handoff"])
            row["in_progress"] = row["ended_at"] is None
            row["recording"] = bool(row["recording"])
        return Page([row if personal else _hidden(row) for row in rows], _count(totals[0]), next_cursor)

    async def call(self, call_id: str, *, personal: bool = True) -> str | None:
        """Return a record as JSON text; None: there is no such call."""
        (found, metrics) = await self._database.fetch(query.call(call_id))
        if not found:
            return None
        record, attempts = text_at(found[0], "record"), round(number_at(found[0], "end_attempts"))
        return await self._process.run(call_json, record, attempts, metrics, personal)

    async def recording(self, call_id: str) -> Path | None:
        """Return the path of a call's recording; None: it was not recorded."""
        statement = Statement("SELECT recording FROM calls WHERE id = ?", (call_id,))
        (found,) = await self._database.fetch([statement])
        path = text_at(found[0], "recording") if found else ""
        return Path(path) if path else None

    async def waveform(self, path: Path, points: int) -> JsonObject:
        """Return the loudness of a recording at `points` over its length. Raises `OSError`."""
        return await self._process.run(waveform, path, points)

    async def overview(self, days: int, project_id: str = "") -> MutableJsonObject:
        """Return volume, containment, end reasons, latency and business metrics of the last days."""
        since = _days_ago(days)
        statements = query.overview(self._database.dialect, since, project_id)
        rows = dict(zip(statements, await self._database.fetch(list(statements.values())), strict=True))
        by_day, response = _percentiles(rows["latency"])
        for day in rows["days"]:
            # The sum of no rows is NULL.
            day["handoffs"] = round(number_at(day, "handoffs"))
            day.update(by_day.get(text_at(day, "day"), {"p50": None, "p95": None}))
        return {
            "since": since,
            "days": rows["days"],
            "reasons": rows["reasons"],
            "handoffs": rows["handoffs"],
            "response": response,
            "stages": {name: _rounded(value) for name, value in rows["stages"][0].items()},
            "metrics": _metrics(rows["metrics"]),
        }

    async def traffic(self, project_id: str, days: int) -> list[Row]:
        """Return how often calls went from one position to another: `{"previous", "position", "turns"}`."""
        (rows,) = await self._database.fetch([query.traffic(project_id, _days_ago(days))])
        return rows

    async def projects(self) -> list[str]:
        """Return the names of the projects that have records."""
        (rows,) = await self._database.fetch([query.projects()])
        return [text_at(row, "project_id") for row in rows]

    async def close(self) -> None:
        await self._database.close()
        await self._process.close()


def _hidden(row: Row) -> Row:
    hidden = hide_personal_data(row)
    return dict(hidden) if isinstance(hidden, Mapping) else {}


def _count(row: Row) -> int:
    return round(number_at(row, "calls"))


def _days_ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days - 1)).date().isoformat()


def _percentiles(rows: Sequence[Row]) -> tuple[dict[str, dict[str, int | None]], JsonObject]:
    """Return the percentiles of each day, and those of all days together with their histogram.

    They are in milliseconds and exact to the width of a bucket.
    """
    by_day: dict[str, dict[int, int]] = {}
    everything: dict[int, int] = {}
    for row in rows:
        bucket, turns = round(number_at(row, "bucket")), round(number_at(row, "turns"))
        by_day.setdefault(text_at(row, "day"), {})[bucket] = turns
        everything[bucket] = everything.get(bucket, 0) + turns
    histogram = [{"ms": bucket * _BUCKET_MS, "turns": turns} for bucket, turns in sorted(everything.items())]
    days = {day: {"p50": _percentile(some, 0.5), "p95": _percentile(some, 0.95)} for day, some in by_day.items()}
    whole = {f"p{part}": _percentile(everything, part / 100) for part in (50, 90, 95, 99)}
    return days, {**whole, "histogram": histogram}


def _percentile(buckets: dict[int, int], part: float) -> int | None:
    """Return the middle of the bucket that holds the percentile, in milliseconds; `part` is from 0 to 1."""
    left = part * sum(buckets.values())
    # The turns were counted in buckets: otherwise each page would read and sort perhaps half a million of them.
    for bucket, turns in sorted(buckets.items()):
        left -= turns
        if left <= 0:
            return bucket * _BUCKET_MS + _BUCKET_MS // 2
    return None


class _MetricFigures:
    """The figures of one metric in the overview."""

    def __init__(self) -> None:
        self.written = 0
        self.values: list[JsonObject] = []
        self._sum = 0.0
        self._numbers = 0

    def add(self, row: Row) -> None:
        """Add a value and how often it was written. The most frequent value has to be added first."""
        value, written = parse_json(text_at(row, "value")), round(number_at(row, "written"))
        self.written += written
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._sum += value * written
            self._numbers += written
        if len(self.values) < _MAX_METRIC_VALUES:
            self.values.append({"value": value, "written": written})

    def as_json(self, name: str) -> JsonObject:
        mean = round(self._sum / self._numbers, 3) if self._numbers else None
        return {"name": name, "written": self.written, "values": self.values, "mean": mean}


def _metrics(rows: Sequence[Row]) -> list[JsonObject]:
    """Return for each metric how often it was written, the mean of its numbers and its most frequent values."""
    names: dict[str, _MetricFigures] = {}
    for row in rows:
        names.setdefault(text_at(row, "name"), _MetricFigures()).add(row)
    commonest_first = sorted(names.items(), key=lambda item: -item[1].written)
    return [figures.as_json(name) for name, figures in commonest_first]


def _rounded(value: JsonValue) -> int | None:
    return round(value) if isinstance(value, (int, float)) else None
