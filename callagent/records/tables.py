"""The tables of the store, the same in SQLite and PostgreSQL, and a call's record as rows of them.

Times are ISO 8601 texts in UTC, so their order as texts is their order in time.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from typing import Final, TypeAlias

from callagent.json_values import JsonObject, is_true, list_at, number_at, object_at, objects_at, text_at

VERSION: Final = 3
"""Version of the tables, in SQLite's `user_version` and in PostgreSQL's table `callagent_schema`."""
SqlValue: TypeAlias = str | float | None
SqlRow: TypeAlias = tuple[SqlValue, ...]

CALLS: Final = """
CREATE TABLE IF NOT EXISTS calls (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, project_id TEXT NOT NULL,
    environment TEXT NOT NULL, channel TEXT NOT NULL, direction TEXT NOT NULL, wire TEXT NOT NULL,
    from_number TEXT, to_number TEXT, started_at TEXT NOT NULL, ended_at TEXT, total_duration REAL, end_reason TEXT,
    end_function TEXT, end_attempts INTEGER NOT NULL DEFAULT 0, num_turns INTEGER, num_silences INTEGER,
    barge_ins INTEGER NOT NULL DEFAULT 0, errors INTEGER NOT NULL DEFAULT 0, handoff INTEGER NOT NULL DEFAULT 0,
    handoff_reason TEXT, handoff_destination TEXT, variant_name TEXT, language TEXT, recording TEXT, owner TEXT,
    words TEXT NOT NULL DEFAULT '', record TEXT NOT NULL
)"""
TURNS: Final = """
CREATE TABLE IF NOT EXISTS turns (
    call_id TEXT NOT NULL, number INTEGER NOT NULL, project_id TEXT NOT NULL, day TEXT NOT NULL, previous TEXT NOT NULL,
    position TEXT NOT NULL, response_ms INTEGER, endpointing_ms INTEGER, transcription_ms INTEGER, model_ms INTEGER,
    function_ms INTEGER, barge_in_ms INTEGER, PRIMARY KEY (call_id, number)
)"""
METRICS: Final = """
CREATE TABLE IF NOT EXISTS metrics (
    call_id TEXT NOT NULL, sequence INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    written_at TEXT NOT NULL, PRIMARY KEY (call_id, sequence)
)"""
INDICES: Final = (
    "CREATE INDEX IF NOT EXISTS calls_by_start ON calls (started_at, id)",
    "CREATE INDEX IF NOT EXISTS calls_by_caller ON calls (from_number)",
    "CREATE INDEX IF NOT EXISTS calls_summary ON calls (started_at, project_id, end_reason, handoff, handoff_reason,"
    " total_duration)",
    "CREATE INDEX IF NOT EXISTS turns_summary ON turns (day, project_id, response_ms, endpointing_ms,"
    " transcription_ms, model_ms, function_ms, barge_in_ms)",
    "CREATE INDEX IF NOT EXISTS turns_by_position ON turns (project_id, previous, position, day)",
    "CREATE INDEX IF NOT EXISTS calls_by_project ON calls (project_id, started_at, end_reason, handoff,"
    " handoff_reason, total_duration)",
    "CREATE INDEX IF NOT EXISTS metrics_by_name ON metrics (name, value, written_at)",
)
# A search looks at many calls: this index has all columns that filters use, so that no records, which are large, are
# read.
_FILTERS = (
    "CREATE INDEX IF NOT EXISTS calls_filters ON calls (number, wire, project_id, environment, channel, variant_name,"
    " from_number, end_reason, handoff, started_at, ended_at, id)"
)
_OUTBOX = """
CREATE TABLE IF NOT EXISTS outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, call_id TEXT NOT NULL, sequence INTEGER NOT NULL
) STRICT"""
STAGES: Final = ("endpointing_ms", "transcription_ms", "model_ms", "function_ms", "barge_in_ms")
NO_RESPONSE: Final = -1
"""The bucket of turns that the agent did not answer."""
# The overview of a hundred thousand calls reads these sums, not half a million turns. Triggers keep them exact: turns
# are inserted and deleted, never changed. PostgreSQL is quick enough without them.
_DAILY = f"""
CREATE TABLE IF NOT EXISTS turns_daily (
    day TEXT NOT NULL, project_id TEXT NOT NULL, bucket INTEGER NOT NULL, turns INTEGER NOT NULL,
    {", ".join(f"{stage} INTEGER NOT NULL, {stage}_turns INTEGER NOT NULL" for stage in STAGES)},
    PRIMARY KEY (day, project_id, bucket)
) STRICT, WITHOUT ROWID"""

_METRICS_DAILY = """
CREATE TABLE IF NOT EXISTS metrics_daily (
    day TEXT NOT NULL, project_id TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, written INTEGER NOT NULL,
    PRIMARY KEY (day, project_id, name, value)
) STRICT, WITHOUT ROWID"""


def _bucket(prefix: str) -> str:
    """Return the SQL of a turn's bucket, one for each 50 ms of response time."""
    return f"coalesce({prefix}response_ms / 50, {NO_RESPONSE})"


