"""Records for people and other programs: as text for a terminal, as JSON Lines, CSV or Parquet; and their deletion."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, TextIO

from callagent.errors import UserError
from callagent.log import plain
from callagent.records.reader import read_records
from callagent.records.retention import delete_caller
from callagent.records.store import Store


def format_calls(calls: Sequence[dict[str, Any]]) -> str:
    """One line a call."""
    if not calls:
        return "no calls"
    lines = [f"{'ID':<14}{'STARTED':<21}{'FROM':<17}{'SECONDS':>8}  {'TURNS':>5}  ENDED"]
    for call in calls:
        ended = call["end_reason"] or "in progress"
        if call["handoff_destination"]:
            ended += f" to {call['handoff_destination']}"
        seconds = f"{call['total_duration']:.1f}" if call["total_duration"] is not None else ""
        lines.append(
            f"{call['id'][:12]:<14}{call['started_at'][:19]:<21}{call['from_number'] or 'withheld':<17}"
            f"{seconds:>8}  {call['num_turns'] or 0:>5}  {ended}"
        )
    return "\n".join(plain(line) for line in lines)


def format_call(record: dict[str, Any]) -> str:
    """The call as a story: who said what when, functions with their times, metrics, how it ended."""
    lines = [
        f"call {record['id']}  {record['from_number'] or 'withheld'} -> {record['to_number']}  over {record['wire']}",
        f"started {record['started_at']}, {record['total_duration']:.1f} s, ended by {record['end_reason']}",
        *(f"  {name}: {value}" for name, value in record.get("hang_up_headers", {}).items()),
        "",
    ]
    for turn in record["turns"]:
        lines += _turn_lines(turn)
    if record["transfers"]:
        lines += ["", "transfers"]
        lines += [
            f"  {one['target']} by {one['method']}: {one['status']} {one['detail']}" for one in record["transfers"]
        ]
    lines += ["", "metrics"]
    lines += [f"  {metric['name']} = {metric['value']}" for metric in record["metrics"]] or ["  none"]
    if record["errors"]:
        lines += ["", "errors"]
        lines += [f"  {error['at']:6.2f}  {error['what']}: {error['detail']}" for error in record["errors"]]
    if reached := record.get("limits_reached"):
        lines += ["", "limits reached"]
        lines += [f"  {one['at']:6.2f}  {one['limit']}: {one['detail']}" for one in reached]
    if record["recording"]:
        lines += ["", f"recording {record['recording']}"]
    return "\n".join(plain(line) for line in lines)


def _turn_lines(turn: dict[str, Any]) -> list[str]:
    """A turn's events in the order of their times."""
    events: list[tuple[float, str]] = []
    said = turn["user_input"] or turn["user_input_dtmf"]
    heard_at = turn["instants"].get("turn_ended")
    if said or turn["is_silence"]:
        events.append((heard_at or 0.0, f"caller  {said or '(silence)'}{_latency(turn)}"))
    for one in turn["functions"]:
        outcome = f"error: {one['error']}" if one["error"] else f"{one['duration_ms']:.0f} ms"
        events.append((one["started_at"], f"        {one['name']}({_arguments(one['arguments'])})  {outcome}"))
    for spoken in turn["spoken"]:
        who = "filler" if spoken["kind"] == "filler" else "agent "
        cut = "  [interrupted]" if spoken["interrupted"] else ""
        events.append(
            (spoken["started_at"], f"{who}  {spoken['heard'] if spoken['interrupted'] else spoken['text']}{cut}")
        )
    return [f"{at:7.2f}  {text}" for at, text in sorted(events, key=lambda event: event[0])]


def _latency(turn: dict[str, Any]) -> str:
    response = turn["latency"].get("response")
    return f"   (answered after {response:.2f} s)" if response is not None else ""


def _arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


_COLUMNS: Final = (
    *("id", "project_id", "environment", "channel", "direction", "from_number", "to_number", "started_at"),
    *("ended_at", "total_duration", "end_reason", "num_turns", "num_silences", "handoff", "handoff_reason"),
    *("handoff_destination", "variant_name", "language"),
)
_PARQUET_ROWS: Final = 1000
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def delete_calls_of(path: Path, number: str, *, outbox: bool) -> int:
    """Delete every ended call of a number with its recording; how many there were. Raises `UserError`."""
    if not path.is_file():
        raise UserError(f"no call has been recorded: '{path}' does not exist (setting records.path)")
    return asyncio.run(_delete(path, number, outbox))


def export_records(path: Path, form: str, file: TextIO, *, caller: str | None = None) -> None:
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
