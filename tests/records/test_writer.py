"""What calls leave behind while the store fails: nothing is lost, nothing is there twice, and nobody waits."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from callagent.records import CallRecord, RecordWriter, Redaction, Spool, Store, TurnEntry, read_call, read_calls
from callagent.records import writer as writer_module
from callagent.records.spool import frame, header, read_frames
from callagent.records.writer import Backlog, Entry, EntryKind
from callagent.server.recovery import Recovery
from tests.end_to_end.scripted import until


class FailingStore(Store):
    """Refuses every write with `fault` while there is one."""

    fault: Callable[[], Exception] | None = None

    async def write(self, action: Any) -> None:
        if self.fault is not None:
            raise self.fault()
        await super().write(action)


def full() -> Exception:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def record(call_id: str = "c1", **fields: Any) -> CallRecord:
    return CallRecord(id=call_id, wire="sip", started_at="2026-01-02T03:04:05Z", **fields)


def final(call_id: str = "c1") -> CallRecord:
    ending = {"in_progress": False, "ended_at": "2026-01-02T03:05:05Z", "end_reason": "caller_hangup"}
    return record(call_id, turns=[TurnEntry(0), TurnEntry(1, user_input="hello")], **ending)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is tried again soon."""
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.05)


@asynccontextmanager
async def writing(folder: Path, spool: Path | None = None) -> AsyncIterator[tuple[RecordWriter, FailingStore]]:
    store = FailingStore(folder / "calls.db", redaction=Redaction(["card", "phone"]))
    made = RecordWriter(store, Spool(spool or folder / "spool"), Redaction(["card", "phone"]))
    await made.start()
    try:
        yield made, store
    finally:
        await made.close()
        await store.close()


async def recover(to: RecordWriter) -> list[CallRecord]:
    """End the calls of killed servers, without their projects."""
    ended: list[CallRecord] = []

    async def end(record: CallRecord) -> None:
        ended.append(record)

    await Recovery(to, lambda name, environment: None, 10.0, end).run()
    return ended


async def a_call(to: RecordWriter, call_id: str) -> None:
    opened = record(call_id)
    await to.opened(opened)
    for number in range(1, 4):
        await to.metric(call_id, number, "NUMBER", number)
    opened.turns.append(TurnEntry(0))
    to.progressed(opened)
    await to.end_attempted(call_id, 1)
    await to.metric(call_id, 4, "ENDED", 1)
    await to.ended(final(call_id))


def check(store: Path, calls: int) -> None:
    """Every call with its final record, every metric once."""
    assert len(read_calls(store, limit=1000)) == calls
    for number in range(calls):
        found = read_call(store, f"k{number}")
        assert found is not None
        assert (found["in_progress"], found["end_reason"], found["end_attempts"]) == (False, "caller_hangup", 1)
        assert [metric["value"] for metric in found["metrics"]] == [1, 2, 3, 1]
        assert found["turns"][1]["user_input"] == "hello"
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT sum(written) FROM metrics_daily").fetchone()[0] == 4 * calls


@pytest.mark.parametrize("name", ["ENOSPC", "EROFS", "EIO"])
async def test_what_a_failing_store_refused_is_there_once_when_it_works_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with writing(tmp_path) as (to, store):
        await a_call(to, "k0")
        store.fault = lambda: OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
        await asyncio.gather(*(a_call(to, f"k{number}") for number in range(1, 20)))
        assert to.failing is not None
        assert to._spool.path.stat().st_size > 0
        store.fault = None
        await to.wait_until_working()
        await a_call(to, "k20")
        # A write that took longer than others wait for it may still be on its way.
        async with asyncio.timeout(60):
            while len(to.backlog):
                await asyncio.sleep(0.01)
        assert (to.failing, to.backlog.lost) == (None, 0)
    assert list((tmp_path / "spool").iterdir()) == []
    check(store.path, 21)
    lines = capsys.readouterr().err
    assert (lines.count("store_failing"), lines.count("store_works_again")) == (1, 1)