_STAGE_VALUES = ", ".join(f"coalesce(NEW.{stage}, 0), NEW.{stage} IS NOT NULL" for stage in STAGES)
_STAGE_SUMS = ", ".join(f"sum(coalesce({stage}, 0)), count({stage})" for stage in STAGES)


def _metric_key(row: str) -> str:
    """Return the SQL of the key under which a metric is summed.

    The project comes from the call, so a metric must be inserted after its call's row and deleted before it.
    """
    project = f"coalesce((SELECT project_id FROM calls WHERE id = {row}.call_id), '')"
    return f"substr({row}.written_at, 1, 10), {project}, {row}.name, {row}.value"


_ADD_METRIC = f"""
    INSERT INTO metrics_daily VALUES ({_metric_key("NEW")}, 1)
    ON CONFLICT (day, project_id, name, value) DO UPDATE SET written = written + 1;"""
_DROP_METRIC = f"""
    UPDATE metrics_daily SET written = written - 1 WHERE (day, project_id, name, value) = ({_metric_key("OLD")});
    DELETE FROM metrics_daily WHERE (day, project_id, name, value) = ({_metric_key("OLD")}) AND written = 0;"""
# A metric's value may be private, such as a name: when its last occurrence is deleted, its row of the sums goes too.
_TRIGGERS = (
    f"CREATE TRIGGER IF NOT EXISTS metric_added AFTER INSERT ON metrics BEGIN {_ADD_METRIC} END",
    f"CREATE TRIGGER IF NOT EXISTS metric_deleted AFTER DELETE ON metrics BEGIN {_DROP_METRIC} END",
    f"CREATE TRIGGER IF NOT EXISTS metric_changed AFTER UPDATE ON metrics BEGIN {_DROP_METRIC} {_ADD_METRIC} END",
    f"""CREATE TRIGGER IF NOT EXISTS turn_added AFTER INSERT ON turns BEGIN
    INSERT INTO turns_daily VALUES (NEW.day, NEW.project_id, {_bucket("NEW.")}, 1, {_STAGE_VALUES})
    ON CONFLICT (day, project_id, bucket) DO UPDATE SET turns = turns + 1, {
        ", ".join(f"{name} = {name} + excluded.{name}" for stage in STAGES for name in (stage, f"{stage}_turns"))
    };
    END""",
    f"""CREATE TRIGGER IF NOT EXISTS turn_deleted AFTER DELETE ON turns BEGIN
    UPDATE turns_daily SET turns = turns - 1, {
        ", ".join(
            f"{stage} = {stage} - coalesce(OLD.{stage}, 0), {stage}_turns = {stage}_turns - (OLD.{stage} IS NOT NULL)"
            for stage in STAGES
        )
    }
    WHERE day = OLD.day AND project_id = OLD.project_id AND bucket = {_bucket("OLD.")};
    END""",
)
_FILL_DAILY = (
    f"INSERT INTO turns_daily SELECT day, project_id, {_bucket('')}, count(*), {_STAGE_SUMS} FROM turns"
    " GROUP BY 1, 2, 3"
)
_FILL_METRICS_DAILY = (
    f"INSERT INTO metrics_daily SELECT {_metric_key('metrics')}, count(*) FROM metrics GROUP BY 1, 2, 3, 4"
)
_WORDS = "CREATE VIRTUAL TABLE IF NOT EXISTS calls_words USING fts5 (words, tokenize = 'unicode61')"

