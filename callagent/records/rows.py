"""A call's record as rows of the store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

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
_WORDS_BOUND = 200_000


def call_row(record: Mapping[str, Any], owner: str) -> tuple[Any, ...]:
    """The values of `CALL_COLUMNS`; `record` is the record as JSON data."""
    values = {
        **record,
        "barge_ins": sum(1 for turn in record["turns"] if turn["barge_in"]),
        "errors": len(record["errors"]),
        "handoff": int(record["handoff"]),
        "owner": owner if record["in_progress"] else None,
        "words": _words(record),
        "record": dumps(record),
    }
    return tuple(_storable(values[column]) for column in CALL_COLUMNS)


def turn_rows(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The values of `TURN_COLUMNS`, a row for each turn."""
    rows = []
    previous = ""
    for turn in record["turns"]:
        instants, latency = turn["instants"], turn["latency"]
        position = "/".join(part for part in (turn["flow"], turn["step"]) if part)
        functions = sum(function["duration_ms"] for function in turn["functions"])
        rows.append(
            (
                *(record["id"], turn["number"], record["project_id"], record["started_at"][:10], previous, position),
                *(_ms(latency.get(stage)) for stage in ("response", "endpointing", "transcription")),
                _ms(between(instants.get("turn_ended"), instants.get("first_token"))),
                round(functions) if turn["functions"] else None,
                _ms(latency.get("barge_in")),
            )
        )
        previous = position
    return rows


def between(start: float | None, end: float | None) -> float | None:
    """Seconds from one instant to a later one; None where either did not happen."""
    return None if start is None or end is None or end < start else end - start


def dumps(value: Any) -> str:
    """As JSON text that both databases take."""
    text = json.dumps(value, ensure_ascii=False, default=str).replace("\\u0000", "\\ufffd")
    return text.encode("utf-8", "replace").decode("utf-8")


def _storable(value: Any) -> Any:
    """PostgreSQL's text holds no NUL, and a lone surrogate is not UTF-8."""
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _words(record: Mapping[str, Any]) -> str:
    # Only letters and digits: what a word is must not depend on the database.
    words = (word for text in _texts(record) if text for word in _WORD.findall(text))
    return " ".join(words)[:_WORDS_BOUND]


def _texts(record: Mapping[str, Any]) -> Iterable[str | None]:
    yield from (record["id"], record["from_number"], record["to_number"], record["handoff_destination"])
    for turn in record["turns"]:
        yield from (turn["user_input"], turn["user_input_dtmf"])
        yield from (spoken["text"] for spoken in turn["spoken"])
        yield from (function["name"] for function in turn["functions"])
    yield from (str(metric["name"]) for metric in record["metrics"])
