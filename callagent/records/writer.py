"""Write the records of calls so that no call waits for a disk and nothing is lost while the store fails.

An entry is written to the store. If the store fails, or takes longer than `SPOOL_AFTER`, the entry goes to the backlog
in memory and to the spool, a file elsewhere, and the call goes on. While the store fails, entries go there at once, and
the store is tried every second; when it works again the backlog is applied in order and the spool is removed.

Every entry has a key in the store: a record the id of its call, a metric this id and a sequence number. An entry that
is written twice, because a write was only late or because a killed server had spooled it, is therefore stored once.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from callagent.json_values import JsonObject, object_at
from callagent.log import get_logger
from callagent.records.call_record import CallRecord
from callagent.records.privacy import Redaction
from callagent.records.spool import Spool, UnknownFormat
from callagent.records.store import BEAT_SECONDS, Store, leave_heartbeat, now_text, remove_heartbeat

log = get_logger(__name__)

T = TypeVar("T")

MAX_BYTES: Final = 16 << 20
"""Bytes of the backlog in memory, by the size that its entries have in the spool."""
MAX_ENTRIES: Final = 20_000
"""Entries of the backlog."""
SPOOL_AFTER: Final = 0.05
"""Seconds that a write may take before its entry is spooled as well, and the call no longer waits for the write."""
SPOOL_SECONDS: Final = 0.8
"""Seconds that a call waits for the spool to take its entry. Then the spool stalls: the call goes on with its entry in
memory, and no call waits for the spool until it has dealt with an entry again."""
LATE_SECONDS: Final = 2.0
"""A write that takes longer means that the store fails."""
RETRY_SECONDS: Final = 1.0
"""Time between two attempts to write to a store that fails."""
REPLAY_SECONDS: Final = 30.0
"""Seconds that the store has to take the `_BATCH` entries that are replayed at a time."""
_BATCH: Final = 100
_CLOSING_SECONDS: Final = 5.0
"""Time to write what waits when the server stops."""
_MAX_SPOOLING: Final = 2_000
"""Entries on their way to the spool; with more of them the spool stalls, and further entries stay in memory."""
_ENTRY_BYTES: Final = 200
"""Estimated bytes that an entry has in the spool besides its content."""
# An entry that fails with one of these would fail again: its data is wrong, not the disk.
_BAD_DATA: Final = (
    *(TypeError, ValueError, KeyError, RecursionError),
    *(sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError),
)


class EntryKind(Enum):
    """What an entry holds."""

    SNAPSHOT = "snapshot"
    """A call's record before its end; a later one, or the final one, has all of it and more."""
    ENDED = "ended"
    """A call's final record."""
    METRIC = "metric"
    END_ATTEMPT = "end_attempt"
    """The number of the attempt at the end function that is about to start."""


@dataclass(slots=True, eq=False)
class Entry:
    """One write for a call: its record, a metric, or an attempt of its end function."""

    kind: EntryKind
    call_id: str
    number: int = 0
    """The metric's place in its call, or the attempt's number."""
    name: str = ""
    value: object = None
    """The metric's value."""
    record: CallRecord | None = None
    at: str = field(default_factory=now_text)
    owner: str = ""
    """The process that holds the call, if the entry comes from the spool."""
    size: int = 0
    """Bytes; an estimate until the spool has encoded the entry."""
    spooled: bool = False
    """Whether the spool has the entry, too."""
    place: int = -1
    """Its place in the backlog's order. The entry waits only as long as no newer one has replaced it at this place."""

    def to_json(self, redaction: Redaction | None, owner: str) -> dict[str, object]:
        """Return the entry as the spool keeps it, redacted; `owner` is the process that holds the call."""
        shared: dict[str, object] = {
            # The id stays the same however often the entry is written.
            "id": f"{self.call_id}/{self.kind.value}/{self.number}",
            "kind": self.kind.value,
            "at": self.at,
            "call": self.call_id,
            "owner": owner,
        }
        if self.record is not None:
            data = self.record.to_json()
            return {**shared, "record": redaction.record(data) if redaction else data}
        value = redaction.value(self.value) if redaction else self.value
        return {**shared, "number": self.number, "name": self.name, "value": value}

    @classmethod
    def from_json(cls, data: JsonObject) -> Entry:
        """Return the entry of which `to_json` returned `data`. Raises `KeyError`, `TypeError` or `ValueError`."""
        kind, call_id, at = EntryKind(data["kind"]), str(data["call"]), str(data["at"])
        if kind in (EntryKind.SNAPSHOT, EntryKind.ENDED):
            record = CallRecord.from_json(object_at(data, "record"))
            return cls(kind, call_id, record=record, at=at, owner=str(data["owner"]))
        return cls(kind, call_id, int(str(data["number"])), str(data["name"]), data["value"], at=at)


