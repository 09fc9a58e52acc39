"""The questions that pages and reports ask, as SQL that SQLite and PostgreSQL both understand. No I/O."""

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
_SEARCHED: Final = 10_000
"""Newest matches that a search without other conditions looks at: a common word stands in most calls."""
# The columns of a list. Not the record, which is some hundred times as large and read only for a single call.
_LISTED = (
    "id, project_id, environment, channel, direction, wire, from_number, to_number, started_at, ended_at, "
    "total_duration, end_reason, num_turns, num_silences, barge_ins, errors, handoff, handoff_reason, "
    "handoff_destination, variant_name, language, recording, end_function, end_attempts"
)


class Dialect(Enum):
    """The database that a statement is for, where the two need different SQL."""

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
    """Return how many calls a page has that is to have `limit`."""
    return min(max(limit, 1), MAX_PAGE_CALLS)


def calls(dialect: Dialect, asked: CallFilter, *, limit: int = 50, cursor: str = "") -> Statement:
    """Return the query of a page of calls, newest first, with one call more where there is a next page.

    Raises `ValueError` for a cursor that `cursor_of` did not make.
    """
    conditions, values = _conditions(dialect, asked)
    if cursor:
        # By the last row and not by an offset: calls that begin between two pages move no other call to another page.
        conditions.append("(started_at, id) < (?, ?)")
        values += _parse_cursor(cursor)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    bound = page_size(limit) + 1
    order = "ORDER BY started_at DESC, id DESC"
    if by := _by_index(dialect, asked):
        found = f"SELECT number FROM calls{by} {where}{order} LIMIT ?"
        return Statement(f"SELECT {_LISTED} FROM calls WHERE number IN ({found}) {order}", (*values, bound))
    return Statement(f"SELECT {_LISTED} FROM calls {where}{order} LIMIT ?", (*values, bound))


def count(dialect: Dialect, asked: CallFilter) -> Statement:
    """Return the query of the number of calls that the filter finds."""
    conditions, values = _conditions(dialect, asked)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return Statement(f"SELECT count(*) AS calls FROM calls{_by_index(dialect, asked)}{where}", tuple(values))


def _by_index(dialect: Dialect, asked: CallFilter) -> str:
    """Make a search in SQLite look its matches up in an index: by itself it reads whole rows with their records."""
    return " INDEXED BY calls_filters" if dialect is Dialect.SQLITE and asked.search.strip() else ""


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
    day = " AND project_id = ?" if project_id else ""
    values = (since, *((project_id,) if project_id else ()))
    latency, stages = _of_turns(dialect, day)

    def grouped(what: str) -> str:
        return f"FROM calls WHERE started_at >= ?{day} GROUP BY {what}"

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
            f"SELECT handoff_reason AS reason, count(*) AS calls FROM calls WHERE started_at >= ?{day} AND handoff = 1 "
            "GROUP BY handoff_reason ORDER BY 2 DESC LIMIT 20",
            values,
        ),
        "latency": Statement(latency, values),
        "stages": Statement(stages, values),
        "metrics": Statement(_of_metrics(dialect, day), values),
    }


def _of_metrics(dialect: Dialect, day: str) -> str:
    # SQLite reads sums by day that triggers keep (tables.py); PostgreSQL is quick enough to count.
    if dialect is Dialect.SQLITE:
        return (
            f"SELECT name, value, sum(written) AS written FROM metrics_daily WHERE day >= ?{day} AND written > 0 "
            "GROUP BY name, value ORDER BY 3 DESC LIMIT 500"
        )
    of_project = " AND call_id IN (SELECT id FROM calls WHERE project_id = ?)" if day else ""
    return (
        f"SELECT name, value, count(*) AS written FROM metrics WHERE written_at >= ?{of_project} "
        "GROUP BY name, value ORDER BY 3 DESC LIMIT 500"
    )


def _of_turns(dialect: Dialect, day: str) -> tuple[str, str]:
    """Return the SQL of how quick the turns were: by day and bucket of 50 ms, and the mean of each stage."""
    names = {stage: stage.removesuffix("_ms").replace("function", "functions") for stage in STAGES}
    if dialect is Dialect.SQLITE:
        where = f"FROM turns_daily WHERE day >= ?{day}"
        means = ", ".join(f"1.0 * sum({stage}) / nullif(sum({stage}_turns), 0) AS {names[stage]}" for stage in STAGES)
        return (
            f"SELECT day, bucket, sum(turns) AS turns {where} AND bucket >= 0 AND turns_daily.turns > 0 "
            "GROUP BY 1, 2 ORDER BY 1, 2",
            f"SELECT {means} {where}",
        )
    where = f"FROM turns WHERE day >= ?{day}"
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


def _conditions(dialect: Dialect, asked: CallFilter) -> tuple[list[str], list[SqlValue]]:
    conditions: list[str] = []
    values: list[SqlValue] = []
    for column in ("project_id", "environment", "wire", "channel", "variant_name", "from_number", "end_reason"):
        if value := getattr(asked, column):
            conditions.append(f"{column} = ?")
            values.append(value)
    for value, condition in ((asked.start_time, "started_at >= ?"), (asked.end_time, "started_at < ?")):
        if value:
            conditions.append(condition)
            values.append(value)
    if asked.handoff is not None:
        conditions.append("handoff = ?")
        values.append(int(asked.handoff))
    if asked.in_progress is not None:
        conditions.append(f"ended_at IS {'' if asked.in_progress else 'NOT '}NULL")
    if asked.search.strip():
        condition, value = _search(dialect, asked.search, alone=not conditions)
        conditions.append(condition)
        values.append(value)
    return conditions, values


def _search(dialect: Dialect, text: str, *, alone: bool) -> tuple[str, str]:
    """Return the condition that every word of `text` is the beginning of one of the call's words, and its value.

    Only letters and digits reach the database's own search language, which has operators. `alone`: no other condition
    narrows the calls, so the newest matches are enough.
    """
    words = re.findall(r"[^\W_]+", text.encode("utf-8", "ignore").decode())[:10]
    if not words:
        # No call has this id: a search for punctuation finds nothing, and not everything.
        return "id = ?", "no word was asked for"
    if dialect is Dialect.SQLITE:
        newest = f" ORDER BY rowid DESC LIMIT {_SEARCHED}" if alone else ""
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