async def test_nobody_waits_for_a_locked_store(tmp_path: Path) -> None:
    async with writing(tmp_path) as (to, store):
        await to.opened(record("k0"))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for number in range(1, 6):
                await a_call(to, f"k{number}")
            assert len(to.backlog) > 0
            other.execute("ROLLBACK")
        await until(lambda: not to.backlog and to.failing is None, 60)
        await a_call(to, "k0")
    check(store.path, 6)


async def test_a_store_that_is_slow_has_everything_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "LATE_SECONDS", 0.1)
    slow = asyncio.Event()

    class SlowStore(FailingStore):
        async def write(self, action: Any) -> None:
            if slow.is_set():
                await asyncio.sleep(0.4)
            await super().write(action)

    monkeypatch.setattr(sys.modules[__name__], "FailingStore", SlowStore)
    async with writing(tmp_path) as (to, store):
        slow.set()
        for number in range(3):
            await a_call(to, f"k{number}")
        await until(lambda: to.failing is not None, 60)
        await until(lambda: not to.backlog, 60)
        slow.clear()
        await to.wait_until_working()
    check(store.path, 3)


KILLED = """\
import asyncio, os, signal, sqlite3, sys
from pathlib import Path
from callagent.records import CallRecord, RecordWriter, Spool, Store
from tests.records.test_writer import FailingStore, a_call, full, record
async def main():
    store = FailingStore(Path(sys.argv[1]))
    writer = RecordWriter(store, Spool(Path(sys.argv[2])))
    await writer.start()
    store.fault = full
    for number in range(5):
        await a_call(writer, f"k{number}")
    await writer.opened(record("open"))
    await writer.metric("open", 1, "NUMBER", 1)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def killed(folder: Path) -> Path:
    """The spool of a server that was killed while its store failed."""
    arguments = [sys.executable, "-c", KILLED, str(folder / "calls.db"), str(folder / "spool")]
    done = subprocess.run(arguments, timeout=60, cwd=Path(__file__).parents[2])
    assert done.returncode == -9
    (left,) = (folder / "spool").iterdir()
    return left


async def test_the_next_server_applies_what_a_killed_one_left_once(tmp_path: Path) -> None:
    left = killed(tmp_path)
    content = left.read_bytes()
    for _ in range(2):
        async with writing(tmp_path) as (to, store):
            assert to.failing is None
            await recover(to)
        found = read_call(store.path, "open")
        assert found is not None
        assert (found["end_reason"], found["metrics"]) == ("server_killed", [{"name": "NUMBER", "value": 1}])
        assert list((tmp_path / "spool").iterdir()) == []
        with closing(sqlite3.connect(store.path)) as connection:
            connection.execute("DELETE FROM metrics WHERE call_id = 'open'")
            connection.execute("DELETE FROM calls WHERE id = 'open'")
            connection.commit()
        check(store.path, 5)
        # Killed again, before it could remove the file.
        left.write_bytes(content)


async def test_a_server_that_starts_while_the_store_fails_applies_it_later(tmp_path: Path) -> None:
    killed(tmp_path)
    store = FailingStore(tmp_path / "calls.db")
    store.fault = full
    to = RecordWriter(store, Spool(tmp_path / "spool"))
    await to.start()
    assert to.failing is not None
    await a_call(to, "k5")
    store.fault = None
    await to.wait_until_working()
    await recover(to)
    await to.close()
    await store.close()
    assert len(read_calls(store.path)) == 7


def entries_of(path: Path) -> tuple[list[dict[str, Any]], int]:
    found, damaged, offset = [], 0, 0
    with path.open("rb") as file:
        while True:
            entries, end, bad = read_frames(file, offset, 1000)
            found, damaged = found + entries, damaged + bad
            if end == offset:
                return found, damaged
            offset = end


def test_an_entry_that_is_torn_or_changed_costs_itself_only(tmp_path: Path) -> None:
    lines = [frame({"n": number, "text": "über\n"}) for number in range(3)]
    whole, path = header() + b"".join(lines), tmp_path / "torn"
    for cut in range(1, len(lines[2]) + 1):
        path.write_bytes(whole[:-cut])
        found, damaged = entries_of(path)
        assert [one["n"] for one in found] == [0, 1]
        assert damaged == (cut < len(lines[2]))
    begin = len(header()) + len(lines[0])
    for place in range(begin, begin + len(lines[1])):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        found, damaged = entries_of(path)
        assert {0} <= {one["n"] for one in found} <= {0, 2}, place
        assert damaged >= 1


def test_a_spool_is_private_and_not_taken_from_strangers(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append({"n": 1})
    assert stat.S_IMODE(spool.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(spool.path.parent.stat().st_mode) == 0o700
    spool.clear()
    (tmp_path / "link").symlink_to(tmp_path / "spool")
    with pytest.raises(OSError, match="another user"):
        Spool(tmp_path / "link").append({"n": 1})


async def test_what_is_redacted_does_not_reach_the_spool(tmp_path: Path) -> None:
    async with writing(tmp_path) as (to, store):
        store.fault = full
        await to.opened(record(turns=[TurnEntry(0, user_input="call +1 555 010 0199 back")]))
        await to.metric("c1", 1, "CARD", "4111 1111 1111 1111")
        written = to._spool.path.read_text()
        store.fault = None
    assert "[phone number]" in written
    assert "[card number]" in written
    assert "0199" not in written
    assert "4111" not in written


async def test_where_both_places_fail_memory_is_bounded_and_says_what_it_lost(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with writing(tmp_path, tmp_path / "file" / "spool") as (to, store):
        to.backlog = Backlog(max_entries=100)
        store.fault = full
        await asyncio.gather(*(a_call(to, f"k{number}") for number in range(50)))
        assert to.spool_failing is not None
        assert len(to.backlog) == 100
        assert to.backlog.lost == 50 * 6 - 100
        store.fault = None
        await to.wait_until_working()
    assert len(read_calls(store.path)) > 0


async def test_memory_is_bounded_where_the_spool_stalls_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(writer_module, "SPOOL_SECONDS", 0.01)
    monkeypatch.setattr(writer_module, "_MAX_SPOOLING", 10)
    monkeypatch.setattr(Spool, "append", lambda spool, entry: goes_on.wait() and 0)
    async with writing(tmp_path) as (to, store):
        to.backlog = Backlog(max_bytes=100_000)
        store.fault = full
        for number in range(400):
            await to.metric("k1", number, "NUMBER", "x" * 1_000)
        assert 50 <= len(to.backlog) <= 100
        assert to.backlog.lost == 400 - len(to.backlog)
        goes_on.set()
        store.fault = None
        await to.wait_until_working()


async def test_what_memory_could_not_hold_comes_back_from_the_spool(tmp_path: Path) -> None:
    async with writing(tmp_path) as (to, store):
        to.backlog = Backlog(max_entries=20)
        store.fault = full
        for number in range(30):
            await a_call(to, f"k{number}")
        assert (len(to.backlog), to.backlog.lost) == (20, 0)
        store.fault = None
        await to.wait_until_working()
    check(store.path, 30)


async def test_an_entry_that_no_store_takes_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    async with writing(tmp_path) as (to, store):
        store.fault = full
        await to.metric("k0", 9, object(), 1)  # type: ignore[arg-type]
        await a_call(to, "k0")
        store.fault = None
        await to.wait_until_working()
        assert (to.backlog.lost, len(to.backlog)) == (1, 0)
        await to.metric("k0", 10, object(), 1)  # type: ignore[arg-type]
        assert (to.backlog.lost, to.failing) == (2, None)
    check(store.path, 1)


async def test_a_record_that_comes_late_does_not_open_an_ended_call_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "calls.db")
    await store.ended(final())
    await store.progressed(record())
    await store.close()
    assert json.dumps(read_call(store.path, "c1")).count('"caller_hangup"') >= 1


def test_memory_holds_the_newest_record_of_a_call_at_the_oldest_place() -> None:
    backlog = Backlog()
    older, newer = (Entry(EntryKind.SNAPSHOT, "c1", record=record()) for _ in range(2))
    metric, last = Entry(EntryKind.METRIC, "c1", 1, "N", 1), Entry(EntryKind.ENDED, "c1", record=final())
    for entry in (older, metric, newer, last):
        backlog.add(entry)
    assert backlog.oldest(9) == [last, metric]
    backlog.discard(older)
    assert backlog.oldest(9) == [last, metric]
    backlog.discard(last)
    assert backlog.oldest(9) == [metric]
