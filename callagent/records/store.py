"""The store: SQLite in WAL mode, written by one thread of its own so that a call never waits for a disk.

When a method has returned, what it wrote is on disk: `synchronous=FULL` costs a quarter of a millisecond. Where pages
read PostgreSQL, the same transaction leaves a line in the outbox, and `postgres.py` carries the rows there.

Beside the store lies a file for each server that uses it, whose time says when that server was alive last. A server
that is killed cannot write how long its calls lasted; the next one knows it by this file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from callagent.errors import UserError
from callagent.json_values import JsonObject, object_at, parse_json, parse_object, text_at
from callagent.log import get_logger
from callagent.records import tables
from callagent.records.call_record import CallRecord
from callagent.records.privacy import Redaction
from callagent.records.tables import CALL_COLUMNS, METRIC_COLUMNS, TURN_COLUMNS, call_row, json_text, turn_rows

log = get_logger(__name__)

_MAX_QUEUED: Final = 20_000
_BATCH: Final = 200
"""Writes in one transaction: they share the wait for the disk."""
_CACHE_KIB: Final = 256
"""The writer only appends, and what it reads again is in the kernel's cache; SQLite would keep 2 MiB."""
_CLOSING_SECONDS: Final = 10.0
_STORAGE_FAILURES: Final = (sqlite3.OperationalError, OSError)
_PASSING: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
BEAT_SECONDS: Final = 1.0
"""Between two signs of life."""
_ALIVE_MARK: Final = "-alive-"


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
    done: asyncio.Future[None]
    """Belongs to the event loop that waits."""


@dataclass(slots=True)
class LostCall:
    """What is known of a call whose server was killed."""

    record: CallRecord
    end_attempts: int
    """How often its end function was begun."""
    sequence: int
    """The number of its last metric."""
    written: dict[int, str]
    """Sequence and name of the metrics that an attempt of the end function wrote before it was killed."""
    seen: str
    """The last time at which its server was certainly alive, in ISO 8601; empty: nothing is known."""

    def next_sequence(self, name: str) -> int:
        """Return the number of a metric that the end function writes now.

        It is the one that the killed attempt used for a metric of the same name, so that the metric is there once.
        """
        for sequence, written in self.written.items():
            if written == name:
                del self.written[sequence]
                return sequence
        self.sequence += 1
        return self.sequence


