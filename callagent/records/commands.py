"""What the command line does to the store; a server may be using it meanwhile."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from callagent.errors import UserError
from callagent.records.read import read_records
from callagent.records.retention import delete_caller
from callagent.records.store import Store

_COLUMNS: Final = (
    *("id", "project_id", "environment", "channel", "direction", "from_number", "to_number", "started_at"),
    *("ended_at", "total_duration", "end_reason", "num_turns", "num_silences", "handoff", "handoff_reason"),
    *("handoff_destination", "variant_name", "language"),
)
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def delete_of_caller(path: Path, number: str, *, outbox: bool) -> int:
    """Delete every ended call of a number with its recording; how many there were. Raises `UserError`."""
    if not path.is_file():
        raise UserError(f"no call has been recorded: '{path}' does not exist (setting records.path)")
    return asyncio.run(_delete(path, number, outbox))


def export(path: Path, form: str, file: TextIO, *, caller: str | None = None) -> None:
    """Every record, or those of a caller, as `jsonl` (a whole record a line) or `csv` (a call a line)."""
    records = (record for record in read_records(path) if caller is None or record["from_number"] == caller)
    if form == "csv":
        _write_csv(records, file)
        return
    for record in records:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


async def _delete(path: Path, number: str, outbox: bool) -> int:
    store = Store(path, outbox=outbox)
    try:
        return await delete_caller(store, number)
    finally:
        await store.close()


def _write_csv(records: Iterable[Mapping[str, Any]], file: TextIO) -> None:
    rows = csv.writer(file)
    rows.writerow((*_COLUMNS, "metrics"))
    for record in records:
        metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
        cells = [*(record.get(column) for column in _COLUMNS), json.dumps(metrics, ensure_ascii=False)]
        rows.writerow([_inert(cell) for cell in cells])


def _inert(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
