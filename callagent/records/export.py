"""Records for people and other programs: as text for a terminal, as JSON Lines, CSV or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

from callagent.errors import UserError
from callagent.json_values import JsonObject, number_at, objects_at, text_at
from callagent.log import escape_unprintable
from callagent.records.call_record import CallRecord, TurnEntry
from callagent.records.reader import read_records


def format_calls(calls: Sequence[JsonObject]) -> str:
    """Return a line for each call of `read_calls`."""
    if not calls:
        return "no calls"
    lines = [f"{'ID':<14}{'STARTED':<21}{'FROM':<17}{'SECONDS':>8}  {'TURNS':>5}  ENDED"]
    for call in calls:
        ended = text_at(call, "end_reason") or "in progress"
        if destination := text_at(call, "handoff_destination"):
            ended += f" to {destination}"
        seconds = f"{number_at(call, 'total_duration'):.1f}" if call["total_duration"] is not None else ""
        lines.append(
            f"{text_at(call, 'id')[:12]:<14}{text_at(call, 'started_at')[:19]:<21}"
            f"{text_at(call, 'from_number') or 'withheld':<17}{seconds:>8}  {call['num_turns'] or 0:>5}  {ended}"
        )
    return "\n".join(escape_unprintable(line) for line in lines)


def format_call(stored: JsonObject) -> str:
    """Return a record as text: utterances and functions in the order of time, then transfers, metrics and errors."""
    # `CallRecord` fills in fields that a record of an earlier version lacks.
    record = CallRecord.from_json(stored)
    lines = [
        f"call {record.id}  {record.from_number or 'withheld'} -> {record.to_number}  over {record.wire}",
        f"started {record.started_at}, {record.total_duration:.1f} s, ended by {record.end_reason}",
        *(f"  {name}: {value}" for name, value in record.hang_up_headers.items()),
        "",
    ]
    for turn in record.turns:
        lines += _turn_lines(turn)
    transfers = (f"{one['target']} by {one['method']}: {one['status']} {one['detail']}" for one in record.transfers)
    metrics = [f"{metric['name']} = {metric['value']}" for metric in record.metrics] or ["none"]
    errors = (f"{error['at']:6.2f}  {error['what']}: {error['detail']}" for error in record.errors)
    reached = (f"{one['at']:6.2f}  {one['limit']}: {one['detail']}" for one in record.limits_reached)
    lines += _section("transfers", transfers) + _section("metrics", metrics)
    lines += _section("errors", errors) + _section("limits reached", reached)
    if record.recording:
        lines += ["", f"recording {record.recording}"]
    # Names and words of callers may hold control sequences, which a terminal would execute.
    return "\n".join(escape_unprintable(line) for line in lines)


def _section(title: str, lines: Iterable[str]) -> list[str]:
    """Return `lines` under a title; an empty list if there are none."""
    indented = [f"  {line}" for line in lines]
    return ["", title, *indented] if indented else []


def _turn_lines(turn: TurnEntry) -> list[str]:
    """Return a turn's events in the order of their times."""
    events = sorted(_events(turn), key=lambda event: event[0])
    return [f"{at:7.2f}  {text}" for at, text in events]


def _events(turn: TurnEntry) -> Iterator[tuple[float, str]]:
    words = turn.user_input or turn.user_input_dtmf
    if words or turn.is_silence:
        response = turn.latency.get("response")
        latency = f"   (answered after {response:.2f} s)" if response is not None else ""
        yield turn.instants.get("turn_ended") or 0.0, f"caller  {words or '(silence)'}{latency}"
    for function in turn.functions:
        outcome = f"error: {function.error}" if function.error else f"{function.duration_ms:.0f} ms"
        arguments = ", ".join(f"{name}={value!r}" for name, value in function.arguments.items())
        yield function.started_at, f"        {function.name}({arguments})  {outcome}"
    for spoken in turn.spoken:
        speaker = "filler" if spoken.kind == "filler" else "agent "
        text = f"{spoken.heard}  [interrupted]" if spoken.interrupted else spoken.text
        yield spoken.started_at, f"{speaker}  {text}"


_COLUMNS: Final = (
    *("id", "project_id", "environment", "channel", "direction", "from_number", "to_number", "started_at"),
    *("ended_at", "total_duration", "end_reason", "num_turns", "num_silences", "handoff", "handoff_reason"),
    *("handoff_destination", "variant_name", "language"),
)
_PARQUET_ROWS: Final = 1000
"""Rows in memory at a time; they become one row group of the file."""
# A spreadsheet treats a cell that begins with one of these as a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def export_records(path: Path, form: str, file: TextIO, *, caller: str | None = None) -> None:
    """Write every record, or those of a caller, to `file`.

    `form` is `jsonl` (the whole record as a line), `csv` or `parquet` (the record as a row). Raises `UserError` for
    Parquet to a terminal or without its extra.
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


def _write_csv(records: Iterable[JsonObject], file: TextIO) -> None:
    rows = csv.writer(file)
    # Turns do not fit into cells; the other formats have them.
    rows.writerow((*_COLUMNS, "metrics"))
    for record in records:
        cells = [*(record.get(column) for column in _COLUMNS), _metrics_of(record)]
        rows.writerow([_without_formula(cell) for cell in cells])


def _write_parquet(records: Iterable[JsonObject], file: TextIO) -> None:
    if file.isatty():
        raise UserError(
            "Parquet is not text: write it to a file, `callagent calls export --format parquet > calls.parquet`"
        )
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError("Parquet needs the extra 'parquet': pip install 'callagent[parquet]'") from None
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


def _parquet_row(record: JsonObject) -> Mapping[str, object]:
    row: dict[str, object] = {column: record.get(column) for column in _COLUMNS}
    for column in ("started_at", "ended_at"):
        instant = text_at(record, column)
        row[column] = datetime.fromisoformat(instant) if instant else None
    row["metrics"] = _metrics_of(record)
    row["record"] = json.dumps(record, ensure_ascii=False)
    return row


def _metrics_of(record: JsonObject) -> str:
    """Return a record's metrics as a JSON object, the last value of each name."""
    metrics = {text_at(metric, "name"): metric["value"] for metric in objects_at(record, "metrics")}
    return json.dumps(metrics, ensure_ascii=False)


def _without_formula(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
