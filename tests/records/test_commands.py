from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.records import CallRecord, Store, delete_calls_of, export_records


def filled(folder: Path) -> Path:
    async def fill() -> None:
        store = Store(folder / "c.db")
        for call_id, caller in (("c1", "+15550100"), ("c2", "=cmd|' /C calc'!A0"), ("c3", "+15550100")):
            started = f"2026-01-0{call_id[1]}T00:00:00Z"
            await store.ended(CallRecord(call_id, from_number=caller, started_at=started, ended_at=started))
            await store.metric(call_id, 1, "N", 5)
        await store.close()

    asyncio.run(fill())
    return folder / "c.db"


def test_a_caller_is_deleted_and_the_others_stay(tmp_path: Path) -> None:
    path = filled(tmp_path)
    assert delete_calls_of(path, "+15550100", outbox=False) == 2
    lines = io.StringIO()
    export_records(path, "jsonl", lines)
    assert [json.loads(line)["id"] for line in lines.getvalue().splitlines()] == ["c2"]


def test_an_export_of_one_caller_holds_no_other(tmp_path: Path) -> None:
    lines = io.StringIO()
    export_records(filled(tmp_path), "jsonl", lines, caller="+15550100")
    assert [json.loads(line)["id"] for line in lines.getvalue().splitlines()] == ["c1", "c3"]


def test_no_cell_of_a_table_is_a_formula(tmp_path: Path) -> None:
    file = io.StringIO()
    export_records(filled(tmp_path), "csv", file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert [row["from_number"] for row in rows] == ["'+15550100", "'=cmd|' /C calc'!A0", "'+15550100"]
    assert json.loads(rows[0]["metrics"]) == {"N": 5}


def test_deleting_where_nothing_was_recorded_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no call has been recorded"):
        delete_calls_of(tmp_path / "none.db", "x", outbox=False)


def test_a_table_in_parquet_has_types_and_the_whole_record(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "calls.parquet"
    with path.open("w") as file:
        export_records(filled(tmp_path), "parquet", file)
    rows = parquet.read_table(path).to_pylist()
    assert [row["id"] for row in rows] == ["c1", "c2", "c3"]
    assert rows[1]["from_number"] == "=cmd|' /C calc'!A0"
    assert rows[0]["started_at"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert json.loads(rows[0]["metrics"]) == {"N": 5}
    assert json.loads(rows[2]["record"])["id"] == "c3"


def test_parquet_goes_through_a_pipe(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    command = [sys.executable, "-m", "callagent", "calls", "export", "--format", "parquet"]
    environment = {**os.environ, "CALLAGENT_RECORDS__PATH": str(filled(tmp_path))}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert parquet.read_table(io.BytesIO(done.stdout)).num_rows == 3
