"""What the command line does to the store; a server may be using it meanwhile."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
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
_PARQUET_ROWS: Final = 1000
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def delete_of_caller(path: Path, number: str, *, outbox: bool) -> int:
    """Delete every ended call of a number with its recording; how many there were. Raises `UserError`."""
    if not path.is_file():
        raise UserError(f"no call has been recorded: '{path}' does not exist (setting records.path)")
    return asyncio.run(_delete(path, number, outbox))


def export(path: Path, form: str, file: TextIO, *, caller: str | None = None) -> None:
    """Every record, or those of a caller, as `jsonl` (a whole record a line), `csv` or `parquet` (a call a row).

    Raises `UserError` for Parquet to a terminal or without its extra.
    """
    records = (record for record in read_records(path) if caller is None or record["from_number"] == caller)
    if form == "csv":
        _write_csv(records, file)
        return
    if form == "parquet":
        _write_parquet(records, file)
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


def _write_parquet(records: Iterable[Mapping[str, Any]], file: TextIO) -> None:
    if file.isatty():
        raise UserError(
            "Parquet is no text: write it to a file, `callagent calls export --format parquet > calls.parquet`"
        )
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError("Parquet needs the extra: pip install 'callagent[parquet]'") from None
    instant = pyarrow.timestamp("ms", tz="UTC")
    types = {
        "started_at": instant,
        "ended_at": instant,
        "total_duration": pyarrow.float64(),
        "handoff": pyarrow.bool_(),
    }
    types |= dict.fromkeys(("num_turns", "num_silences"), pyarrow.int64())
    columns = (*_COLUMNS, "metrics", "record")
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in columns])
    rows = map(_parquet_row, records)
    with parquet.ParquetWriter(file.buffer, schema) as writer:
        while batch := list(islice(rows, _PARQUET_ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


def _parquet_row(record: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {column: record.get(column) for column in _COLUMNS}
    for column in ("started_at", "ended_at"):
        row[column] = datetime.fromisoformat(row[column]) if row[column] else None
    metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
    row["metrics"] = json.dumps(metrics, ensure_ascii=False)
    row["record"] = json.dumps(record, ensure_ascii=False)
    return row


def _inert(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