# SQLite's INTEGER holds 64 bits, PostgreSQL's only 32.
POSTGRES: Final = (
    *(
        table.replace("INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        .replace(" REAL", " DOUBLE PRECISION")
        .replace(" INTEGER", " BIGINT")
        for table in (CALLS, TURNS, METRICS)
    ),
    *INDICES,
    "ALTER TABLE calls ADD COLUMN IF NOT EXISTS tokens tsvector "
    "GENERATED ALWAYS AS (to_tsvector('simple', words)) STORED",
    "CREATE INDEX IF NOT EXISTS calls_by_words ON calls USING gin (tokens)",
    "CREATE TABLE IF NOT EXISTS callagent_schema (version BIGINT NOT NULL)",
)


def migrate(connection: sqlite3.Connection) -> bool:
    """Bring the tables of a SQLite store to `VERSION`; change nothing if they have it.

    Return whether the store had version 1; then its calls are in `calls_before`, and the caller has to write them anew.
    """
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.execute("BEGIN IMMEDIATE")
    # Version 1 had other columns and neither words nor turns; sums by day came with version 3.
    if version == 1:
        connection.execute("ALTER TABLE calls RENAME TO calls_before")
        connection.execute("DROP INDEX IF EXISTS calls_started")
        connection.execute("ALTER TABLE metrics RENAME TO metrics_before")
    for table in (CALLS, TURNS, METRICS):
        connection.execute(table + " STRICT")
    for statement in (_OUTBOX, _WORDS, *INDICES, _FILTERS, _DAILY, _METRICS_DAILY):
        connection.execute(statement)
    if 0 < version < 3:
        connection.execute("DELETE FROM turns_daily")
        connection.execute(_FILL_DAILY)
        connection.execute("DELETE FROM metrics_daily")
        connection.execute(_FILL_METRICS_DAILY)
    # Triggers come after the sums were filled, so that nothing is counted twice, and before the metrics of version 1
    # are inserted, which they count.
    for statement in _TRIGGERS:
        connection.execute(statement)
    if version == 1:
        connection.execute("INSERT INTO metrics SELECT call_id, sequence, name, value, written_at FROM metrics_before")
        connection.execute("DROP TABLE metrics_before")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
    return version == 1


CALL_COLUMNS: Final = (
    *("id", "project_id", "environment", "channel", "direction", "wire", "from_number", "to_number", "started_at"),
    *("ended_at", "total_duration", "end_reason", "end_function", "num_turns", "num_silences", "barge_ins", "errors"),
    *("handoff", "handoff_reason", "handoff_destination", "variant_name", "language", "recording", "owner"),
    *("words", "record"),
)
TURN_COLUMNS: Final = (
    *("call_id", "number", "project_id", "day", "previous", "position", "response_ms", "endpointing_ms"),
    *("transcription_ms", "model_ms", "function_ms", "barge_in_ms"),
)
METRIC_COLUMNS: Final = ("call_id", "sequence", "name", "value", "written_at")
_WORD: Final = re.compile(r"[^\W_]+")
_MAX_WORDS_CHARACTERS = 200_000


def call_row(record: JsonObject, owner: str) -> SqlRow:
    """Return the values of `CALL_COLUMNS` for a record; `owner` is the process that holds the call."""
    values = {
        **record,
        "barge_ins": sum(is_true(turn, "barge_in") for turn in objects_at(record, "turns")),
        "errors": len(list_at(record, "errors")),
        "handoff": int(is_true(record, "handoff")),
        "owner": owner if is_true(record, "in_progress") else None,
        "words": _words(record),
        "record": json_text(record),
    }
    return tuple(_storable(values[column]) for column in CALL_COLUMNS)


def turn_rows(record: JsonObject) -> list[SqlRow]:
    """Return the values of `TURN_COLUMNS` for each turn of a record."""
    call_id, project, day = text_at(record, "id"), text_at(record, "project_id"), text_at(record, "started_at")[:10]
    rows: list[SqlRow] = []
    previous = ""
    for turn in objects_at(record, "turns"):
        instants, latency = object_at(turn, "instants"), object_at(turn, "latency")
        functions = objects_at(turn, "functions")
        position = "/".join(part for part in (text_at(turn, "flow"), text_at(turn, "step")) if part)
        rows.append(
            (
                *(call_id, number_at(turn, "number"), project, day, previous, position),
                *(_ms(_seconds(latency, stage)) for stage in ("response", "endpointing", "transcription")),
                _ms(seconds_between(_seconds(instants, "turn_ended"), _seconds(instants, "first_token"))),
                round(sum(number_at(function, "duration_ms") for function in functions)) if functions else None,
                _ms(_seconds(latency, "barge_in")),
            )
        )
        previous = position
    return rows


def seconds_between(start: float | None, end: float | None) -> float | None:
    """Return the seconds from one instant to a later one; None if either did not happen."""
    return None if start is None or end is None or end < start else end - start


def json_text(value: object) -> str:
    """Return JSON text that both databases accept."""
    # Text in PostgreSQL holds no NUL, not even as an escape in JSON.
    text = json.dumps(value, ensure_ascii=False, default=str).replace("\\u0000", "\\ufffd")
    return text.encode("utf-8", "replace").decode("utf-8")


def _storable(value: object) -> SqlValue:
    """Return the value without what a database refuses: NUL in text, and lone surrogates, which are not UTF-8."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    return value if value is None or isinstance(value, (int, float)) else json_text(value)


def _seconds(times: JsonObject, name: str) -> float | None:
    return None if times.get(name) is None else number_at(times, name)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _words(record: JsonObject) -> str:
    """Return the words by which a search finds the call."""
    # Words are letters and digits only, so that both databases find the same words.
    words = (word for text in _texts(record) for word in _WORD.findall(text))
    return " ".join(words)[:_MAX_WORDS_CHARACTERS]


def _texts(record: JsonObject) -> Iterable[str]:
    yield from (text_at(record, name) for name in ("id", "from_number", "to_number", "handoff_destination"))
    for turn in objects_at(record, "turns"):
        yield from (text_at(turn, "user_input"), text_at(turn, "user_input_dtmf"))
        yield from (text_at(spoken, "text") for spoken in objects_at(turn, "spoken"))
        yield from (text_at(function, "name") for function in objects_at(turn, "functions"))
    yield from (str(metric.get("name", "")) for metric in objects_at(record, "metrics"))
