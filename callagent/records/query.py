"""The questions that pages and reports ask, as SQL that SQLite and PostgreSQL both understand. No I/O."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from callagent.records.tables import STAGES

MAX_PAGE_CALLS: Final = 500
_SEARCHED: Final = 10_000
"""Of a common word without other conditions, so many of the newest matches are looked at."""
_LISTED = (
    "id, project_id, environment, channel, direction, wire, from_number, to_number, started_at, ended_at, "
    "total_duration, end_reason, num_turns, num_silences, barge_ins, errors, handoff, handoff_reason, "
    "handoff_destination, variant_name, language, recording, end_function, end_attempts"
)


class Dialect(Enum):
    SQLITE = "sqlite"
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Statement:
    """`?` stands for each value, in both dialects."""

    sql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class CallFilter:
    """What calls are asked for; None and empty: any."""

    search: str = ""
    """Words that begin so, in the transcript, numbers, names of functions and metrics."""
    start_time: str = ""
    """ISO 8601; a call that started then or later."""
    end_time: str = ""
    project_id: str = ""
    environment: str = ""
    wire: str = ""
    channel: str = ""
    variant_name: str = ""
    from_number: str = ""
    end_reason: str = ""
    handoff: bool | None = None
    in_progress: bool | None = None


def calls(dialect: Dialect, asked: CallFilter, *, limit: int = 50, cursor: str = "") -> Statement:
    """A page of calls, newest first, and one more than `limit` where there is a next page.

    Raises `ValueError` for a cursor that is none of ours.
    """
    conditions, values = _conditions(dialect, asked)
    if cursor:
        conditions.append("(started_at, id) < (?, ?)")
        values += _parse_cursor(cursor)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    bound = min(max(limit, 1), MAX_PAGE_CALLS) + 1
    order = "ORDER BY started_at DESC, id DESC"
    if by := _by_index(dialect, asked):
        found = f"SELECT number FROM calls{by} {where}{order} LIMIT ?"
        return Statement(f"SELECT {_LISTED} FROM calls WHERE number IN ({found}) {order}", (*values, bound))
    return Statement(f"SELECT {_LISTED} FROM calls {where}{order} LIMIT ?", (*values, bound))


def count(dialect: Dialect, asked: CallFilter) -> Statement:
    conditions, values = _conditions(dialect, asked)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return Statement(f"SELECT count(*) AS calls FROM calls{_by_index(dialect, asked)}{where}", tuple(values))


def _by_index(dialect: Dialect, asked: CallFilter) -> str:
    """A search in SQLite looks its matches up in an index of what is filtered by; by itself it reads whole rows."""
    return " INDEXED BY calls_filters" if dialect is Dialect.SQLITE and asked.search.strip() else ""


def cursor_of(row: dict[str, Any]) -> str:
    """Where the page after this row begins."""
    return base64.urlsafe_b64encode(f"{row['started_at']} {row['id']}".encode()).decode().rstrip("=")


def call(call_id: str) -> tuple[Statement, Statement]:
    """The record and the metrics of one call."""
    return (
        Statement("SELECT record, end_attempts FROM calls WHERE id = ?", (call_id,)),
        Statement("SELECT name, value, written_at FROM metrics WHERE call_id = ? ORDER BY sequence", (call_id,)),
    )


def overview(dialect: Dialect, since: str, project_id: str = "") -> dict[str, Statement]:
    """The figures since a day (`2026-01-31`), by what they are."""
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
    """How quick the turns were: by day and bucket of 50 ms, and the mean of each stage."""
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
    """How often calls went from one position to another."""
    return Statement(
        "SELECT previous, position, count(*) AS turns FROM turns WHERE project_id = ? AND day >= ? "
        "GROUP BY previous, position ORDER BY 3 DESC LIMIT 1000",
        (project_id, since),
    )


def projects() -> Statement:
    return Statement("SELECT DISTINCT project_id FROM calls ORDER BY 1 LIMIT 100")


def _conditions(dialect: Dialect, asked: CallFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
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
    """Every word, as the beginning of one; only letters and digits reach the database's own search language.

    `alone`: nothing else narrows the calls, so the newest matches are enough.
    """
    words = re.findall(r"[^\W_]+", text.encode("utf-8", "ignore").decode())[:10]
    if not words:
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
