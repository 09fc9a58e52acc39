"""Against a real PostgreSQL."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callagent.records import CallRecord, Store
from callagent.records.query import CallFilter
from callagent.records.reader import Reader, ReadingProcess, SqliteDatabase, StoreUnavailable
from callagent.records.retention import delete_caller
from callagent.records.tables import CALL_COLUMNS, METRIC_COLUMNS, TURN_COLUMNS, call_row, turn_rows
from tests.records.postgres_server import PostgresServer, binaries, postgres
from tests.records.synthetic import synthetic_records
from tests.records.test_reader import p95

asyncpg = pytest.importorskip("asyncpg")
from callagent.records.postgres import (  # noqa: E402
    PostgresDatabase,
    RowCopier,
    migrate,
    number_placeholders,
    read_batch,
    write_batch,
)

pytestmark = pytest.mark.skipif(binaries() is None, reason="no PostgreSQL here")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres() as server:
        yield server


@asynccontextmanager
async def shipping(store: Store, url: str) -> AsyncIterator[RowCopier]:
    outbox = RowCopier(store, url)
    task = asyncio.create_task(outbox.run())
    try:
        yield outbox
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def arrived(store: Store, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while (await asyncio.to_thread(read_batch, store.path)).lines:
            await asyncio.sleep(0.05)


async def value(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def test_values_are_numbered() -> None:
    assert number_placeholders("a = ? AND b IN (?, ?)") == "a = $1 AND b IN ($2, $3)"


async def test_what_pages_read_is_the_same_from_both_databases(tmp_path: Path, server: PostgresServer) -> None:
    store = Store(tmp_path / "c.db", outbox=True)
    records = list(synthetic_records(40))
    records[3].turns[1].user_input = "nul \0 and half a pair \ud800"
    async with shipping(store, server.url):
        for record in records:
            await store.opened(CallRecord(id=record.id, wire="sip", started_at=record.started_at))
            await store.metric(record.id, 1, "PARCEL_FOUND", True)
            await store.end_attempted(record.id, 1)
            await store.ended(record)
        await arrived(store)
    process = ReadingProcess()
    here = Reader(SqliteDatabase(store.path, process), process)
    there = Reader(PostgresDatabase(server.url), process)
    try:
        for asked in (
            CallFilter(),
            CallFilter(search="parcel fri"),
            CallFilter(search="1555"),
            CallFilter(end_reason="handoff", handoff=True),
            CallFilter(start_time=records[20].started_at, wire="sip"),
        ):
            assert await there.calls(asked, limit=7) == await here.calls(asked, limit=7)
        cursor = (await there.calls(CallFilter(), limit=7)).next_cursor
        assert await there.calls(CallFilter(), cursor=cursor) == await here.calls(CallFilter(), cursor=cursor)
        for record in records[:5]:
            assert await there.call(record.id) == await here.call(record.id)
        assert await there.overview(31) == await here.overview(31)
        assert await there.traffic("parcels", 31) == await here.traffic("parcels", 31)
    finally:
        await there.close()
        await here.close()
        await store.close()


async def test_while_the_database_is_away_nothing_is_lost_or_doubled(tmp_path: Path, server: PostgresServer) -> None:
    store = Store(tmp_path / "c.db", outbox=True)
    written = 0

    async def write(seconds: float) -> None:
        nonlocal written
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            written += 1
            await store.metric(f"c{written % 7}", written, "N", written)
            await asyncio.sleep(0.005)

    async with shipping(store, server.url):
        await write(1.0)
        await asyncio.to_thread(server.stop)
        await write(1.0)
        await asyncio.to_thread(server.start)
        await write(1.0)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await arrived(store)
    assert await value(server.url, "SELECT count(*) FROM metrics") == written
    assert await value(server.url, "SELECT count(DISTINCT value) FROM metrics") == written
    await store.close()


class Load:
    """Twenty calls a second, each with its metrics; how long a call waits for the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        self.calls = 0
        self.waits: list[float] = []

    async def go_on(self, seconds: float) -> list[float]:
        """The waits of the calls of that time."""
        self.waits = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.calls += 1
            self._tasks.add(asyncio.create_task(self._call(f"load{self.calls}")))
            await asyncio.sleep(0.05)
        await asyncio.gather(*self._tasks)
        self._tasks.clear()
        return self.waits

    async def _call(self, call_id: str) -> None:
        record = CallRecord(call_id, started_at="2026-01-01T00:00:00Z")
        await self._timed(self._store.opened(record))
        for number in range(5):
            await self._timed(self._store.metric(call_id, number, "N", number))
            await asyncio.sleep(0.02)
        record.ended_at, record.in_progress = record.started_at, False
        await self._timed(self._store.ended(record))

    async def _timed(self, write: Awaitable[None]) -> None:
        began = time.perf_counter()
        await write
        self.waits.append(time.perf_counter() - began)