class Backlog:
    """Entries that wait for the store.

    Beyond its bounds the oldest are dropped: first those that the spool has, then snapshots, then any.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: dict[int, Entry] = {}
        self._places: dict[str, int] = {}
        """The place of each call's record that waits."""
        self._snapshots: dict[int, None] = {}
        """Places of snapshots, the oldest first."""
        self._next = 0
        self._bytes = 0
        self.lost = 0
        """Entries, except snapshots, that neither memory nor spool could hold, or whose data no store accepts."""
        self.evicted = False
        """Whether some entries are in the spool only, because memory had no room for them."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Add an entry at the end, or in place of an older record of its call.

        A record keeps that place because the call's row has to be written before its metrics.
        """
        older = self._places.get(entry.call_id) if entry.record is not None else None
        if older is not None:
            self._bytes -= self._entries[older].size
            self._snapshots.pop(older, None)
            entry.place = older
        else:
            entry.place, self._next = self._next, self._next + 1
        if entry.record is not None:
            self._places[entry.call_id] = entry.place
        if entry.kind is EntryKind.SNAPSHOT:
            self._snapshots[entry.place] = None
        self._entries[entry.place] = entry
        self._bytes += entry.size
        self._make_room()

    def note_size(self, entry: Entry, size: int, *, spooled: bool) -> None:
        """Note the true size of `entry` in bytes, and whether the spool has it."""
        if self._entries.get(entry.place) is entry:
            self._bytes += size - entry.size
        entry.size, entry.spooled = size, spooled
        self._make_room()

    def discard(self, entry: Entry) -> None:
        """Remove `entry`, which the store has taken or never will. A newer record of its call stays."""
        if self._entries.get(entry.place) is entry:
            self._remove(entry.place)

    def oldest(self, count: int) -> list[Entry]:
        """Return the oldest entries, `count` at most."""
        return list(islice(self._entries.values(), count))

    def _make_room(self) -> None:
        while self._entries and (self._bytes > self._max_bytes or len(self._entries) > self._max_entries):
            place = self._place_to_drop()
            if self._entries[place].spooled:
                self.evicted = True
            elif self._entries[place].kind is not EntryKind.SNAPSHOT:
                self.lost += 1
            self._remove(place)

    def _place_to_drop(self) -> int:
        """Return the place of the entry that is dropped next."""
        first = next(iter(self._entries))
        if self._entries[first].spooled:
            return first
        return next(iter(self._snapshots), first)

    def _remove(self, place: int) -> None:
        entry = self._entries.pop(place)
        self._snapshots.pop(place, None)
        self._bytes -= entry.size
        if self._places.get(entry.call_id) == place:
            del self._places[entry.call_id]


async def _write_entry(store: Store, entry: Entry, *, late: bool = False, claimed: bool = False) -> None:
    """Write `entry` to the store. Raises whatever the store raises.

    Args:
        entry: what is to be written.
        late: whether an earlier attempt failed, so that a metric gets the entry's time and not the present one.
        claimed: whether the entry comes from the spool of a server that has ended.
    """
    match entry.kind, entry.record:
        case EntryKind.SNAPSHOT, CallRecord() as record:
            # The ended server stays the owner, so that `Store.claim_lost` finds the call, which is then ended.
            await store.opened(record, **({"owner": entry.owner} if claimed else {}))
        case EntryKind.ENDED, CallRecord() as record:
            await store.ended(record)
        case EntryKind.METRIC, _:
            when = {"at": entry.at} if late else {}
            await store.metric(entry.call_id, entry.number, entry.name, entry.value, **when)
        case EntryKind.END_ATTEMPT, _:
            await store.end_attempted(entry.call_id, entry.number)


