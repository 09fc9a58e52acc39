"""Records in PostgreSQL: creating its tables, copying the store's rows to it, and queries of the web pages."""

from __future__ import annotations

import asyncio
import itertools
import queue
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callagent.errors import UserError
from callagent.log import get_logger
from callagent.records.query import Dialect, Statement
from callagent.records.reader import MAX_QUERY_SECONDS, Row, StoreUnavailable
from callagent.records.store import Store
from callagent.records.tables import CALL_COLUMNS, METRIC_COLUMNS, POSTGRES, TURN_COLUMNS, VERSION, SqlRow, SqlValue

if TYPE_CHECKING:
    import asyncpg

log = get_logger(__name__)

_BATCH_LINES: Final = 500
"""Lines of the outbox that are copied at a time."""
_IDLE_SECONDS: Final = 0.5
"""Time between two looks at an empty outbox."""
_MAX_WAIT_SECONDS: Final = 15.0
"""Longest time between two attempts to reach the database."""
_CONNECT_SECONDS: Final = 10.0
_MIGRATION_LOCK: Final = 0x63616C6C
"""Key of the advisory lock that lets one server at a time change the tables; any number that others do not use."""
_COPIED_CALL_COLUMNS: Final = (*CALL_COLUMNS, "end_attempts")


def _upsert(table: str, columns: Sequence[str], conflict: str) -> str:
    places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) ON CONFLICT {conflict}"


_CALL = _upsert(
    "calls",
    _COPIED_CALL_COLUMNS,
    "(id) DO UPDATE SET " + ", ".join(f"{column} = excluded.{column}" for column in _COPIED_CALL_COLUMNS[1:]),
)
_TURN = _upsert("turns", TURN_COLUMNS, "(call_id, number) DO NOTHING")
_METRIC = _upsert("metrics", METRIC_COLUMNS, "(call_id, sequence) DO UPDATE SET value = excluded.value")


class PostgresDatabase:
    """A `Database` in PostgreSQL; it connects for the first query, and again after the server could not be reached."""

    dialect = Dialect.POSTGRES

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        import asyncpg

        try:
            async with asyncio.timeout(MAX_QUERY_SECONDS):
                return await self._query(statements)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StoreUnavailable(f"the database could not be read: {str(error) or 'it took too long'}") from None

    async def _query(self, statements: Sequence[Statement]) -> list[list[Row]]:
        import asyncpg

        if self._pool is None:
            # The pool opens no connection before one is needed (`min_size=0`).
            self._pool = await asyncpg.create_pool(self._url, min_size=0, max_size=4)
        results: list[list[Row]] = []
        async with self._pool.acquire() as connection:
            for statement in statements:
                rows = await connection.fetch(number_placeholders(statement.sql), *statement.values)
                results.append([{name: _as_json(value) for name, value in row.items()} for row in rows])
        return results

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()


def _as_json(value: SqlValue | Decimal) -> SqlValue:
    """Return a value as JSON has it: sums and averages of integers are decimals in PostgreSQL."""
    return float(value) if isinstance(value, Decimal) else value


def number_placeholders(sql: str) -> str:
    """Return a statement with each `?` replaced as PostgreSQL needs it: `$1`, `$2`."""
    numbers = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)


