"""The SQL queries of pages and reports, for SQLite and PostgreSQL. Nothing is executed here."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from callagent.json_values import JsonObject
from callagent.records.tables import STAGES, SqlValue

MAX_PAGE_CALLS: Final = 500
_MAX_MATCHES: Final = 10_000
"""Newest matches that a search without other conditions looks at: a common word is in most calls."""
# The columns of a list, without the record: it is some hundred times as large, and read for a single call only.
_LIST_COLUMNS = (
    "id, project_id, environment, channel, direction, wire, from_number, to_number, started_at, ended_at, "
    "total_duration, end_reason, num_turns, num_silences, barge_ins, errors, handoff, handoff_reason, "
    "handoff_destination, variant_name, language, recording, end_function, end_attempts"
)


class Dialect(Enum):
    """The database that a statement is for; some statements need different SQL for each."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Statement:
    """A query, in which `?` stands for each value, in both dialects."""

    sql: str
    values: tuple[SqlValue, ...] = ()


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Conditions that calls have to meet; None or an empty text is no condition."""

    search: str = ""
    """Beginnings of words in the transcript, in numbers, and in names of functions and metrics."""
    start_time: str = ""
    """ISO 8601; the call started then or later."""
    end_time: str = ""
    """ISO 8601; the call started before."""
    project_id: str = ""
    environment: str = ""
    wire: str = ""
    channel: str = ""
    variant_name: str = ""
    from_number: str = ""
    end_reason: str = ""
    handoff: bool | None = None
    in_progress: bool | None = None


def page_size(limit: int) -> int:
    """Return `limit`, bounded to the number of calls that a page may have."""
    return min(max(limit, 1), MAX_PAGE_CALLS)


def calls(dialect: Dialect, call_filter: CallFilter, *, limit: int = 50, cursor: str = "") -> Statement:
    """Return the query of a page of calls, newest first. It finds one call more if there is a next page.

    Raises `ValueError` for a cursor that `cursor_of` did not make.
    """
    conditions, values = _conditions(dialect, call_filter)
    if cursor:
        # The cursor is the last row and no offset: calls that begin meanwhile move no other call to another page.
        conditions.append("(started_at, id) < (?, ?)")
        values += _parse_cursor(cursor)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    bound = page_size(limit) + 1
    order = "ORDER BY started_at DESC, id DESC"
    if index := _index_clause(dialect, call_filter):
        found = f"SELECT number FROM calls{index} {where}{order} LIMIT ?"
        return Statement(f"SELECT {_LIST_COLUMNS} FROM calls WHERE number IN ({found}) {order}", (*values, bound))
    return Statement(f"SELECT {_LIST_COLUMNS} FROM calls {where}{order} LIMIT ?", (*values, bound))


def count(dialect: Dialect, call_filter: CallFilter) -> Statement:
    """Return the query of the number of calls that the filter finds."""
    conditions, values = _conditions(dialect, call_filter)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return Statement(f"SELECT count(*) AS calls FROM calls{_index_clause(dialect, call_filter)}{where}", tuple(values))


def _index_clause(dialect: Dialect, call_filter: CallFilter) -> str:
    """Return SQL that makes SQLite filter a search's matches by an index: by default it reads their large rows."""
    return " INDEXED BY calls_filters" if dialect is Dialect.SQLITE and call_filter.search.strip() else ""


def cursor_of(row: JsonObject) -> str:
    """Return the cursor of the page that begins after this row."""
    return base64.urlsafe_b64encode(f"{row['started_at']} {row['id']}".encode()).decode().rstrip("=")


def call(call_id: str) -> tuple[Statement, Statement]:
    """Return the queries of the record and of the metrics of one call."""
    return (
        Statement("SELECT record, end_attempts FROM calls WHERE id = ?", (call_id,)),
        Statement("SELECT name, value, written_at FROM metrics WHERE call_id = ? ORDER BY sequence", (call_id,)),
    )


def overview(dialect: Dialect, since: str, project_id: str = "") -> dict[str, Statement]:
    """Return the queries of the figures since a day (`2026-01-31`), by the figures' names."""
    and_project = " AND project_id = ?" if project_id else ""
    values = (since, *((project_id,) if project_id else ()))
    latency, stages = _turns_sql(dialect, and_project)

    def grouped(columns: str) -> str:
        return f"FROM calls WHERE started_at >= ?{and_project} GROUP BY {columns}"

    return {
        "days": Statement(
            "SELECT substr(started_at, 1, 10) AS day, count(*) AS calls, sum(handoff) AS handoffs, "
            "sum(total_duration) AS seconds, sum(CASE WHEN end_reason IN ('error', 'server_killed') THEN 1 ELSE 0 END) "
            f"AS failed {grouped('1')} ORDER BY 1",
            values,
        ),
        "reasons": Statement(
            f"SELECT end_reason AS reason, count(*) AS calls {grouped('end_reason')} ORDER BY 2 DESC", values
        ),
        "handoffs": Statement(
            f"SELECT handoff_reason AS reason, count(*) AS calls FROM calls WHERE started_at >= ?{and_project} "
            "AND handoff = 1 GROUP BY handoff_reason ORDER BY 2 DESC LIMIT 20",
            values,
        ),
        "latency": Statement(latency, values),
        "stages": Statement(stages, values),
        "metrics": Statement(_metrics_sql(dialect, and_project), values),
    }


