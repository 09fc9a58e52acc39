"""Write the records of calls so that no call waits for a disk and nothing is lost while the store fails.

An entry goes to the store. Where the store has refused it, or has not taken it within `SPOOL_AFTER`, it goes to the
backlog in memory and to the spool in a second place, and the call goes on. While the store fails, entries go there at
once, and the store is tried every second; when it works again the backlog is applied in order and the spool removed.
Every entry has a key in the store (a call's record by its call, a metric by call and sequence), so an entry that comes
twice, by a write that was only late or from the spool of a killed server, is there once.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from callagent.log import get_logger
from callagent.records.heartbeat import BEAT_SECONDS, leave_heartbeat, remove_heartbeat
from callagent.records.redaction import Redaction
from callagent.records.spool import Spool, UnknownFormat
from callagent.records.store import Store, now_text
from callagent.records.types import CallRecord

MAX_BYTES: Final = 16 << 20
"""Of the entries as the spool writes them."""
MAX_ENTRIES: Final = 20_000


class EntryKind(Enum):
    SNAPSHOT = "snapshot"
    """A call's record before its end: a later one, or the final one, says all of it."""
    ENDED = "ended"
    """A call's final record."""
    METRIC = "metric"
    END_ATTEMPT = "end_attempt"


@dataclass(slots=True, eq=False)
class Entry:
    """One thing that a call leaves behind."""

    kind: EntryKind
    call_id: str
    number: int = 0
    """The metric's place in its call, or the attempt's number."""
    name: str = ""
    value: Any = None
    record: CallRecord | None = None
    at: str = field(default_factory=now_text)
    owner: str = ""
    """The process that holds the call, where the entry is from the spool."""
    size: int = 0
    """Bytes, about, until it is encoded."""
    spooled: bool = False
    """Whether the spool has it too."""
    place: int = -1
    """In the backlog's order; it waits where the backlog has it at this place."""

    def to_json(self) -> dict[str, Any]:
        """For the spool. `id` is the same however often the entry is written."""
        shared = {"id": f"{self.call_id}/{self.kind.value}/{self.number}", "kind": self.kind.value, "at": self.at}
        if self.record is not None:
            return {**shared, "call": self.call_id, "record": self.record.to_json()}
        return {**shared, "call": self.call_id, "number": self.number, "name": self.name, "value": self.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Entry:
        """Raises `KeyError`, `TypeError` or `ValueError` for what `to_json` did not give."""
        kind, call_id, at = EntryKind(data["kind"]), str(data["call"]), str(data["at"])
        if kind in (EntryKind.SNAPSHOT, EntryKind.ENDED):
            return cls(kind, call_id, record=CallRecord.from_json(data["record"]), at=at, owner=data["owner"])
        return cls(kind, call_id, int(data["number"]), str(data["name"]), data["value"], at=at)


class Backlog:
    """Entries that wait for the store.

    Beyond its bounds the oldest are dropped: first those that the spool has, then snapshots, then any.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: dict[int, Entry] = {}
        self._places: dict[str, int] = {}
        """Call -> where its record waits."""
        self._snapshots: dict[int, None] = {}
        """Places of snapshots, the oldest first."""
        self._next = 0
        self._bytes = 0
        self.lost = 0
        """Entries that neither place could hold, or that no store will ever take; not snapshots."""
        self.evicted = False
        """Whether some entries are in the spool only."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Let `entry` wait. A call's record takes the place of an older one: its metrics come after its row."""
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

    def encoded(self, entry: Entry, size: int, *, spooled: bool) -> None:
        """`entry` takes so many bytes, and the spool has it or has not."""
        if self._entries.get(entry.place) is entry:
            self._bytes += size - entry.size
        entry.size, entry.spooled = size, spooled
        self._make_room()

    def discard(self, entry: Entry) -> None:
        """`entry` is in the store, or is not to be. A newer record of its call stays."""
        if self._entries.get(entry.place) is entry:
            self._remove(entry.place)

    def first(self, count: int) -> list[Entry]:
        return list(islice(self._entries.values(), count))

    def _make_room(self) -> None:
        while self._entries and (self._bytes > self._max_bytes or len(self._entries) > self._max_entries):
            place = self._victim()
            if self._entries[place].spooled:
                self.evicted = True
            elif self._entries[place].kind is not EntryKind.SNAPSHOT:
                self.lost += 1
            self._remove(place)

    def _victim(self) -> int:
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


log = get_logger(__name__)

T = TypeVar("T")

SPOOL_AFTER: Final = 0.05
"""Seconds that a write may take before its entry is spooled as well; whoever waits for it waits no longer."""
SPOOL_SECONDS: Final = 0.8
"""For the spool to take an entry; then it is in memory only until the spool has it, and nobody waits for the spool
until it moves again."""
LATE_SECONDS: Final = 2.0
"""A write that takes longer says that the store fails."""
RETRY_SECONDS: Final = 1.0
REPLAY_SECONDS: Final = 30.0
"""For the store to take as many entries as are replayed at a time."""
_BATCH: Final = 100
_CLOSING_SECONDS: Final = 5.0
_MAX_SPOOLING: Final = 2_000
"""Entries on their way to the spool; with more the spool stalls, and entries stay in memory."""
_OWN_BYTES: Final = 200
"""Of an entry beside what it holds."""
# An entry that fails with one of these would fail again: it is no fault of the disk.
_BAD_DATA: Final = (
    *(TypeError, ValueError, KeyError, RecursionError),
    *(sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError),
)


class RecordWriter:
    """All on the event loop. No method raises because of the store or the spool, and none waits for long."""

    def __init__(self, store: Store, spool: Spool, redaction: Redaction | None = None) -> None:
        self.store = store
        self.failing: str | None = None
        """Why the store fails; None: it works."""
        self.spool_failing: str | None = None
        """Why the spool fails; None: it works, or nothing was to be spooled."""
        self.backlog = Backlog()
        self._spool = spool
        self._redaction = redaction
        self._thread = _Thread("spool")
        self._heart = _Thread("heartbeat")
        self._spooling = 0
        self._spool_stalls = False
        """Whether the spool has kept somebody waiting, and has not moved since: nobody waits for it."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._replaying: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._claimed: list[Path] = []
        self._working = asyncio.Event()
        self._working.set()

    async def start(self) -> None:
        """Apply what killed servers have left in the spool, as far as the store takes it now."""
        self._beating = asyncio.create_task(self._beat(), name="heartbeat")
        try:
            self._claimed = await self._thread.run(self._spool.claim)
        except OSError as error:
            log.error("spool_not_read", error=str(error))
        if self._claimed:
            why = await self._replay()
            if why is not None:
                self._fail(why)

    async def works(self) -> None:
        """Wait until the store has everything that was before."""
        await self._working.wait()

    # What calls write -------------------------------------------------------------------------------------------------

    async def opened(self, record: CallRecord) -> None:
        """The call exists. Returns at once."""
        self._begin(Entry(EntryKind.SNAPSHOT, record.id, record=record))

    def progressed(self, record: CallRecord) -> None:
        """What is known so far."""
        self._begin(Entry(EntryKind.SNAPSHOT, record.id, record=record))

    async def metric(self, call_id: str, sequence: int, name: str, value: Any) -> None:
        """Durable on return, in the store or in the spool, unless both stall or fail."""
        await self._begin(Entry(EntryKind.METRIC, call_id, sequence, name, value))

    async def end_attempted(self, call_id: str, attempt: int) -> None:
        """The end function is about to start for the `attempt`-th time."""
        await self._begin(Entry(EntryKind.END_ATTEMPT, call_id, attempt))

    async def ended(self, record: CallRecord) -> None:
        """The call is over; the record is final."""
        await self._begin(Entry(EntryKind.ENDED, record.id, record=record))

    def _begin(self, entry: Entry) -> asyncio.Task[None]:
        # A task of its own: a caller that stops waiting does not take the entry back.
        return self._run(self._keep(entry))

    async def _keep(self, entry: Entry) -> None:
        if self.failing is None:
            writing = self._run(self._write(entry))
            await asyncio.wait({writing}, timeout=SPOOL_AFTER)
            if writing.done() and self._settled(entry, writing):
                return
            if not writing.done():
                late = asyncio.get_running_loop().call_later(LATE_SECONDS, self._fail, "a write takes too long")
                writing.add_done_callback(lambda _: late.cancel())
                writing.add_done_callback(partial(self._settled, entry))
        await self._retain(entry)

    def _settled(self, entry: Entry, writing: asyncio.Task[None]) -> bool:
        """Whether nothing more is to be done for `entry` after its write."""
        if writing.cancelled():
            return False
        error = writing.exception()
        if error is not None and not isinstance(error, _BAD_DATA):
            self._fail(_text(error))
            return False
        if error is not None:
            self._refuse(entry, error)
        self._stored(entry)
        return True

    def _refuse(self, entry: Entry, error: BaseException) -> None:
        """No store will ever take `entry`."""
        self.backlog.lost += 1
        log.error("record_not_kept", call=entry.call_id, kind=entry.kind.value, error=_text(error))

    def _stored(self, entry: Entry) -> None:
        before = len(self.backlog)
        self.backlog.discard(entry)
        if before and not self.backlog and not self.backlog.evicted:
            self._run(self._clear())

    async def _write(self, entry: Entry, *, late: bool = False, claimed: bool = False) -> None:
        """Give `entry` to the store; `claimed`: it is of a server that is no more. Raises whatever the store raises."""
        match entry.kind, entry.record:
            case EntryKind.SNAPSHOT, CallRecord() as record:
                # A call that nobody holds is closed by `recover`.
                await self.store.opened(record, **({"owner": entry.owner} if claimed else {}))
            case EntryKind.ENDED, CallRecord() as record:
                await self.store.ended(record)
            case EntryKind.METRIC, _:
                when = {"at": entry.at} if late else {}
                await self.store.metric(entry.call_id, entry.number, entry.name, entry.value, **when)
            case EntryKind.END_ATTEMPT, _:
                await self.store.end_attempted(entry.call_id, entry.number)

    # The backlog and the spool ----------------------------------------------------------------------------------------

    async def _retain(self, entry: Entry) -> None:
        """Keep what the store has not taken; the spool is waited for, but not for long."""
        data = entry.value
        if entry.record is not None:
            # As it is now: the call goes on to change it.
            data = entry.record.to_json()
            entry.record = CallRecord.from_json(data)
        # About so much, until the spool has encoded it, which may be never.
        entry.size = _OWN_BYTES + len(repr(data))
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
            size = await self._thread.run(partial(self._encode, entry))
        except OSError as error:
            if self.spool_failing is None:
                log.error("spool_failing", spool=str(self._spool.path), error=str(error))
            self.spool_failing = str(error)
            self.backlog.encoded(entry, entry.size, spooled=False)
        except _BAD_DATA as error:
            # The store says so as well.
            log.error("record_not_spooled", call=entry.call_id, error=_text(error))
        else:
            if self.spool_failing is not None:
                log.warning("spool_works_again", spool=str(self._spool.path))
            self.spool_failing = None
            self.backlog.encoded(entry, size, spooled=True)
        finally:
            self._spooling -= 1
            self._spool_stalls = False

    def _encode(self, entry: Entry) -> int:
        data = {**entry.to_json(), "owner": self.store.owner}
        if self._redaction is not None and entry.record is not None:
            data["record"] = self._redaction.record(data["record"])
        elif self._redaction is not None:
            data["value"] = self._redaction.value(data["value"])
        return self._spool.append(data)

    async def _clear(self) -> None:
        with suppress(OSError):
            await self._thread.run(self._spool.clear)

    # When the store fails ---------------------------------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        if self.failing is None:
            log.error("store_failing", store=str(self.store.path), error=why, spool=str(self._spool.path))
            self._working.clear()
            self._replaying = self._run(self._replay_until_it_works())
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
        """Apply everything that waits, in its order; why that was not possible, None: it is done."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                await self.store.probe()
            seconds = loop.time() - began
            await self._apply_everything()
        except TimeoutError:
            return "it takes too long"
        except Exception as error:
            # The edge of the store: whatever it raises, it is tried again.
            return _text(error)
        await self._clear()
        return None if seconds < LATE_SECONDS else f"a write takes {seconds:.1f} s"

    async def _apply_everything(self) -> None:
        while self._claimed:
            await self._apply_file(self._claimed[0], claimed=True)
            self._claimed.pop(0)
        while self.backlog or self.backlog.evicted:
            if self.backlog.evicted:
                # Some are in the spool only. What memory has too is applied again after them, and changes nothing.
                await self._apply_evicted()
            await self._apply(self.backlog.first(_BATCH))

    async def _apply_evicted(self) -> None:
        self.backlog.evicted = False
        try:
            await self._apply_file(self._spool.path)
        except BaseException:
            self.backlog.evicted = True
            raise

    async def _apply_file(self, path: Path, *, claimed: bool = False) -> None:
        offset, damaged, applied = 0, 0, 0
        while True:
            try:
                found, end, bad = await self._thread.run(partial(self._spool.read, path, offset))
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
            await self._thread.run(partial(path.unlink, missing_ok=True))

    async def _apply(self, entries: list[Entry], *, claimed: bool = False) -> None:
        """Write entries in their order; those before one that fails are done with. Raises what the store raises."""
        async with asyncio.timeout(REPLAY_SECONDS):
            writing = [self._write(entry, late=True, claimed=claimed) for entry in entries]
            results = await asyncio.gather(*writing, return_exceptions=True)
        for entry, result in zip(entries, results, strict=True):
            if isinstance(result, _BAD_DATA):
                self._refuse(entry, result)
            elif isinstance(result, BaseException):
                raise result
            self.backlog.discard(entry)

    async def _beat(self) -> None:
        """Leave a sign of life every second: how long the calls of a killed server lasted is known by the last."""
        while True:
            # Where it cannot be left, the calls' own instants are the last that is known.
            with suppress(OSError):
                await self._heart.run(partial(leave_heartbeat, self.store.path, self.store.owner))
            await asyncio.sleep(BEAT_SECONDS)

    # The end ----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Write what waits, if the store takes it soon; what remains is in the spool for the next start."""
        for beside in (self._replaying, self._beating):
            if beside is not None:
                beside.cancel()
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
            with suppress(OSError):
                remove_heartbeat(self.store.path, self.store.owner)
        for task in self._tasks:
            task.cancel()
        self._thread.close(self._spool.close)
        self._heart.close(lambda: None)

    def _run(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Thread:
    """A thread of its own that a stalled disk may hold up: nobody waits for it when the process ends."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` after those before it. Raises what it raises."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((job, done))
        return await done

    def close(self, last: Callable[[], Any]) -> None:
        """Run `last`, then end. Nobody waits for it."""
        self._jobs.put((last, asyncio.get_running_loop().create_future()))
        self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            result: Any = None
            failure: Exception | None = None
            try:
                result = job()
            except Exception as error:
                # The edge of a job: its awaiter is told, the thread goes on.
                failure = error
            with suppress(RuntimeError):
                # The loop is closed: nobody waits any more.
                done.get_loop().call_soon_threadsafe(_settle, done, result, failure)


def _settle(done: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if done.done():
        return
    if failure is not None:
        done.set_exception(failure)
    else:
        done.set_result(result)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
