from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from callagent.errors import UserError
from callagent.records import (
    CallRecord,
    RecordWriter,
    Spool,
    Store,
    TurnEntry,
    format_call,
    format_calls,
    read_call,
    read_calls,
    read_records,
    tables,
)
from callagent.records.retention import delete_caller
from tests.records.synthetic import synthetic_records
from tests.records.test_writer import recover


def record(call_id: str = "c1", **fields: object) -> CallRecord:
    made = CallRecord(
        id=call_id, wire="sip", from_number="+15550100", to_number="agent", started_at="2026-01-02T03:04:05Z"
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


async def test_a_call_is_there_from_its_opening_to_its_end(tmp_path: Path) -> None:
    store = Store(tmp_path / "calls.db")
    await store.opened(record())
    assert read_calls(store.path)[0]["end_reason"] is None
    await store.metric("c1", 1, "PARCEL_FOUND", True)
    await store.metric("c1", 2, "DAY", "friday")
    await store.end_attempted("c1", 1)
    done = record(end_reason="agent_hangup", total_duration=12.5, num_turns=1, ended_at="2026-01-02T03:04:17Z")
    done.turns.append(TurnEntry(number=1, user_input="where is my parcel"))
    await store.ended(done)
    await store.close()
    found = read_call(store.path, "c1")
    assert found is not None
    assert found["metrics"] == [{"name": "PARCEL_FOUND", "value": True}, {"name": "DAY", "value": "friday"}]
    assert found["end_attempts"] == 1
    assert found["turns"][0]["user_input"] == "where is my parcel"
    assert "where is my parcel" in format_call(found)
    assert "agent_hangup" in format_calls(read_calls(store.path))
    assert [one["id"] for one in read_records(store.path)] == ["c1"]


async def test_a_metric_written_twice_is_there_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "calls.db")
    await store.opened(record())
    await asyncio.gather(*(store.metric("c1", 1, "X", 1) for _ in range(20)))
    await store.close()
    found = read_call(store.path, "c1")
    assert found is not None
    assert found["metrics"] == [{"name": "X", "value": 1}]


async def test_a_failing_write_is_an_error_of_its_awaiter_and_the_next_one_works(tmp_path: Path) -> None:
    store = Store(tmp_path / "calls.db")
    with pytest.raises(sqlite3.Error):
        await store.metric("c1", 1, object(), 1)  # type: ignore[arg-type]
    await store.opened(record())
    await store.close()
    assert read_calls(store.path)[0]["id"] == "c1"


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    script = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from callagent.records import CallRecord, Store\n"
        "async def main():\n"
        f"    store = Store(Path({str(path)!r}))\n"
        "    await store.opened(CallRecord(id='k', wire='sip', started_at='2026-01-01T00:00:00Z'))\n"
        "    for n in range(50):\n"
        "        await store.metric('k', n, 'N', n)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60)
    assert done.returncode == -9
    found = read_call(path, "k")
    assert found is not None
    assert [metric["value"] for metric in found["metrics"]] == list(range(50))


def test_a_store_that_cannot_be_opened_says_which_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"records\.path"):
        Store(tmp_path / "file" / "calls.db")


def test_reading_where_nothing_was_recorded_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no call has been recorded"):
        read_calls(tmp_path / "none.db")