class Store:
    """Writes calls and metrics, from the event loop. What `redaction` takes out never reaches the disk."""

    def __init__(self, path: Path, *, redaction: Redaction | None = None, outbox: bool = False) -> None:
        """Open or create the store at `path`. Raises `UserError` where that cannot be."""
        self.path = path
        self._redaction = redaction
        self._outbox = outbox
        self.owner = owner_of(os.getpid())
        """The name of this process in the rows of the calls that it holds."""
        try:
            self._connect().close()
        except (OSError, sqlite3.Error) as error:
            # A full or failing disk is no reason to take no calls: their records wait in the spool.
            if not _may_pass(error, path):
                raise UserError(f"records.path '{path}' cannot be opened: {error}; name another file") from None
            log.error("store_not_opened", path=str(path), error=str(error))
        self._writes: queue.Queue[_Write | None] = queue.Queue(_MAX_QUEUED)
        # One thread for all writes: SQLite has one writer at a time anyway, and writes keep their order.
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def opened(self, record: CallRecord, *, owner: str | None = None) -> None:
        """Write that a call exists. `owner` is the process that holds it, where that is not this one."""
        await self._put_call(record, self.owner if owner is None else owner)

    async def progressed(self, record: CallRecord) -> None:
        """Write what is known of a call so far: all that is left of it if this server is killed."""
        await self._put_call(record, self.owner)

    async def metric(self, call_id: str, sequence: int, name: str, value: object, *, at: str | None = None) -> None:
        """Write a metric; `at` is the time of an earlier attempt. Written twice, it is there once."""

        def write(connection: sqlite3.Connection) -> None:
            kept = self._redaction.value(value) if self._redaction else value
            connection.execute(_METRIC, (call_id, sequence, name, json_text(kept), at or now_text()))
            self.note(connection, "metric", call_id, sequence)

        await self.write(write)

    async def end_attempted(self, call_id: str, attempt: int) -> None:
        """Write that the end function is about to start for the `attempt`-th time."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_ATTEMPT, (attempt, call_id))
            self.note(connection, "call", call_id)

        await self.write(write)

    async def ended(self, record: CallRecord) -> None:
        """Write the final record of a call that is over."""
        await self._put_call(record, self.owner)

    async def claim_lost(self) -> list[LostCall]:
        """Return the calls that killed servers left open; from now on they are this server's to end."""
        lost: list[LostCall] = []

        def write(connection: sqlite3.Connection) -> None:
            found = connection.execute("SELECT id, owner, record, end_attempts FROM calls WHERE ended_at IS NULL")
            # A write may run twice, and so begins anew.
            lost.clear()
            for call_id, owner, text, attempts in found.fetchall():
                if owner and owner == owner_of(int(owner.partition(":")[0])):
                    continue
                metrics = connection.execute(_METRICS_OF, (call_id,)).fetchall()
                seen = max([_seen(self.path, owner or ""), *(row[3] for row in metrics)])
                lost.append(_lost(CallRecord.from_json(parse_object(text)), attempts, metrics, seen))
                connection.execute("UPDATE calls SET owner = ? WHERE id = ?", (self.owner, call_id))

        await self.write(write)
        return lost

    async def close(self) -> None:
        """Write what is queued, then stop. A disk that stalls is waited for `_CLOSING_SECONDS` at most."""
        await asyncio.to_thread(self._stop)

    async def probe(self) -> None:
        """Write something to the disk that changes nothing. Raises what the write of a call would raise."""
        await self.write(lambda connection: connection.execute(f"PRAGMA user_version = {tables.VERSION}"))

    async def write(self, action: Action) -> None:
        """Run `action` in the writer's thread, in a transaction that may hold others too; it may run twice."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes.put_nowait(_Write(action, future))
        await future

    def note(self, connection: sqlite3.Connection, kind: str, call_id: str, sequence: int = 0) -> None:
        """Leave a line for the outbox, within a write. `kind` is `call`, `metric` or `deletion`."""
        if self._outbox:
            connection.execute(_OUTBOX, (kind, call_id, sequence))

    # The thread ---------------------------------------------------------------------------------------------------

    async def _put_call(self, record: CallRecord, owner: str) -> None:
        data = record.to_json()
        await self.write(lambda connection: self._write_call(connection, data, owner))

    def _write_call(self, connection: sqlite3.Connection, data: JsonObject, owner: str = "") -> None:
        if self._redaction:
            self._redact_metrics(connection, data)
            data = self._redaction.record(data)
        row = connection.execute(_CALL, call_row(data, owner)).fetchone()
        if row is None:
            # The final record is there already: this is an older one, which had to wait.
            return
        number, words = row
        # A table of FTS5 has no upsert; its row has the number of the call's.
        connection.execute("DELETE FROM calls_words WHERE rowid = ?", (number,))
        connection.execute("INSERT INTO calls_words (rowid, words) VALUES (?, ?)", (number, words))
        call_id = text_at(data, "id")
        connection.execute("DELETE FROM turns WHERE call_id = ?", (call_id,))
        connection.executemany(_TURN, turn_rows(data))
        self.note(connection, "call", call_id)

    def _redact_metrics(self, connection: sqlite3.Connection, data: JsonObject) -> None:
        """Take the values of entities out of the call's metrics.

        A metric is written at once; that it holds the value of an entity may be known only later.
        """
        if self._redaction is None:
            return
        known = self._redaction.knowing(object_at(data, "entities"))
        if known is self._redaction:
            return
        call_id = text_at(data, "id")
        rows = connection.execute("SELECT sequence, value FROM metrics WHERE call_id = ?", (call_id,)).fetchall()
        for sequence, text in rows:
            kept = json_text(known.value(parse_json(text)))
            if kept != text:
                key = (call_id, sequence)
                connection.execute("UPDATE metrics SET value = ? WHERE call_id = ? AND sequence = ?", (kept, *key))
                self.note(connection, "metric", *key)

    def _refill(self, connection: sqlite3.Connection) -> None:
        """Write the rows of calls that a store of version 1 had, which was without words and turns."""
        connection.execute("BEGIN IMMEDIATE")
        for text, attempts in connection.execute("SELECT record, end_attempts FROM calls_before").fetchall():
            data = {**CallRecord(id="").to_json(), **parse_object(text)}
            self._write_call(connection, data)
            connection.execute(_ATTEMPT, (attempts, text_at(data, "id")))
        connection.execute("DROP TABLE calls_before")
        connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        """Open the database, with its tables. Raises `OSError` and `sqlite3.Error`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            connection = stack.enter_context(closing(sqlite3.connect(self.path, isolation_level=None)))
            connection.execute("PRAGMA busy_timeout = 5000")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            if tables.migrate(connection):
                self._refill(connection)
            # It stays open, unless something above has failed.
            stack.pop_all()
        return connection

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while batch := self._next_batch():
            connection, failure = self._commit(connection, batch)
            if failure is None or len(batch) == 1 or connection is None:
                _settle(batch, failure)
                continue
            # One of them is to blame: each gets a transaction of its own, so that the others are kept.
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
        """Return everything that waits, up to a bound; an empty list: the store is closed."""
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
        """Write a batch in one transaction.

        Return the connection for the next batch (None: it has to be opened again), and why this one was not written.
        """
        try:
            if connection is None:
                connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            for write in batch:
                write.action(connection)
            connection.execute("COMMIT")
        except Exception as error:
            # An action may raise anything, also for bad data. It ends its own write, whose awaiter is told, and not the
            # thread that writes for all calls.
            log.debug("store_write_failed", error=str(error), writes=len(batch))
            if connection is not None and (isinstance(error, _STORAGE_FAILURES) or not _rolled_back(connection)):
                # The file may have been replaced, or its file system mounted anew: only a new connection finds it.
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
    """Return whether `error` comes from a disk or a lock, which may work later, and not from the settings."""
    if isinstance(error, sqlite3.Error):
        # The low octet is the primary code; the rest of an extended code says more of it.
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
        # One who was cancelled waits no more.
        if done.done():
            return
        if failure:
            done.set_exception(failure)
        else:
            done.set_result(None)

    for write in batch:
        # `RuntimeError`: the loop is closed, and nobody waits any more.
        with suppress(RuntimeError):
            write.done.get_loop().call_soon_threadsafe(settle, write.done)


