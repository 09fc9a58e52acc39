from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from callagent.records import CallRecord, Store, read_call, read_calls
from callagent.records.retention import delete_caller, delete_older, delete_recordings_older


def record(folder: Path, call_id: str, days: float, *, ended: bool = True) -> CallRecord:
    started = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    recording = folder / f"{call_id}.wav"
    recording.write_bytes(b"RIFF")
    made = CallRecord(id=call_id, wire="sip", from_number="+15550100", started_at=started, recording=str(recording))
    if ended:
        made.in_progress, made.ended_at, made.end_reason = False, started, "agent_hangup"
    return made


async def test_old_calls_go_with_all_that_belongs_to_them(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    for made in (record(tmp_path, "old", 40), record(tmp_path, "new", 1), record(tmp_path, "on", 40, ended=False)):
        await store.opened(made)
        await store.metric(made.id, 1, "N", 1)
    assert await delete_older(store, 30) == 1
    assert await delete_older(store, 30) == 0
    await store.close()
    assert {call["id"] for call in read_calls(store.path)} == {"new", "on"}
    assert {file.name for file in tmp_path.glob("*.wav")} == {"new.wav", "on.wav"}
    with closing(sqlite3.connect(store.path)) as connection:
        for table in ("metrics", "turns"):
            assert connection.execute(f"SELECT count(*) FROM {table} WHERE call_id = 'old'").fetchone() == (0,)
        words = "SELECT count(*) FROM calls_words WHERE calls_words MATCH 'old'"
        assert connection.execute(words).fetchone() == (0,)


async def test_recordings_may_go_before_their_records(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    for made in (record(tmp_path, "old", 40), record(tmp_path, "new", 1)):
        await store.ended(made)
    assert await delete_recordings_older(store, 30) == 1
    await store.close()
    assert [file.name for file in tmp_path.glob("*.wav")] == ["new.wav"]
    old, new = read_call(store.path, "old"), read_call(store.path, "new")
    assert old is not None
    assert new is not None
    assert old["recording"] is None
    assert new["recording"]


async def test_a_call_that_is_on_is_not_deleted_with_its_caller(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    await store.opened(record(tmp_path, "on", 0, ended=False))
    for number in range(3):
        await store.ended(record(tmp_path, f"c{number}", 0))
    assert await delete_caller(store, "+15550100") == 3
    assert await delete_caller(store, "+15550199") == 0
    await store.close()
    assert [call["id"] for call in read_calls(store.path)] == ["on"]