def _metrics_sql(dialect: Dialect, and_project: str) -> str:
    # SQLite reads sums by day that triggers keep (tables.py); PostgreSQL is quick enough to count.
    if dialect is Dialect.SQLITE:
        return (
            f"SELECT name, value, sum(written) AS written FROM metrics_daily WHERE day >= ?{and_project} "
            "AND written > 0 GROUP BY name, value ORDER BY 3 DESC LIMIT 500"
        )
    and_call = " AND call_id IN (SELECT id FROM calls WHERE project_id = ?)" if and_project else ""
    return (
        f"SELECT name, value, count(*) AS written FROM metrics WHERE written_at >= ?{and_call} "
        "GROUP BY name, value ORDER BY 3 DESC LIMIT 500"
    )


def _turns_sql(dialect: Dialect, and_project: str) -> tuple[str, str]:
    """Return the SQL of the turns' response times, counted by day and bucket of 50 ms, and of each stage's mean."""
    names = {stage: stage.removesuffix("_ms").replace("function", "functions") for stage in STAGES}
    if dialect is Dialect.SQLITE:
        where = f"FROM turns_daily WHERE day >= ?{and_project}"
        means = ", ".join(f"1.0 * sum({stage}) / nullif(sum({stage}_turns), 0) AS {names[stage]}" for stage in STAGES)
        return (
            f"SELECT day, bucket, sum(turns) AS turns {where} AND bucket >= 0 AND turns_daily.turns > 0 "
            "GROUP BY 1, 2 ORDER BY 1, 2",
            f"SELECT {means} {where}",
        )
    where = f"FROM turns WHERE day >= ?{and_project}"
    means = ", ".join(f"avg({stage}) AS {names[stage]}" for stage in STAGES)
    return (
        f"SELECT day, response_ms / 50 AS bucket, count(*) AS turns {where} AND response_ms IS NOT NULL "
        "GROUP BY 1, 2 ORDER BY 1, 2",
        f"SELECT {means} {where}",
    )


def traffic(project_id: str, since: str) -> Statement:
    """Return the query of how often calls went from one position to another."""
    return Statement(
        "SELECT previous, position, count(*) AS turns FROM turns WHERE project_id = ? AND day >= ? "
        "GROUP BY previous, position ORDER BY 3 DESC LIMIT 1000",
        (project_id, since),
    )


def projects() -> Statement:
    """Return the query of the projects that have calls."""
    return Statement("SELECT DISTINCT project_id FROM calls ORDER BY 1 LIMIT 100")


def _conditions(dialect: Dialect, call_filter: CallFilter) -> tuple[list[str], list[SqlValue]]:
    conditions: list[str] = []
    values: list[SqlValue] = []
    for column in ("project_id", "environment", "wire", "channel", "variant_name", "from_number", "end_reason"):
        if value := getattr(call_filter, column):
            conditions.append(f"{column} = ?")
            values.append(value)
    for value, condition in ((call_filter.start_time, "started_at >= ?"), (call_filter.end_time, "started_at < ?")):
        if value:
            conditions.append(condition)
            values.append(value)
    if call_filter.handoff is not None:
        conditions.append("handoff = ?")
        values.append(int(call_filter.handoff))
    if call_filter.in_progress is not None:
        conditions.append(f"ended_at IS {'' if call_filter.in_progress else 'NOT '}NULL")
    if call_filter.search.strip():
        condition, value = _search_condition(dialect, call_filter.search, alone=not conditions)
        conditions.append(condition)
        values.append(value)
    return conditions, values


def _search_condition(dialect: Dialect, text: str, *, alone: bool) -> tuple[str, str]:
    """Return the condition that every word of `text` is the beginning of one of the call's words, and its value.

    Only letters and digits reach the database's own search language, which has operators. `alone`: no other condition
    narrows the calls, so the newest matches are enough.
    """
    words = re.findall(r"[^\W_]+", text.encode("utf-8", "ignore").decode())[:10]
    if not words:
        # No call has this id: a search for punctuation must find nothing, and not every call.
        return "id = ?", "no word was asked for"
    if dialect is Dialect.SQLITE:
        newest = f" ORDER BY rowid DESC LIMIT {_MAX_MATCHES}" if alone else ""
        condition = f"number IN (SELECT rowid FROM calls_words WHERE calls_words MATCH ?{newest})"
        return condition, " ".join(f'"{word}"*' for word in words)
    return "tokens @@ to_tsquery('simple', ?)", " & ".join(f"'{word}':*" for word in words)


def _parse_cursor(cursor: str) -> list[str]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        raise ValueError("cursor is not valid") from None
    started, space, call_id = text.partition(" ")
    if not space or "\0" in text:
        raise ValueError("cursor is not valid")
    return [started, call_id]
