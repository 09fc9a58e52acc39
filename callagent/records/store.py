"""The store: SQLite in WAL mode, written by one thread of its own so that a call never waits for a disk.

What a method has returned for (or its awaitable ended) is on disk: `synchronous=FULL` costs a quarter of a millisecond.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callagent.errors import UserError
from callagent.log import get_logger
from callagent.records.types import CallRecord

log = get_logger(__name__)

_QUEUE_BOUND = 20_000
_BATCH = 200

_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    id TEXT PRIMARY KEY, project_id TEXT NOT NULL, wire TEXT NOT NULL, from_number TEXT, to_number TEXT,
    started_at TEXT NOT NULL, ended_at TEXT, total_duration REAL, end_reason TEXT, end_function TEXT,
    end_attempts INTEGER NOT NULL DEFAULT 0, num_turns INTEGER, handoff_destination TEXT, record TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS calls_started ON calls (started_at);
CREATE TABLE IF NOT EXISTS metrics (
    call_id TEXT NOT NULL, sequence INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    written_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')), PRIMARY KEY (call_id, sequence)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
"""

_OPENED = """INSERT OR IGNORE INTO calls (id, project_id, wire, from_number, to_number, started_at, record)
VALUES (?, ?, ?, ?, ?, ?, ?)"""
_ENDED = """UPDATE calls SET ended_at = ?, total_duration = ?, end_reason = ?, end_function = ?, num_turns = ?,
handoff_destination = ?, record = ? WHERE id = ?"""
_METRIC = "INSERT OR IGNORE INTO metrics (call_id, sequence, name, value) VALUES (?, ?, ?, ?)"
_ATTEMPT = "UPDATE calls SET end_attempts = max(end_attempts, ?) WHERE id = ?"


@dataclass(slots=True)
class _Write:
    statement: str
    values: tuple[Any, ...]
    done: asyncio.Future[None] | None = None


class Store:
    """Every method but `read…` is for the event loop; reads open a connection of their own."""

    def __init__(self, path: Path) -> None:
        """Open or create the store at `path`. Raises `UserError` where that cannot be."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"records.path '{path}' cannot be opened: {error}") from None
        self._writes: queue.Queue[_Write | None] = queue.Queue(_QUEUE_BOUND)
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def opened(self, record: CallRecord) -> None:
        """The call exists."""
        row = (record.id, record.project_id, record.wire, record.from_number, record.to_number, record.started_at)
        await self._write(_OPENED, (*row, _dumps(record.to_json())))

    async def metric(self, call_id: str, sequence: int, name: str, value: Any) -> None:
        """Keyed by call and sequence: written twice, it is there once."""
        await self._write(_METRIC, (call_id, sequence, name, _dumps(value)))

    async def end_attempted(self, call_id: str, attempt: int) -> None:
        """The end function is about to start for the `attempt`-th time."""
        await self._write(_ATTEMPT, (attempt, call_id))

    async def ended(self, record: CallRecord) -> None:
        """The call is over; the record is final."""
        ending = (record.ended_at, record.total_duration, record.end_reason, record.end_function, record.num_turns)
        await self._write(_ENDED, (*ending, record.handoff_destination, _dumps(record.to_json()), record.id))

    async def close(self) -> None:
        """Write what is queued, then stop."""
        await asyncio.to_thread(self._writes.put, None)
        await asyncio.to_thread(self._thread.join, 10.0)

    async def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes.put_nowait(_Write(statement, values, future))
        await future

    # The thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA busy_timeout = 5000")
            while batch := self._next_batch():
                self._commit(connection, batch)

    def _next_batch(self) -> list[_Write]:
        """Everything that waits, up to a bound; empty: the store is closed."""
        batch: list[_Write] = []
        while len(batch) < _BATCH:
            try:
                write = self._writes.get(block=not batch)
            except queue.Empty:
                break
            if write is None:
                if batch:
                    self._writes.put(None)
                break
            batch.append(write)
        return batch

    def _commit(self, connection: sqlite3.Connection, batch: Sequence[_Write]) -> None:
        failure: sqlite3.Error | None = None
        try:
            connection.execute("BEGIN IMMEDIATE")
            for write in batch:
                connection.execute(write.statement, write.values)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            failure = error
            log.error("store_write_failed", error=str(error), writes=len(batch))
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        for write in batch:
            if write.done:
                _settle(write.done, failure)


def _settle(done: asyncio.Future[None], failure: sqlite3.Error | None) -> None:
    def settle() -> None:
        if done.done():
            return
        if failure:
            done.set_exception(failure)
        else:
            done.set_result(None)

    try:
        done.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        pass


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def read_calls(path: Path, *, limit: int = 50) -> list[dict[str, Any]]:
    """The newest calls first, without turns. Raises `UserError` where there is no store."""
    columns = (
        "id, project_id, wire, from_number, to_number, started_at, ended_at, total_duration, end_reason, "
        "num_turns, handoff_destination, end_function, end_attempts"
    )
    return [dict(row) for row in _read(path, f"SELECT {columns} FROM calls ORDER BY started_at DESC LIMIT ?", (limit,))]


def read_call(path: Path, call_id: str) -> dict[str, Any] | None:
    """The whole record of the call whose id begins so; its metrics come from the rows written while it ran."""
    for row in _read(path, "SELECT id, record, end_attempts FROM calls WHERE id LIKE ? || '%' LIMIT 1", (call_id,)):
        record: dict[str, Any] = json.loads(row["record"])
        metrics = _read(path, "SELECT name, value FROM metrics WHERE call_id = ? ORDER BY sequence", (row["id"],))
        record["metrics"] = [{"name": metric["name"], "value": json.loads(metric["value"])} for metric in metrics]
        record["end_attempts"] = row["end_attempts"]
        return record
    return None


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every record, oldest first."""
    for row in _read(path, "SELECT id FROM calls ORDER BY started_at", ()):
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