async def migrate(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Bring the tables to this version; several servers may try at once. Raises `UserError` for newer tables."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        for statement in POSTGRES:
            await connection.execute(statement)
        version = await connection.fetchval("SELECT max(version) FROM callagent_schema")
        if version is not None and version > VERSION:
            raise UserError(
                f"the database of setting 'records.database' has tables of a newer callagent (version {version}, known "
                f"here: {VERSION}); update this server, or name another database"
            )
        if version != VERSION:
            await connection.execute("INSERT INTO callagent_schema (version) VALUES ($1)", VERSION)


@dataclass(slots=True)
class OutboxBatch:
    """The oldest lines of the outbox, with the current content of the rows that they name."""

    last: int = 0
    """Number of the last line."""
    lines: int = 0
    calls: list[SqlRow] = field(default_factory=list)
    turns: list[SqlRow] = field(default_factory=list)
    metrics: list[SqlRow] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    """Calls that are to be deleted."""


class RowCopier:
    """A copier of the rows that the store's table `outbox` lists, in order; each batch is repeated until committed.

    If the connection breaks after a commit but before its answer, the batch is written twice. This changes nothing,
    because every row is written under its key.
    """

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self.waiting = 0
        """Lines in the batch that was read last, at most `_BATCH_LINES`; 0: everything has been copied."""

    async def run(self) -> None:
        """Copy rows until cancelled, however long the database is unreachable. Raises `UserError` for newer tables."""
        import asyncpg

        wait = 1.0
        while True:
            try:
                connection = await asyncpg.connect(self._url, timeout=_CONNECT_SECONDS)
                try:
                    await migrate(connection)
                    log.info("database_connected")
                    wait = 1.0
                    await self._copy_rows(connection)
                finally:
                    # The connection is closed without PostgreSQL's goodbye message: a server that hangs would delay it.
                    connection.terminate()
            except (sqlite3.Error, queue.Full) as error:
                # Nothing is lost: lines leave the outbox only by a write that succeeds.
                log.warning("outbox_not_copied", error=str(error) or type(error).__name__, again_in=wait)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("database_unreachable", error=str(error) or type(error).__name__, again_in=wait)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _MAX_WAIT_SECONDS)

    async def _copy_rows(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        while True:
            batch = await asyncio.to_thread(read_batch, self._store.path)
            self.waiting = batch.lines
            if not batch.lines:
                await asyncio.sleep(_IDLE_SECONDS)
                continue
            async with asyncio.timeout(MAX_QUERY_SECONDS):
                await write_batch(connection, batch)
            # The lines are removed after the commit: otherwise a lost connection would lose their rows.
            await self._store.write(partial(_remove_lines, batch.last))


def _remove_lines(last: int, store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM outbox WHERE number <= ?", (last,))


def read_batch(path: Path) -> OutboxBatch:
    """Return the oldest lines of the outbox with their rows. Blocks. Raises `sqlite3.Error`."""
    batch = OutboxBatch()
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA busy_timeout = 5000")
        # A transaction sees lines and rows of one moment; a row that is written meanwhile adds another line.
        connection.execute("BEGIN")
        lines = connection.execute(
            "SELECT number, kind, call_id, sequence FROM outbox ORDER BY number LIMIT ?", (_BATCH_LINES,)
        ).fetchall()
        for kind, call_id, sequence in dict.fromkeys(line[1:] for line in lines):
            _add_rows(connection, batch, kind, call_id, sequence)
        connection.execute("ROLLBACK")
    if lines:
        batch.last, batch.lines = lines[-1][0], len(lines)
    return batch


def _add_rows(connection: sqlite3.Connection, batch: OutboxBatch, kind: str, call_id: str, sequence: int) -> None:
    def rows(columns: Sequence[str], source: str, *values: SqlValue) -> list[SqlRow]:
        return connection.execute(f"SELECT {', '.join(columns)} FROM {source}", values).fetchall()

    if kind == "deletion":
        batch.deleted.append(call_id)
    elif kind == "metric":
        batch.metrics += rows(METRIC_COLUMNS, "metrics WHERE call_id = ? AND sequence = ?", call_id, sequence)
    else:
        batch.calls += rows(_COPIED_CALL_COLUMNS, "calls WHERE id = ?", call_id)
        batch.turns += rows(TURN_COLUMNS, "turns WHERE call_id = ?", call_id)


async def write_batch(connection: asyncpg.Connection[asyncpg.Record], batch: OutboxBatch) -> None:
    """Write a batch in one transaction."""
    async with connection.transaction():
        # A later version of a record may have fewer turns, so those of the earlier one go first.
        changed = [row[0] for row in batch.calls] + batch.deleted
        await connection.execute("DELETE FROM turns WHERE call_id = ANY($1::text[])", changed)
        await connection.executemany(_CALL, batch.calls)
        await connection.executemany(_TURN, batch.turns)
        await connection.executemany(_METRIC, batch.metrics)
        await connection.execute("DELETE FROM metrics WHERE call_id = ANY($1::text[])", batch.deleted)
        await connection.execute("DELETE FROM calls WHERE id = ANY($1::text[])", batch.deleted)