@pytest.mark.acceptance("storage")
async def test_calls_do_not_notice_a_minute_without_the_database(tmp_path: Path, server: PostgresServer) -> None:
    """Beside the same load on a store whose database stays: what else the machine does is in both figures."""
    with postgres() as other:
        lonely, control = (Store(tmp_path / name, outbox=True) for name in ("lonely.db", "control.db"))
        load, beside = Load(lonely), Load(control)
        async with shipping(lonely, server.url), shipping(control, other.url):
            await asyncio.gather(load.go_on(5.0), beside.go_on(5.0))
            await asyncio.to_thread(server.stop)
            away, there = await asyncio.gather(load.go_on(60.0), beside.go_on(60.0))
            await asyncio.to_thread(server.start)
            await load.go_on(10.0)
            await arrived(lonely)
            await arrived(control)
    p99 = [round(statistics.quantiles(waits, n=100)[98] * 1000, 2) for waits in (away, there)]
    print({"calls": load.calls, "p99_ms_away_there": p99})  # noqa: T201
    assert await value(server.url, "SELECT count(*) FROM calls WHERE ended_at IS NOT NULL") == load.calls
    assert await value(server.url, "SELECT count(*) FROM metrics") == load.calls * 5
    assert await value(server.url, "SELECT count(DISTINCT (call_id, sequence)) FROM metrics") == load.calls * 5
    assert p99[0] <= 1.2 * p99[1]
    await lonely.close()
    await control.close()


async def test_a_batch_that_arrives_twice_changes_nothing(tmp_path: Path, server: PostgresServer) -> None:
    store = Store(tmp_path / "c.db", outbox=True)
    for record in synthetic_records(5):
        await store.ended(record)
        await store.metric(record.id, 1, "N", 1)
    connection = await asyncpg.connect(server.url)
    await migrate(connection)
    await migrate(connection)
    batch = read_batch(store.path)
    counts = []
    for _ in range(2):
        await write_batch(connection, batch)
        tables = ("calls", "turns", "metrics")
        counts.append([await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables])
    assert counts[0] == counts[1]
    assert counts[0][0] == 5
    await connection.close()
    await store.close()


async def test_a_deletion_reaches_the_database(tmp_path: Path, server: PostgresServer) -> None:
    store = Store(tmp_path / "c.db", outbox=True)
    records = list(synthetic_records(4))
    async with shipping(store, server.url):
        for record in records:
            await store.ended(record)
            await store.metric(record.id, 1, "N", 1)
        await delete_caller(store, records[0].from_number or "")
        await arrived(store)
    assert await value(server.url, "SELECT count(*) FROM calls") == 3
    assert await value(server.url, "SELECT count(*) FROM metrics") == 3
    assert await value(server.url, f"SELECT count(*) FROM turns WHERE call_id = '{records[0].id}'") == 0
    await store.close()


async def test_a_database_that_is_away_is_said_so_to_who_reads() -> None:
    database = PostgresDatabase("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable):
        await database.fetch([])
    await database.close()


@pytest.mark.acceptance("storage")
@pytest.mark.parametrize(("count", "bound_ms"), [(1_000, 200), (100_000, 500)])
async def test_lists_search_and_overview_stay_quick(server: PostgresServer, count: int, bound_ms: int) -> None:
    connection = await asyncpg.connect(server.url)
    await migrate(connection)
    data = [record.to_json() for record in synthetic_records(count)]
    calls = [call_row(one, "") for one in data]
    turns = [row for one in data for row in turn_rows(one)]
    metrics = [(one["id"], 1, "PARCEL_FOUND", "true", one["started_at"]) for one in data]
    await connection.copy_records_to_table("calls", records=calls, columns=list(CALL_COLUMNS))
    await connection.copy_records_to_table("turns", records=turns, columns=list(TURN_COLUMNS))
    await connection.copy_records_to_table("metrics", records=metrics, columns=list(METRIC_COLUMNS))
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
    process = ReadingProcess()
    reader = Reader(PostgresDatabase(server.url), process)
    questions: dict[str, Callable[[], Awaitable[object]]] = {
        "list": lambda: reader.calls(CallFilter()),
        "filtered": lambda: reader.calls(CallFilter(end_reason="error", wire="sip")),
        "search_common": lambda: reader.calls(CallFilter(search="parcel friday")),
        "search_filtered": lambda: reader.calls(CallFilter(search="parcel friday", wire="sip")),
        "search_rare": lambda: reader.calls(CallFilter(search="15551")),
        "overview": lambda: reader.overview(30),
        "traffic": lambda: reader.traffic("parcels", 30),
    }
    figures = {name: await p95(ask) for name, ask in questions.items()}
    print({name: round(value, 1) for name, value in figures.items()})  # noqa: T201
    await reader.close()
    assert max(figures.values()) <= bound_ms