def _lost(record: CallRecord, attempts: int, metrics: Sequence[tuple[int, str, str, str]], seen: str) -> LostCall:
    last = max((row[0] for row in metrics), default=0)
    if record.end_reason is None:
        record.metrics = [{"name": name, "value": parse_json(value)} for _, name, value, _ in metrics]
        return LostCall(record, attempts, last, {}, seen)
    # The record is as it was before the end function: metrics beyond its own were written by an attempt.
    written = {sequence: name for sequence, name, *_ in metrics if sequence > len(record.metrics)}
    return LostCall(record, attempts, last, written, seen)


def owner_of(process: int) -> str:
    """Return a name for a process: its id and its start time, as an id that is used again is another process."""
    try:
        # After the name of the program, which may hold spaces and parentheses. Field 22 of all (proc_pid_stat(5)) is
        # the start time in clock ticks since boot.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return f"{process}:"
    return f"{process}:{fields[19]}"


def now_text() -> str:
    """Return the present time as records have it."""
    return _iso(datetime.now(UTC))


def _seen(path: Path, owner: str) -> str:
    moment = last_heartbeat(path, owner) if owner else None
    return "" if moment is None else _iso(moment)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def leave_heartbeat(store: Path, owner: str) -> None:
    """Leave a sign of life of the process `owner` beside the store. Blocks. Raises `OSError`."""
    _heartbeat_file(store, owner).touch(mode=0o600)


def last_heartbeat(store: Path, owner: str) -> datetime | None:
    """Return the last time at which that process was certainly alive; None: it has left no sign. Blocks."""
    try:
        return datetime.fromtimestamp(_heartbeat_file(store, owner).stat().st_mtime, UTC)
    except OSError:
        return None


def remove_heartbeat(store: Path, owner: str) -> None:
    """Remove the signs of a process that has ended its calls. Blocks. Raises `OSError`."""
    _heartbeat_file(store, owner).unlink(missing_ok=True)


def heartbeat_owners(store: Path) -> list[str]:
    """Return the processes that have left signs of life beside the store. Blocks."""
    names = (path.name.rpartition(_ALIVE_MARK)[2] for path in store.parent.glob(f"{store.name}{_ALIVE_MARK}*"))
    return [":".join(name.split("-", 1)) for name in names if name.partition("-")[0].isdigit()]


def _heartbeat_file(store: Path, owner: str) -> Path:
    return store.with_name(f"{store.name}{_ALIVE_MARK}{owner.replace(':', '-')}")
