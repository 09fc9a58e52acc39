"""The store: SQLite in WAL mode, written by one thread of its own so that a call never waits for a disk.

What an awaitable has ended for is on disk: `synchronous=FULL` costs a quarter of a millisecond. Where a PostgreSQL is
the reader's database, the same transaction leaves a line in the outbox, and `outbox.py` carries it there.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from callagent.errors import UserError
from callagent.log import get_logger
from callagent.records import tables
from callagent.records.heartbeat import last_heartbeat
from callagent.records.redaction import Redaction
from callagent.records.tables import CALL_COLUMNS, METRIC_COLUMNS, TURN_COLUMNS, call_row, json_text, turn_rows
from callagent.records.types import CallRecord

log = get_logger(__name__)

_MAX_QUEUED = 20_000
_BATCH = 200
_CACHE_KIB = 256
"""The writer appends; what it reads again the kernel has. SQLite would keep 2 MiB."""
_CLOSING_SECONDS = 10.0
_STORAGE_FAILURES: Final = (sqlite3.OperationalError, OSError)
_PASSING: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _insert(table: str, columns: Sequence[str], conflict: str = "") -> str:
    return f"INSERT {conflict} INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


_CALL = (
    f"{_insert('calls', CALL_COLUMNS)} ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in CALL_COLUMNS[1:])
    # The final record stands: an older one may come after it, from the spool or by a write that was late.
    + " WHERE calls.ended_at IS NULL OR excluded.ended_at IS NOT NULL RETURNING number, words"
)
_TURN = _insert("turns", TURN_COLUMNS, "OR REPLACE")
_METRIC = _insert("metrics", METRIC_COLUMNS, "OR IGNORE")
_ATTEMPT = "UPDATE calls SET end_attempts = max(end_attempts, ?) WHERE id = ?"
_METRICS_OF = "SELECT sequence, name, value, written_at FROM metrics WHERE call_id = ? ORDER BY sequence"
_OUTBOX = "INSERT INTO outbox (kind, call_id, sequence) VALUES (?, ?, ?)"

Action = Callable[[sqlite3.Connection], object]


@dataclass(slots=True)
class _Write:
    action: Action
    done: asyncio.Future[None] | None = None
    """Of the event loop that waits."""


@dataclass(slots=True)
class LostCall:
    """A call whose server was killed, as far as it is known."""

    record: CallRecord
    end_attempts: int
    """How often its end function was begun."""
    sequence: int
    """That of its last metric."""
    written: dict[int, str]
    """Sequence and name of the metrics that an attempt of the end function wrote before it was killed."""
    seen: str
    """When its server was alive for certain, in ISO 8601; empty: nothing is known."""

    def next_sequence(self, name: str) -> int:
        """For a metric that the end function writes now; the same as for one that the killed attempt wrote."""
        for sequence, written in self.written.items():
            if written == name:
                del self.written[sequence]
                return sequence
        self.sequence += 1
        return self.sequence


class Store:
    """Every method is for the event loop. What `redaction` takes out never reaches the disk."""

    def __init__(self, path: Path, *, redaction: Redaction | None = None, outbox: bool = False) -> None:
        """Open or create the store at `path`. Raises `UserError` where that cannot be."""
        self.path = path
        self._redaction = redaction
        self._outbox = outbox
        self.owner = owner_of(os.getpid())
        """This process, in the rows of the calls that it holds."""
        try:
            self._connect().close()
        except (OSError, sqlite3.Error) as error:
            if not _may_pass(error, path):
                raise UserError(f"records.path '{path}' cannot be opened: {error}") from None
            log.error("store_not_opened", path=str(path), error=str(error))
        self._writes: queue.Queue[_Write | None] = queue.Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def opened(self, record: CallRecord, *, owner: str | None = None) -> None:
        """The call exists. `owner`: the process that holds it where that is not this one."""
        await self._put_call(record, self.owner if owner is None else owner)

    async def progressed(self, record: CallRecord) -> None:
        """What is known so far: all that is left of a call whose server is killed."""
        await self._put_call(record, self.owner)

    async def metric(self, call_id: str, sequence: int, name: str, value: Any, *, at: str | None = None) -> None:
        """Keyed by call and sequence: written twice, it is there once. `at`: when it was written, else now."""

        def write(connection: sqlite3.Connection) -> None:
            kept = self._redaction.value(value) if self._redaction else value
            connection.execute(_METRIC, (call_id, sequence, name, json_text(kept), at or now_text()))
            self.note(connection, "metric", call_id, sequence)

        await self.write(write)

    async def end_attempted(self, call_id: str, attempt: int) -> None:
        """The end function is about to start for the `attempt`-th time."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_ATTEMPT, (attempt, call_id))
            self.note(connection, "call", call_id)

        await self.write(write)

    async def ended(self, record: CallRecord) -> None:
        """The call is over; the record is final."""
        await self._put_call(record, self.owner)

    async def claim_lost(self) -> list[LostCall]:
        """The calls that servers which are no more left open; from now on they are this server's to end."""
        lost: list[LostCall] = []

        def write(connection: sqlite3.Connection) -> None:
            found = connection.execute("SELECT id, owner, record, end_attempts FROM calls WHERE ended_at IS NULL")
            lost.clear()
            for call_id, owner, text, attempts in found.fetchall():
                if owner and owner == owner_of(int(owner.partition(":")[0])):
                    continue
                metrics = connection.execute(_METRICS_OF, (call_id,)).fetchall()
                seen = max([_seen(self.path, owner or ""), *(row[3] for row in metrics)])
                lost.append(_lost(CallRecord.from_json(json.loads(text)), attempts, metrics, seen))
                connection.execute("UPDATE calls SET owner = ? WHERE id = ?", (self.owner, call_id))

        await self.write(write)
        return lost

    async def close(self) -> None:
        """Write what is queued, then stop; a disk that stalls is not waited for."""
        await asyncio.to_thread(self._stop)

    async def probe(self) -> None:
        """Write something that changes nothing, to the disk. Raises what a write of a call's would."""
        await self.write(lambda connection: connection.execute(f"PRAGMA user_version = {tables.VERSION}"))

    async def write(self, action: Action) -> None:
        """Run `action` in the writer's thread, in a transaction that may hold others too; it may run twice."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes.put_nowait(_Write(action, future))
        await future

    def note(self, connection: sqlite3.Connection, kind: str, call_id: str, sequence: int = 0) -> None:
        """Within a write: what the outbox is to carry on (`call`, `metric`, `deletion`)."""
        if self._outbox:
            connection.execute(_OUTBOX, (kind, call_id, sequence))

    # The thread ---------------------------------------------------------------------------------------------------

    async def _put_call(self, record: CallRecord, owner: str) -> None:
        data = record.to_json()
        await self.write(lambda connection: self._write_call(connection, data, owner))

    def _write_call(self, connection: sqlite3.Connection, data: dict[str, Any], owner: str = "") -> None:
        if self._redaction:
            self._redact_metrics(connection, data)
            data = self._redaction.record(data)
        row = connection.execute(_CALL, call_row(data, owner)).fetchone()
        if row is None:
            # The final record is there already: this is an older one, which had to wait.
            return
        number, words = row
        connection.execute("DELETE FROM calls_words WHERE rowid = ?", (number,))
        connection.execute("INSERT INTO calls_words (rowid, words) VALUES (?, ?)", (number, words))
        connection.execute("DELETE FROM turns WHERE call_id = ?", (data["id"],))
        connection.executemany(_TURN, turn_rows(data))
        self.note(connection, "call", data["id"])

    def _redact_metrics(self, connection: sqlite3.Connection, data: Mapping[str, Any]) -> None:
        """A metric is kept at once; that it holds an entity's value may be known only later."""
        if self._redaction is None or (known := self._redaction.knowing(data["entities"])) is self._redaction:
            return
        rows = connection.execute("SELECT sequence, value FROM metrics WHERE call_id = ?", (data["id"],)).fetchall()
        for sequence, text in rows:
            kept = json_text(known.value(json.loads(text)))
            if kept != text:
                key = (data["id"], sequence)
                connection.execute("UPDATE metrics SET value = ? WHERE call_id = ? AND sequence = ?", (kept, *key))
                self.note(connection, "metric", *key)

    def _refill(self, connection: sqlite3.Connection) -> None:
        """Rows of the first version's calls."""
        connection.execute("BEGIN IMMEDIATE")
        for text, attempts in connection.execute("SELECT record, end_attempts FROM calls_before").fetchall():
            data = {**CallRecord(id="").to_json(), **json.loads(text)}
            self._write_call(connection, data)
            connection.execute(_ATTEMPT, (attempts, data["id"]))
        connection.execute("DROP TABLE calls_before")
        connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        """Open the database, with its tables. Raises `OSError` and `sqlite3.Error`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute("PRAGMA busy_timeout = 5000")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            if tables.migrate(connection):
                self._refill(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while batch := self._next_batch():
            connection, failure = self._commit(connection, batch)
            if failure is None or len(batch) == 1 or connection is None:
                _settle(batch, failure)
                continue
            # One of them is to blame: each on its own, so that the others are kept.
            for write in batch:
                connection, failure = self._commit(connection, [write])
                _settle([write], failure)
        if connection is not None:
            _close(connection)

    def _stop(self) -> None:
        try:
            self._writes.put(None, timeout=_CLOSING_SECONDS)
        except queue.Full:
            log.error("store_not_closed", writes=self._writes.qsize())
            return
        self._thread.join(_CLOSING_SECONDS)

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

    def _commit(
        self, connection: sqlite3.Connection | None, batch: Sequence[_Write]
    ) -> tuple[sqlite3.Connection | None, Exception | None]:
        """The connection for the next batch, None: it has to be opened again; and why this one was not written."""
        try:
            if connection is None:
                connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            for write in batch:
                write.action(connection)
            connection.execute("COMMIT")
        except Exception as error:
            # The edge of a write: bad data or a full disk ends this write, and not the thread that writes all others.
            log.debug("store_write_failed", error=str(error), writes=len(batch))
            if connection is not None and (isinstance(error, _STORAGE_FAILURES) or not _rolled_back(connection)):
                # The file may have been replaced, or its file system mounted anew.
                _close(connection)
                connection = None
            return connection, error
        return connection, None


def _rolled_back(connection: sqlite3.Connection) -> bool:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True


def _close(connection: sqlite3.Connection) -> None:
    try:
        connection.close()
    except sqlite3.Error as error:
        log.error("store_not_closed", error=str(error))


def _may_pass(error: Exception, path: Path) -> bool:
    """Whether `error` is of a disk or a lock, which may work later, and not of the settings."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code != sqlite3.SQLITE_READONLY:
            return code in _PASSING
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError as refusal:
            return refusal.errno == errno.EROFS
        return False
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def _settle(batch: Sequence[_Write], failure: Exception | None) -> None:
    def settle(done: asyncio.Future[None]) -> None:
        if done.done():
            return
        if failure:
            done.set_exception(failure)
        else:
            done.set_result(None)

    for write in batch:
        if write.done is None:
            continue
        try:
            write.done.get_loop().call_soon_threadsafe(settle, write.done)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            pass


def _lost(record: CallRecord, attempts: int, metrics: Sequence[tuple[int, str, str, str]], seen: str) -> LostCall:
    last = max((row[0] for row in metrics), default=0)
    if record.end_reason is None:
        record.metrics = [{"name": name, "value": json.loads(value)} for _, name, value, _ in metrics]
        return LostCall(record, attempts, last, {}, seen)
    # The record is as it was before the end function: what is beyond is of an attempt.
    written = {sequence: name for sequence, name, *_ in metrics if sequence > len(record.metrics)}
    return LostCall(record, attempts, last, written, seen)


def owner_of(process: int) -> str:
    """A process by its id and the instant it started: an id that is used again is another owner."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return f"{process}:"
    return f"{process}:{fields[19]}"


def now_text() -> str:
    return _iso(datetime.now(UTC))


def _seen(path: Path, owner: str) -> str:
    moment = last_heartbeat(path, owner) if owner else None
    return "" if moment is None else _iso(moment)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
