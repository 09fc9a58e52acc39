"""PostgreSQL: its tables, the rows that are carried there from the store's outbox, and the queries of pages."""

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
from callagent.records.reader import QUERY_SECONDS, Row, StoreUnavailable
from callagent.records.store import Store
from callagent.records.tables import CALL_COLUMNS, METRIC_COLUMNS, POSTGRES, TURN_COLUMNS, VERSION, SqlRow, SqlValue

if TYPE_CHECKING:
    import asyncpg

log = get_logger(__name__)

_BATCH: Final = 500
"""Lines of the outbox that are carried at a time."""
_IDLE_SECONDS: Final = 0.5
_MAX_WAIT_SECONDS: Final = 15.0
_CONNECT_SECONDS: Final = 10.0
_MIGRATION_LOCK: Final = 0x63616C6C
"""Key of the advisory lock that lets one server at a time change the tables; any number that others do not use."""
_SHIPPED_CALL: Final = (*CALL_COLUMNS, "end_attempts")


def _upsert(table: str, columns: Sequence[str], conflict: str) -> str:
    places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) ON CONFLICT {conflict}"


_CALL = _upsert(
    "calls",
    _SHIPPED_CALL,
    "(id) DO UPDATE SET " + ", ".join(f"{column} = excluded.{column}" for column in _SHIPPED_CALL[1:]),
)
_TURN = _upsert("turns", TURN_COLUMNS, "(call_id, number) DO NOTHING")
_METRIC = _upsert("metrics", METRIC_COLUMNS, "(call_id, sequence) DO UPDATE SET value = excluded.value")


class PostgresDatabase:
    """Implements `Database`; connects when it is first asked, and again after the server was away."""

    dialect = Dialect.POSTGRES

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        import asyncpg

        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await self._query(statements)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StoreUnavailable(f"the database could not be read: {error or 'it took too long'}") from None

    async def _query(self, statements: Sequence[Statement]) -> list[list[Row]]:
        import asyncpg

        if self._pool is None:
            # The pool opens no connection before one is needed (`min_size=0`).
            self._pool = await asyncpg.create_pool(self._url, min_size=0, max_size=4)
        results: list[list[Row]] = []
        async with self._pool.acquire() as connection:
            for statement in statements:
                rows = await connection.fetch(numbered(statement.sql), *statement.values)
                results.append([{name: _as_json(value) for name, value in row.items()} for row in rows])
        return results

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()


def _as_json(value: SqlValue | Decimal) -> SqlValue:
    """Return a value as JSON has it: sums and averages of integers are decimals in PostgreSQL."""
    return float(value) if isinstance(value, Decimal) else value


def numbered(sql: str) -> str:
    """Return a statement with each `?` as PostgreSQL writes it: `$1`, `$2`."""
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
class Parcel:
    """Some lines of the outbox, and the rows that they name, as these are now."""

    last: int = 0
    """Number of the last line."""
    lines: int = 0
    calls: list[SqlRow] = field(default_factory=list)
    turns: list[SqlRow] = field(default_factory=list)
    metrics: list[SqlRow] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    """Calls that are to be deleted."""


class Outbox:
    """Carries rows from the store to PostgreSQL, in their order, each until it has arrived.

    Every row is written under its key: a parcel that arrived although the connection broke before the answer changes
    nothing when it comes again.
    """

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self.waiting = 0
        """Lines that the outbox had at the last look, up to the bound of a parcel."""

    async def run(self) -> None:
        """Carry rows until it is cancelled, however long the database is away. Raises `UserError` for newer tables."""
        import asyncpg

        wait = 1.0
        while True:
            try:
                connection = await asyncpg.connect(self._url, timeout=_CONNECT_SECONDS)
                try:
                    await migrate(connection)
                    log.info("database_connected")
                    wait = 1.0
                    await self._carry(connection)
                finally:
                    # At once and without a farewell, which a server that is away would not answer.
                    connection.terminate()
            except (sqlite3.Error, queue.Full) as error:
                # Nothing is lost: lines leave the outbox only by a write that succeeds.
                log.warning("outbox_not_carried", error=str(error) or type(error).__name__, again_in=wait)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("database_away", error=str(error) or type(error).__name__, again_in=wait)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _MAX_WAIT_SECONDS)

    async def _carry(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        while True:
            parcel = await asyncio.to_thread(pack, self._store.path)
            self.waiting = parcel.lines
            if not parcel.lines:
                await asyncio.sleep(_IDLE_SECONDS)
                continue
            async with asyncio.timeout(QUERY_SECONDS):
                await deliver(connection, parcel)
            # Only now: were the lines removed first, a lost connection would lose their rows.
            await self._store.write(partial(_remove_lines, parcel.last))


def _remove_lines(last: int, store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM outbox WHERE number <= ?", (last,))


def pack(path: Path) -> Parcel:
    """Return the oldest lines of the outbox with their rows. Blocks. Raises `sqlite3.Error`."""
    parcel = Parcel()
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA busy_timeout = 5000")
        # A transaction sees lines and rows of one moment: what is written meanwhile leaves a line of its own.
        connection.execute("BEGIN")
        lines = connection.execute(
            "SELECT number, kind, call_id, sequence FROM outbox ORDER BY number LIMIT ?", (_BATCH,)
        ).fetchall()
        for kind, call_id, sequence in dict.fromkeys(line[1:] for line in lines):
            _add(connection, parcel, kind, call_id, sequence)
        connection.execute("ROLLBACK")
    if lines:
        parcel.last, parcel.lines = lines[-1][0], len(lines)
    return parcel


def _add(connection: sqlite3.Connection, parcel: Parcel, kind: str, call_id: str, sequence: int) -> None:
    def rows(columns: Sequence[str], source: str, *values: SqlValue) -> list[SqlRow]:
        return connection.execute(f"SELECT {', '.join(columns)} FROM {source}", values).fetchall()

    if kind == "deletion":
        parcel.deleted.append(call_id)
    elif kind == "metric":
        parcel.metrics += rows(METRIC_COLUMNS, "metrics WHERE call_id = ? AND sequence = ?", call_id, sequence)
    else:
        parcel.calls += rows(_SHIPPED_CALL, "calls WHERE id = ?", call_id)
        parcel.turns += rows(TURN_COLUMNS, "turns WHERE call_id = ?", call_id)


async def deliver(connection: asyncpg.Connection[asyncpg.Record], parcel: Parcel) -> None:
    """Write a parcel in one transaction: all of it or nothing."""
    async with connection.transaction():
        # A later version of a record may have fewer turns, so those of the earlier one go first.
        changed = [row[0] for row in parcel.calls] + parcel.deleted
        await connection.execute("DELETE FROM turns WHERE call_id = ANY($1::text[])", changed)
        await connection.executemany(_CALL, parcel.calls)
        await connection.executemany(_TURN, parcel.turns)
        await connection.executemany(_METRIC, parcel.metrics)
        await connection.execute("DELETE FROM metrics WHERE call_id = ANY($1::text[])", parcel.deleted)
        await connection.execute("DELETE FROM calls WHERE id = ANY($1::text[])", parcel.deleted)