class RecordWriter:
    """Writes records and metrics of calls to the store or, while it fails, to the spool; used on the event loop.

    No method raises because of the store or the spool, and none waits for long.
    """

    def __init__(self, store: Store, spool: Spool, redaction: Redaction | None = None) -> None:
        self.store = store
        self.failing: str | None = None
        """The reason why the store fails; None: it works."""
        self.spool_failing: str | None = None
        """The reason why the spool fails; None: it works, or nothing was to be spooled."""
        self.backlog = Backlog()
        self._spool = spool
        self._redaction = redaction
        # The heartbeat has a thread of its own, so that a spool that stalls does not delay it.
        self._spool_thread = _Thread("spool")
        self._heartbeat_thread = _Thread("heartbeat")
        self._spooling = 0
        """Entries on their way to the spool."""
        self._spool_stalls = False
        """Whether the spool took too long for an entry and has not dealt with one since: no call waits for it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._replay_task: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._claimed_files: list[Path] = []
        self._working = asyncio.Event()
        self._working.set()

    async def start(self) -> None:
        """Start the heartbeat, and write what killed servers left in the spool, if the store takes it now."""
        self._heartbeat_task = asyncio.create_task(self._beat(), name="heartbeat")
        try:
            self._claimed_files = await self._spool_thread.run(self._spool.claim)
        except OSError as error:
            log.error("spool_not_read", error=str(error))
        if self._claimed_files:
            why = await self._replay()
            if why is not None:
                self._fail(why)

    async def wait_until_working(self) -> None:
        """Wait until the store works and has every entry that waited for it."""
        await self._working.wait()

    # What calls write -------------------------------------------------------------------------------------------------

    async def opened(self, record: CallRecord) -> None:
        """Write that a call exists. Returns at once."""
        self._start_write(Entry(EntryKind.SNAPSHOT, record.id, record=record))

    def progressed(self, record: CallRecord) -> None:
        """Write what is known of a call so far. Returns at once."""
        self._start_write(Entry(EntryKind.SNAPSHOT, record.id, record=record))

    async def metric(self, call_id: str, sequence: int, name: str, value: object) -> None:
        """Write a metric. On return it is on a disk, the store's or the spool's, unless both stall or fail."""
        await self._start_write(Entry(EntryKind.METRIC, call_id, sequence, name, value))

    async def end_attempted(self, call_id: str, attempt: int) -> None:
        """Write that the end function is about to start for the `attempt`-th time; as safe on return as a metric."""
        await self._start_write(Entry(EntryKind.END_ATTEMPT, call_id, attempt))

    async def ended(self, record: CallRecord) -> None:
        """Write the final record of a call that is over; as safe on return as a metric."""
        await self._start_write(Entry(EntryKind.ENDED, record.id, record=record))

    def _start_write(self, entry: Entry) -> asyncio.Task[None]:
        # The write is a task of its own, so that it goes on if the call that waits for it is cancelled.
        return self._run(self._store_or_spool(entry))

    async def _store_or_spool(self, entry: Entry) -> None:
        if self.failing is None:
            writing = self._run(_write_entry(self.store, entry))
            await asyncio.wait({writing}, timeout=SPOOL_AFTER)
            if writing.done() and self._finish_write(entry, writing):
                return
            if not writing.done():
                late = asyncio.get_running_loop().call_later(LATE_SECONDS, self._fail, "a write takes too long")
                writing.add_done_callback(lambda _: late.cancel())
                writing.add_done_callback(partial(self._finish_write, entry))
        await self._add_to_backlog(entry)

    def _finish_write(self, entry: Entry, writing: asyncio.Task[None]) -> bool:
        """Note how a write ended; return False if `entry` has to be written again."""
        if writing.cancelled():
            return False
        error = writing.exception()
        if error is not None and not isinstance(error, _BAD_DATA):
            self._fail(_error_text(error))
            return False
        if error is not None:
            self._count_lost(entry, error)
        self._discard(entry)
        return True

    def _count_lost(self, entry: Entry, error: BaseException) -> None:
        """Count and log an entry whose data the store will never accept."""
        self.backlog.lost += 1
        log.error("record_not_kept", call=entry.call_id, kind=entry.kind.value, error=_error_text(error))

    def _discard(self, entry: Entry) -> None:
        """Remove an entry from the backlog; when nothing waits any more, remove the spool's file."""
        before = len(self.backlog)
        self.backlog.discard(entry)
        if before and not self.backlog and not self.backlog.evicted:
            self._run(self._clear())

    # The backlog and the spool ----------------------------------------------------------------------------------------

    async def _add_to_backlog(self, entry: Entry) -> None:
        """Add an entry that the store has not taken to the backlog and the spool; wait for the spool, but not long."""
        data: object = entry.value
        if entry.record is not None:
            # The record is copied, because the call goes on to change it.
            copied = entry.record.to_json()
            entry.record, data = CallRecord.from_json(copied), copied
        # The size is estimated until the spool has encoded the entry, which may be never.
        entry.size = _ENTRY_BYTES + len(repr(data))
        self.backlog.add(entry)
        if self._spooling >= _MAX_SPOOLING:
            return
        self._spooling += 1
        appending = self._run(self._append(entry))
        if not self._spool_stalls:
            _, pending = await asyncio.wait({appending}, timeout=SPOOL_SECONDS)
            self._spool_stalls = bool(pending)

    async def _append(self, entry: Entry) -> None:
        try:
            size = await self._spool_thread.run(partial(self._append_to_spool, entry))
        except OSError as error:
            if self.spool_failing is None:
                log.error("spool_failing", spool=str(self._spool.path), error=str(error))
            self.spool_failing = str(error)
            self.backlog.note_size(entry, entry.size, spooled=False)
        except _BAD_DATA as error:
            # The entry stays in memory for the store, which will refuse it as well and count it as lost.
            log.error("record_not_spooled", call=entry.call_id, error=_error_text(error))
        else:
            if self.spool_failing is not None:
                log.warning("spool_works_again", spool=str(self._spool.path))
            self.spool_failing = None
            self.backlog.note_size(entry, size, spooled=True)
        finally:
            self._spooling -= 1
            self._spool_stalls = False

    def _append_to_spool(self, entry: Entry) -> int:
        """Redact and append an entry, in the spool's thread so that the loop does not wait; return its bytes."""
        return self._spool.append(entry.to_json(self._redaction, self.store.owner))

    async def _clear(self) -> None:
        with suppress(OSError):
            await self._spool_thread.run(self._spool.clear)

    # When the store fails ---------------------------------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        if self.failing is None:
            log.error("store_failing", store=str(self.store.path), error=why, spool=str(self._spool.path))
            self._working.clear()
            self._replay_task = self._run(self._replay_until_it_works())
        self.failing = why

    async def _replay_until_it_works(self) -> None:
        began = asyncio.get_running_loop().time()
        lost = self.backlog.lost
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            why = await self._replay()
            if why is not None:
                self.failing = why
            elif not self.backlog:
                break
        self.failing = None
        self._working.set()
        seconds = round(asyncio.get_running_loop().time() - began, 1)
        log.warning("store_works_again", store=str(self.store.path), seconds=seconds, lost=self.backlog.lost - lost)

    async def _replay(self) -> str | None:
        """Write all waiting entries, in their order. Return why that was not possible; None: it is done."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                await self.store.probe()
            seconds = loop.time() - began
            await self._apply_everything()
        except TimeoutError:
            return "a write takes too long"
        except Exception as error:
            # The store raises whatever a write raises. Nothing is lost: the entries still wait for the next attempt.
            return _error_text(error)
        await self._clear()
        # A store that takes seconds for a write that changes nothing would keep calls waiting.
        return None if seconds < LATE_SECONDS else f"a write takes {seconds:.1f} s"

    async def _apply_everything(self) -> None:
        while self._claimed_files:
            await self._apply_file(self._claimed_files[0], claimed=True)
            self._claimed_files.pop(0)
        while self.backlog or self.backlog.evicted:
            if self.backlog.evicted:
                # Some entries are in the spool only. Those in memory are written after them; twice changes nothing.
                await self._apply_evicted()
            await self._apply(self.backlog.oldest(_BATCH))

    async def _apply_evicted(self) -> None:
        # The flag is reset before the file is read: entries that are evicted meanwhile set it again.
        self.backlog.evicted, applied = False, False
        try:
            await self._apply_file(self._spool.path)
            applied = True
        finally:
            self.backlog.evicted |= not applied

    async def _apply_file(self, path: Path, *, claimed: bool = False) -> None:
        """Write the entries of a spool file; a `claimed` one is removed after that. Raises what the store raises."""
        offset, damaged, applied = 0, 0, 0
        while True:
            try:
                found, end, bad = await self._spool_thread.run(partial(self._spool.read, path, offset))
            except FileNotFoundError:
                return
            except UnknownFormat as error:
                log.error("spool_not_read", spool=str(path), error=str(error))
                return
            damaged += bad
            if end == offset:
                break
            entries = []
            for one in found:
                try:
                    entries.append(Entry.from_json(one))
                except (KeyError, TypeError, ValueError):
                    damaged += 1
            for at in range(0, len(entries), _BATCH):
                await self._apply(entries[at : at + _BATCH], claimed=claimed)
            applied, offset = applied + len(entries), end
        log.info("spool_applied", spool=str(path), entries=applied, damaged=damaged)
        if claimed:
            await self._spool_thread.run(partial(path.unlink, missing_ok=True))

    async def _apply(self, entries: list[Entry], *, claimed: bool = False) -> None:
        """Write entries in their order. Raises what the store raises; the entries before the failed one are removed."""
        async with asyncio.timeout(REPLAY_SECONDS):
            writing = [_write_entry(self.store, entry, late=True, claimed=claimed) for entry in entries]
            results = await asyncio.gather(*writing, return_exceptions=True)
        for entry, result in zip(entries, results, strict=True):
            if isinstance(result, _BAD_DATA):
                self._count_lost(entry, result)
            elif isinstance(result, BaseException):
                raise result
            self.backlog.discard(entry)

    async def _beat(self) -> None:
        """Touch the heartbeat file every second: its time tells the next server until when this one's calls lasted."""
        while True:
            # If it cannot be touched, the next server knows only the times in the records of the calls.
            with suppress(OSError):
                await self._heartbeat_thread.run(partial(leave_heartbeat, self.store.path, self.store.owner))
            await asyncio.sleep(BEAT_SECONDS)

    # The end ----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Write what waits, if the store takes it within some seconds; the rest is in the spool for the next start."""
        for task in (self._replay_task, self._heartbeat_task):
            if task is not None:
                task.cancel()
        try:
            async with asyncio.timeout(_CLOSING_SECONDS):
                while running := {task for task in self._tasks if task is not asyncio.current_task()}:
                    await asyncio.wait(running)
                if self.backlog or self.backlog.evicted:
                    await self._replay()
        except TimeoutError:
            pass
        if self.backlog or self.backlog.evicted:
            log.error("records_left_in_spool", spool=str(self._spool.path), entries=len(self.backlog))
        else:
            # Otherwise the heartbeat file stays: the next server needs it for the calls that are left.
            with suppress(OSError):
                remove_heartbeat(self.store.path, self.store.owner)
        for task in self._tasks:
            task.cancel()
        self._spool_thread.close(self._spool.close)
        self._heartbeat_thread.close(lambda: None)

    def _run(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Thread:
    """A thread that a stalled disk may block: unlike an executor's threads, it does not delay the server's end."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` after those before it. Raises what it raises."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put(partial(_run_job, job, done))
        return await done

    def close(self, last: Callable[[], None]) -> None:
        """Run `last`, then end. Returns at once."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._jobs.put(partial(_run_job, last, done))
        self._jobs.put(None)

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            run()


def _run_job(job: Callable[[], T], done: asyncio.Future[T]) -> None:
    try:
        settle = partial(_set_result, done, job())
    except Exception as error:
        # Whatever a job raises, its awaiter is told, and the thread goes on to the next one.
        settle = partial(_set_failure, done, error)
    # `RuntimeError` is raised if the loop is closed: then nobody waits any more.
    with suppress(RuntimeError):
        done.get_loop().call_soon_threadsafe(settle)


def _set_result(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _set_failure(done: asyncio.Future[T], failure: Exception) -> None:
    if not done.done():
        done.set_exception(failure)


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__