async def test_calls_of_a_killed_server_are_closed_when_the_next_one_starts(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    script = (
        "import asyncio, os, signal\n"
        "from pathlib import Path\n"
        "from callagent.records import CallRecord, Store, TurnEntry\n"
        "async def main():\n"
        f"    store = Store(Path({str(path)!r}))\n"
        "    for n in range(20):\n"
        "        record = CallRecord(id=f'k{n}', wire='sip', started_at='2026-01-01T00:00:00Z')\n"
        "        await store.opened(record)\n"
        "        record.turns += [TurnEntry(0), TurnEntry(1, user_input='where is it')]\n"
        "        await store.progressed(record)\n"
        "        await store.metric(f'k{n}', 1, 'N', n)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], timeout=60)
    assert killed.returncode == -9
    store = Store(path)
    writer = RecordWriter(store, Spool(tmp_path / "spool"))
    await store.opened(record("mine"))
    assert len(await recover(writer)) == 20
    assert len(await recover(writer)) == 0
    await writer.close()
    await store.close()
    found = read_call(path, "k7")
    assert found is not None
    assert (found["end_reason"], found["in_progress"], found["num_turns"]) == ("server_killed", False, 1)
    assert found["turns"][1]["user_input"] == "where is it"
    assert found["metrics"] == [{"name": "N", "value": 7}]
    mine = read_call(path, "mine")
    assert mine is not None
    assert mine["in_progress"]


async def test_a_store_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    old = record("old1", in_progress=False, end_reason="agent_hangup", ended_at="2026-01-02T03:05:00Z").to_json()
    old.pop("messages", None)
    old["turns"] = [asdict(TurnEntry(0)), asdict(TurnEntry(1, user_input="zebra"))]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE calls (id TEXT PRIMARY KEY, project_id TEXT NOT NULL, wire TEXT NOT NULL, from_number TEXT,"
            "to_number TEXT, started_at TEXT NOT NULL, ended_at TEXT, total_duration REAL, end_reason TEXT,"
            "end_function TEXT, end_attempts INTEGER NOT NULL DEFAULT 0, num_turns INTEGER, handoff_destination TEXT,"
            "record TEXT NOT NULL) STRICT; CREATE INDEX calls_started ON calls (started_at);"
            "CREATE TABLE metrics (call_id TEXT NOT NULL, sequence INTEGER NOT NULL, name TEXT NOT NULL,"
            "value TEXT NOT NULL, written_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')),"
            "PRIMARY KEY (call_id, sequence)) STRICT, WITHOUT ROWID; PRAGMA user_version = 1;"
        )
        connection.execute(
            "INSERT INTO calls (id, project_id, wire, started_at, end_attempts, record) VALUES (?, '', 'sip', ?, 2, ?)",
            ("old1", old["started_at"], json.dumps(old)),
        )
        connection.execute("INSERT INTO metrics (call_id, sequence, name, value) VALUES ('old1', 1, 'N', '5')")
        connection.commit()
    for _ in range(2):
        await Store(path).close()
    found = read_call(path, "old1")
    assert found is not None
    assert found["metrics"] == [{"name": "N", "value": 5}]
    assert found["end_attempts"] == 2
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM calls_words WHERE calls_words MATCH 'zebra'").fetchone() == (1,)


async def test_one_bad_write_does_not_take_its_batch_with_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "calls.db")
    writes = [store.metric("c1", number, object() if number == 5 else "N", number) for number in range(20)]  # type: ignore[arg-type]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [number for number, result in enumerate(results) if result is not None] == [5]
    await store.close()


async def test_the_daily_sums_are_those_of_the_turns(tmp_path: Path) -> None:
    """After writing again, deleting, and migrating a store that had none."""
    path = tmp_path / "c.db"
    records = list(synthetic_records(40))

    def differences() -> list[Any]:
        found: list[Any] = []
        with closing(sqlite3.connect(path)) as connection:
            for table, fill, of in (
                ("turns_daily", tables._FILL_DAILY, "turns"),
                ("metrics_daily", tables._FILL_METRICS_DAILY, "metrics"),
            ):
                column = "turns" if of == "turns" else "written"
                assert connection.execute("SELECT count(*) FROM metrics_daily WHERE written < 1").fetchone() == (0,)
                every = f"SELECT * FROM {table} WHERE {column} > 0 ORDER BY 1, 2, 3, 4"
                here = connection.execute(every).fetchall()
                connection.execute(f"DELETE FROM {table}")
                connection.execute(fill)
                there = connection.execute(every).fetchall()
                total = connection.execute(f"SELECT sum({column}) FROM {table}").fetchone()
                assert total == connection.execute(f"SELECT count(*) FROM {of}").fetchone()
                found += [pair for pair in zip(here, there, strict=True) if pair[0] != pair[1]]
            connection.rollback()
        return found

    store = Store(path)
    for record in records:
        await store.ended(record)
        await store.metric(record.id, 1, "FOUND", True)
        await store.metric(record.id, 2, "DAYS", len(record.turns))
    await store.write(lambda connection: connection.execute("UPDATE metrics SET value = '0' WHERE sequence = 2"))  # type: ignore[arg-type,return-value]
    records[3].turns.pop()
    records[4].turns[1].latency["response"] = None
    for record in records[:10]:
        await store.ended(record)
    assert differences() == []
    await delete_caller(store, records[5].from_number or "")
    assert differences() == []
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TRIGGER turn_added; DROP TRIGGER turn_deleted; DROP TRIGGER metric_added;"
            "DROP TRIGGER metric_deleted; DROP TRIGGER metric_changed;"
            "DROP TABLE turns_daily; DROP TABLE metrics_daily;"
        )
        connection.execute("PRAGMA user_version = 2")
    await Store(path).close()
    assert differences() == []
