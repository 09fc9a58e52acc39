"""The store: SQLite in WAL mode, written by one thread of its own so that a call never waits for a disk.

When a method has returned, what it wrote is on disk: `synchronous=FULL` costs a quarter of a millisecond. If the web
pages read PostgreSQL, the same transaction adds a line to the outbox, and `postgres.py` copies the rows there.

Each server that uses the store has a heartbeat file beside it, whose time says when that server was last alive. A
server that is killed cannot write how long its calls lasted; the next one knows it by this file.
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
"""Writes that may wait for the thread."""
_BATCH: Final = 200
"""Writes in one transaction: they share the wait for the disk."""
_CACHE_KIB: Final = 256
"""Page cache of SQLite in KiB, less than the usual 2 MiB: what the writer reads again is in the kernel's cache."""
_CLOSING_SECONDS: Final = 10.0
"""Time that the disk has to take the queued writes when the server stops."""
_STORAGE_FAILURES: Final = (sqlite3.OperationalError, OSError)
_TEMPORARY_ERRORS: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
BEAT_SECONDS: Final = 1.0
"""Time between two heartbeats."""
_ALIVE_MARK: Final = "-alive-"
"""In the name of a heartbeat file, between the names of store and process."""


def _insert(table: str, columns: Sequence[str], conflict: str = "") -> str:
    return f"INSERT {conflict} INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


