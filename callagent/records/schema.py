"""The tables of the store, the same in SQLite and PostgreSQL. Times are ISO 8601 texts in UTC, which sort."""

from __future__ import annotations

import sqlite3
from typing import Final

VERSION: Final = 2

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
    "CREATE INDEX IF NOT EXISTS metrics_by_name ON metrics (name, value, written_at)",
)
_OUTBOX = """
CREATE TABLE IF NOT EXISTS outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, call_id TEXT NOT NULL, sequence INTEGER NOT NULL
) STRICT"""
_WORDS = "CREATE VIRTUAL TABLE IF NOT EXISTS calls_words USING fts5 (words, tokenize = 'unicode61')"

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
    """Bring a SQLite store to this version; whether rows of the first version wait in `calls_before`."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.execute("BEGIN IMMEDIATE")
    if version == 1:
        connection.execute("ALTER TABLE calls RENAME TO calls_before")
        connection.execute("DROP INDEX IF EXISTS calls_started")
        connection.execute("ALTER TABLE metrics RENAME TO metrics_before")
    for table in (CALLS, TURNS, METRICS):
        connection.execute(table + " STRICT")
    for statement in (_OUTBOX, _WORDS, *INDICES):
        connection.execute(statement)
    if version == 1:
        connection.execute("INSERT INTO metrics SELECT call_id, sequence, name, value, written_at FROM metrics_before")
        connection.execute("DROP TABLE metrics_before")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
    return version == 1
