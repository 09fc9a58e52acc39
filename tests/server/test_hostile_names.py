"""A caller may call themselves anything: in no place where the name is shown is it more than text."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from callagent.records import (
    CallRecord,
    Store,
    TurnEntry,
    export_records,
    format_call,
    format_calls,
    read_call,
    read_calls,
)
from callagent.records.query import CallFilter
from callagent.records.reader import Reader, ReadingProcess, SqliteDatabase

NAMES = (
    "<script>alert(1)</script>",
    "'; DROP TABLE calls; --",
    '" OR 1=1 UNION SELECT record FROM calls --',
    "\x1b[2J\x1b[31mowned\x1b]0;title\x07",
    "\x9b31m\x08\x08\r\nFAKE log line level=error",
    "=cmd|' /C calc'!A0",
    "+1+1", "-2+3", "@SUM(A1)", "\t=1+1", "\r=1+1", "＝1+1",
    "{{7*7}} ${jndi:ldap://x} %s %n {0}",
    "\u202egnp.exe", "a\u2028b", "x" * 5000, "NEAR(\"a* OR b",
)  # fmt: skip


async def fill(path: Path) -> None:
    store = Store(path)
    for number, name in enumerate(NAMES):
        record = CallRecord(f"c{number}", "parcels", wire="sip", from_number=name, started_at="2026-01-02T03:04:05Z")
        record.turns = [TurnEntry(0), TurnEntry(1, user_input=name, agent_response=name, flow=name, step=name)]
        record.errors = [{"what": name, "detail": name, "at": 1.0}]
        record.handoff_destination = record.handoff_reason = name
        await store.ended(record)
        await store.metric(record.id, 1, "SAID", name)
    await store.close()


def inert(text: str) -> bool:
    """Nothing that a terminal obeys but the ends of lines."""
    return all(character == "\n" or (character.isprintable() or character == "\t") for character in text)


async def test_a_terminal_obeys_no_name(tmp_path: Path) -> None:
    await fill(tmp_path / "c.db")
    assert inert(format_calls(read_calls(tmp_path / "c.db", limit=100)))
    for number in range(len(NAMES)):
        record = read_call(tmp_path / "c.db", f"c{number}")
        assert record is not None
        assert inert(format_call(record))


async def test_a_table_calculator_calculates_no_name(tmp_path: Path) -> None:
    await fill(tmp_path / "c.db")
    out = io.StringIO()
    export_records(tmp_path / "c.db", "csv", out)
    rows = list(csv.reader(io.StringIO(out.getvalue())))
    assert len(rows) == len(NAMES) + 1
    cells = [cell for row in rows[1:] for cell in row]
    assert [cell for cell in cells if cell[:1] in ("=", "+", "@", "\t", "\r", "＝") and len(cell) > 1] == []
    assert [cell for cell in cells if cell.startswith("-") and not cell[1:].replace(".", "").isdigit()] == []


async def test_the_database_takes_every_name_as_text(tmp_path: Path) -> None:
    await fill(tmp_path / "c.db")
    process = ReadingProcess()
    reader = Reader(SqliteDatabase(tmp_path / "c.db", process), process)
    try:
        for name in NAMES:
            found = await reader.calls(CallFilter(from_number=name))
            assert found.total == 1
            await reader.calls(CallFilter(search=name))
            await reader.calls(CallFilter(project_id=name, end_reason=name, variant_name=name, wire=name))
            await reader.overview(30, name)
            await reader.traffic(name, 30)
        assert (await reader.calls(CallFilter())).total == len(NAMES)
    finally:
        await reader.close()


@pytest.mark.parametrize("as_json", [True, False])
def test_a_log_line_stays_one_line(as_json: bool) -> None:
    script = (
        "import json, sys\n"
        "from callagent import log\n"
        f"log.configure('debug', json={as_json})\n"
        "for name in json.loads(sys.stdin.read()):\n"
        "    log.get_logger('callagent.test').bind(call='c').info('call_started', caller=name, callee=name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(NAMES), capture_output=True, text=True, check=True, timeout=60
    )
    lines = done.stderr.split("\n")[:-1]
    assert len(lines) == len(NAMES)
    # Our own colours apart.
    assert [line for line in lines if not inert(re.sub(r"\x1b\[\d+m", "", line))] == []
    assert "\x1b[2J" not in done.stderr