_CALL = (
    f"{_insert('calls', CALL_COLUMNS)} ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in CALL_COLUMNS[1:])
    # A final record is not replaced by an older one, which may come after it from the spool or by a late write.
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
    """Completed when the write is on disk; it belongs to the event loop that waits for it."""


@dataclass(slots=True)
class LostCall:
    """The stored state of a call whose server was killed."""

    record: CallRecord
    end_attempts: int
    """How often its end function was begun."""
    sequence: int
    """The number of its last metric."""
    written: dict[int, str]
    """Numbers and names of the metrics that an attempt of the end function wrote before it was killed."""
    alive_at: str
    """The last time at which its server was certainly alive, in ISO 8601; empty: none is known."""

    def next_sequence(self, name: str) -> int:
        """Return the number of a metric that the end function writes now.

        It is the one that the killed attempt used for a metric of the same name, so that the metric is stored once.
        """
        for sequence, written in self.written.items():
            if written == name:
                del self.written[sequence]
                return sequence
        self.sequence += 1
        return self.sequence


class Store:
    """Writes calls and metrics, from the event loop. What `redaction` removes never reaches the disk."""

    def __init__(self, path: Path, *, redaction: Redaction | None = None, outbox: bool = False) -> None:
        """Open or create the store at `path`. Raises `UserError` if that fails, except for a full or failing disk."""
        self.path = path
        self._redaction = redaction
        self._outbox = outbox
        self.owner = owner_of(os.getpid())
        """The name of this process in the rows of the calls that it holds."""
        try:
            self._connect().close()
        except (OSError, sqlite3.Error) as error:
            # A full or failing disk is no reason to refuse calls: their records wait in the spool.
            if not _is_temporary(error, path):
                raise UserError(f"records.path '{path}' cannot be opened: {error}; name another file") from None
            log.error("store_not_opened", path=str(path), error=str(error))
        self._writes: queue.Queue[_Write | None] = queue.Queue(_MAX_QUEUED)
        # One thread does all writes: SQLite has one writer at a time anyway, and writes keep their order.
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def opened(self, record: CallRecord, *, owner: str | None = None) -> None:
        """Write that a call exists. `owner` is the process that holds it; None: this one."""
        await self._put_call(record, self.owner if owner is None else owner)

    async def progressed(self, record: CallRecord) -> None:
        """Write what is known of a call so far, which remains if this server is killed."""
        await self._put_call(record, self.owner)

    async def metric(self, call_id: str, sequence: int, name: str, value: object, *, at: str | None = None) -> None:
        """Write a metric; `at` is the time of an earlier attempt. If it is written twice, it is stored once."""

        def write(connection: sqlite3.Connection) -> None:
            redacted = self._redaction.value(value) if self._redaction else value
            connection.execute(_METRIC, (call_id, sequence, name, json_text(redacted), at or now_text()))
            self.add_outbox_line(connection, "metric", call_id, sequence)

        await self.write(write)

    async def end_attempted(self, call_id: str, attempt: int) -> None:
        """Write that the end function is about to start for the `attempt`-th time."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_ATTEMPT, (attempt, call_id))
            self.add_outbox_line(connection, "call", call_id)

        await self.write(write)

    async def ended(self, record: CallRecord) -> None:
        """Write the final record of a call that is over."""
        await self._put_call(record, self.owner)

    async def claim_lost(self) -> list[LostCall]:
        """Return the calls that killed servers left open, and make this server their owner, which has to end them."""
        lost: list[LostCall] = []

        def write(connection: sqlite3.Connection) -> None:
            found = connection.execute("SELECT id, owner, record, end_attempts FROM calls WHERE ended_at IS NULL")
            # A write may run twice: the second run begins with an empty list.
            lost.clear()
            for call_id, owner, text, attempts in found.fetchall():
                if owner and owner == owner_of(int(owner.partition(":")[0])):
                    continue
                metrics = connection.execute(_METRICS_OF, (call_id,)).fetchall()
                alive_at = max([_heartbeat_text(self.path, owner or ""), *(row[3] for row in metrics)])
                lost.append(_make_lost_call(CallRecord.from_json(parse_object(text)), attempts, metrics, alive_at))
                connection.execute("UPDATE calls SET owner = ? WHERE id = ?", (self.owner, call_id))

        await self.write(write)
        return lost

    async def close(self) -> None:
        """Write what is queued, then stop. If the disk stalls, stop after `_CLOSING_SECONDS`."""
        await asyncio.to_thread(self._stop)

    async def probe(self) -> None:
        """Write something to the disk that changes nothing. Raises what the write of a call would raise."""
        await self.write(lambda connection: connection.execute(f"PRAGMA user_version = {tables.VERSION}"))

    async def write(self, action: Action) -> None:
        """Run `action` in the store's thread, in one transaction with other actions. It may run twice."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes.put_nowait(_Write(action, future))
        await future

    def add_outbox_line(self, connection: sqlite3.Connection, kind: str, call_id: str, sequence: int = 0) -> None:
        """Add a line to the outbox, within a write. `kind` is `call`, `metric` or `deletion`."""
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
            # The final record is stored already: this is an older one, which had to wait.
            return
        number, words = row
        # An FTS5 table has no upsert. The row of the words has the same number as that of the call.
        connection.execute("DELETE FROM calls_words WHERE rowid = ?", (number,))
        connection.execute("INSERT INTO calls_words (rowid, words) VALUES (?, ?)", (number, words))
        call_id = text_at(data, "id")
        connection.execute("DELETE FROM turns WHERE call_id = ?", (call_id,))
        connection.executemany(_TURN, turn_rows(data))
        self.add_outbox_line(connection, "call", call_id)

    def _redact_metrics(self, connection: sqlite3.Connection, data: JsonObject) -> None:
        """Remove the values of entities from the call's metrics.

        A metric is written at once; that it holds the value of an entity may be known only later.
        """
        if self._redaction is None:
            return
        redaction = self._redaction.with_entities(object_at(data, "entities"))
        if redaction is self._redaction:
            return
        call_id = text_at(data, "id")
        rows = connection.execute("SELECT sequence, value FROM metrics WHERE call_id = ?", (call_id,)).fetchall()
        for sequence, text in rows:
            redacted = json_text(redaction.value(parse_json(text)))
            if redacted != text:
                key = (call_id, sequence)
                connection.execute("UPDATE metrics SET value = ? WHERE call_id = ? AND sequence = ?", (redacted, *key))
                self.add_outbox_line(connection, "metric", *key)

    def _rewrite_calls(self, connection: sqlite3.Connection) -> None:
        """Write the calls of a store of version 1, which had neither words nor turns, into the present tables."""
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
                self._rewrite_calls(connection)
            # The connection stays open, unless something above has failed.
            stack.pop_all()
        return connection

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while batch := self._next_batch():
            connection, failure = self._commit(connection, batch)
            if failure is None or len(batch) == 1 or connection is None:
                _settle(batch, failure)
                continue
            # At least one write failed: each gets a transaction of its own, so that the others are stored.
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
        """Return the waiting writes, `_BATCH` at most; wait for the first one. An empty list: the store is closed."""
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
            # An action may raise anything, for bad data too. The error goes to those who await the writes; it must not
            # end the thread, which writes for all calls.
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


def _is_temporary(error: Exception, path: Path) -> bool:
    """Return whether `error` comes from a disk or a lock, which may work later, and not from the settings."""
    if isinstance(error, sqlite3.Error):
        # The low octet is the primary code; the rest of an extended code gives details.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code != sqlite3.SQLITE_READONLY:
            return code in _TEMPORARY_ERRORS
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError as refusal:
            return refusal.errno == errno.EROFS
        return False
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def _settle(batch: Sequence[_Write], failure: Exception | None) -> None:
    def settle(done: asyncio.Future[None]) -> None:
        # The task that waited may have been cancelled.
        if done.done():
            return
        if failure:
            done.set_exception(failure)
        else:
            done.set_result(None)

    for write in batch:
        # `RuntimeError` is raised if the loop is closed: then nobody waits any more.
        with suppress(RuntimeError):
            write.done.get_loop().call_soon_threadsafe(settle, write.done)


def _make_lost_call(
    record: CallRecord, attempts: int, metrics: Sequence[tuple[int, str, str, str]], alive_at: str
) -> LostCall:
    last = max((row[0] for row in metrics), default=0)
    if record.end_reason is None:
        record.metrics = [{"name": name, "value": parse_json(value)} for _, name, value, _ in metrics]
        return LostCall(record, attempts, last, {}, alive_at)
    # The record is from before the end function: metrics that it lacks were written by an attempt of that function.
    written = {sequence: name for sequence, name, *_ in metrics if sequence > len(record.metrics)}
    return LostCall(record, attempts, last, written, alive_at)


def owner_of(process: int) -> str:
    """Return a name for a process: its id and its start time, because the kernel uses ids again."""
    try:
        # The fields after the program's name are split: the name may hold spaces and parentheses. The start time, in
        # clock ticks since boot, is field 22 of all (proc_pid_stat(5)).
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return f"{process}:"
    return f"{process}:{fields[19]}"


def now_text() -> str:
    """Return the present time in the form that records have (ISO 8601)."""
    return _iso(datetime.now(UTC))


def _heartbeat_text(path: Path, owner: str) -> str:
    moment = last_heartbeat(path, owner) if owner else None
    return "" if moment is None else _iso(moment)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def leave_heartbeat(store: Path, owner: str) -> None:
    """Touch the heartbeat file of the process `owner` beside the store. Blocks. Raises `OSError`."""
    _heartbeat_file(store, owner).touch(mode=0o600)


def last_heartbeat(store: Path, owner: str) -> datetime | None:
    """Return the last time at which that process was certainly alive; None: it has no heartbeat file. Blocks."""
    try:
        return datetime.fromtimestamp(_heartbeat_file(store, owner).stat().st_mtime, UTC)
    except OSError:
        return None


def remove_heartbeat(store: Path, owner: str) -> None:
    """Remove the heartbeat file of a process whose calls have been ended. Blocks. Raises `OSError`."""
    _heartbeat_file(store, owner).unlink(missing_ok=True)


def heartbeat_owners(store: Path) -> list[str]:
    """Return the processes that have heartbeat files beside the store. Blocks."""
    names = (path.name.rpartition(_ALIVE_MARK)[2] for path in store.parent.glob(f"{store.name}{_ALIVE_MARK}*"))
    return [":".join(name.split("-", 1)) for name in names if name.partition("-")[0].isdigit()]


def _heartbeat_file(store: Path, owner: str) -> Path:
    return store.with_name(f"{store.name}{_ALIVE_MARK}{owner.replace(':', '-')}")
