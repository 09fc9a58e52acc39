"""PostgreSQL: the tables, the rows carried there from the outbox, and what pages read of them."""

from __future__ import annotations

import asyncio
import queue
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callagent.errors import UserError
from callagent.log import get_logger
from callagent.records.query import Dialect, Statement
from callagent.records.reading_process import QUERY_SECONDS, Row, StoreUnavailable
from callagent.records.store import Store
from callagent.records.tables import CALL_COLUMNS, METRIC_COLUMNS, POSTGRES, TURN_COLUMNS, VERSION

if TYPE_CHECKING:
    import asyncpg

log = get_logger(__name__)

_BATCH: Final = 500
_IDLE_SECONDS: Final = 0.5
_MAX_WAIT: Final = 15.0
_CONNECT_SECONDS: Final = 10.0
_MIGRATION_LOCK: Final = 0x63616C6C
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
    """Implements `reader.Database`; connects when it is first asked, and again after the server was away."""

    dialect = Dialect.POSTGRES

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool[Any] | None = None

    async def fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        import asyncpg

        try:
            async with asyncio.timeout(QUERY_SECONDS):
                pool = self._pool
                if pool is None:
                    pool = self._pool = await asyncpg.create_pool(self._url, min_size=0, max_size=4)
                async with pool.acquire() as connection:
                    results = []
                    for statement in statements:
                        rows = await connection.fetch(numbered(statement.sql), *statement.values)
                        results.append([dict(row) for row in rows])
                    return results
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StoreUnavailable(f"the database could not be read: {error or 'it took too long'}") from None

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()


def numbered(sql: str) -> str:
    """`?` as PostgreSQL writes them: `$1`, `$2`."""
    count = 0

    def next_number(_: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"${count}"

    return re.sub(r"\?", next_number, sql)


async def migrate(connection: asyncpg.Connection[Any]) -> None:
    """Bring the tables to this version; several servers may try at once. Raises `UserError`."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        for statement in POSTGRES:
            await connection.execute(statement)
        version = await connection.fetchval("SELECT max(version) FROM callagent_schema")
        if version is not None and version > VERSION:
            raise UserError(f"records.database holds tables of a newer callagent (version {version})")
        if version != VERSION:
            await connection.execute("INSERT INTO callagent_schema (version) VALUES ($1)", VERSION)


@dataclass(slots=True)
class Parcel:
    """Lines of the outbox with the rows they mean, as they are now."""

    last: int = 0
    lines: int = 0
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    turns: list[tuple[Any, ...]] = field(default_factory=list)
    metrics: list[tuple[Any, ...]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)


class Outbox:
    """Carries rows from the store to PostgreSQL, in their order, each until it has arrived.

    Every row has a key and is written with it: a parcel that arrived without our hearing of it changes nothing.
    """

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self.waiting = 0
        """Lines seen in the outbox at the last look."""

    async def run(self) -> None:
        """Until it is cancelled, however long the database is away. Raises `UserError` for newer tables."""
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
                    connection.terminate()
            except (sqlite3.Error, queue.Full) as error:
                # Nothing is lost: lines leave the outbox only by a write that succeeds.
                log.warning("outbox_not_carried", error=str(error) or type(error).__name__, again_in=wait)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("database_away", error=str(error) or type(error).__name__, again_in=wait)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _MAX_WAIT)

    async def _carry(self, connection: asyncpg.Connection[Any]) -> None:
        while True:
            parcel = await asyncio.to_thread(pack, self._store.path)
            self.waiting = parcel.lines
            if not parcel.lines:
                await asyncio.sleep(_IDLE_SECONDS)
                continue
            async with asyncio.timeout(QUERY_SECONDS):
                await deliver(connection, parcel)
            last = parcel.last
            await self._store.write(
                lambda store, last=last: store.execute("DELETE FROM outbox WHERE number <= ?", (last,))  # type: ignore[misc]
            )


def pack(path: Path) -> Parcel:
    """The oldest lines of the outbox."""
    parcel = Parcel()
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA busy_timeout = 5000")
        # One view of lines and rows: what is written meanwhile leaves a line of its own.
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
    def rows(columns: Sequence[str], source: str, *values: Any) -> list[tuple[Any, ...]]:
        return connection.execute(f"SELECT {', '.join(columns)} FROM {source}", values).fetchall()

    if kind == "deletion":
        parcel.deleted.append(call_id)
    elif kind == "metric":
        parcel.metrics += rows(METRIC_COLUMNS, "metrics WHERE call_id = ? AND sequence = ?", call_id, sequence)
    else:
        parcel.calls += rows(_SHIPPED_CALL, "calls WHERE id = ?", call_id)
        parcel.turns += rows(TURN_COLUMNS, "turns WHERE call_id = ?", call_id)


async def deliver(connection: asyncpg.Connection[Any], parcel: Parcel) -> None:
    """All of it or nothing."""
    async with connection.transaction():
        changed = [row[0] for row in parcel.calls] + parcel.deleted
        await connection.execute("DELETE FROM turns WHERE call_id = ANY($1::text[])", changed)
        await connection.executemany(_CALL, parcel.calls)
        await connection.executemany(_TURN, parcel.turns)
        await connection.executemany(_METRIC, parcel.metrics)
        await connection.execute("DELETE FROM metrics WHERE call_id = ANY($1::text[])", parcel.deleted)
        await connection.execute("DELETE FROM calls WHERE id = ANY($1::text[])", parcel.deleted)
