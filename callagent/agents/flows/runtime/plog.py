"""The log of project code: `conv.log`, and this module itself, which projects import as `plog`.

Both write entries for the call's record, which are sent to the core at once.
"""

from __future__ import annotations

import datetime
import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from callagent.agents.kernel import to_json_or_note
from callagent.json_values import MutableJsonObject
from callagent.workers import Plain

LOG_LIMIT = 64 * 1024
"""Characters of log that one call may write; after them one entry says that the rest is dropped."""
_FIELD_LIMIT = 8 * 1024

Send = Callable[[Plain], None]


class ConversationLogger:
    """The log of one call."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._left = LOG_LIMIT
        self._bound: list[dict[str, object]] = []
        self._entries: list[MutableJsonObject] = []

    def debug(self, content: object = "", is_pii: bool = False, **fields: object) -> None:
        self._write("debug", content, is_pii, fields)

    def info(self, content: object = "", is_pii: bool = False, **fields: object) -> None:
        self._write("info", content, is_pii, fields)

    def warning(self, content: object = "", is_pii: bool = False, **fields: object) -> None:
        self._write("warning", content, is_pii, fields)

    def error(self, content: object = "", is_pii: bool = False, **fields: object) -> None:
        self._write("error", content, is_pii, fields)

    def exception(self, content: object = "", is_pii: bool = False, **fields: object) -> None:
        self._write("error", content, is_pii, {"exc_info": True, **fields})

    @contextmanager
    def with_fields(self, fields: dict[str, object]) -> Iterator[None]:
        """Add `fields` to every entry made inside."""
        self._bound.append(fields)
        try:
            yield
        finally:
            self._bound.remove(fields)

    def take_entries(self) -> list[MutableJsonObject]:
        """Return the entries that were added since the last call of this method."""
        entries, self._entries = self._entries, []
        return entries

    def _write(self, level: str, content: object, is_pii: bool, fields: dict[str, object]) -> None:
        if self._left <= 0:
            return
        for each in self._bound:
            fields = {**each, **fields}
        # `exc_info` as in the standard library's logging: adds the exception that is being handled.
        if fields.pop("exc_info", False):
            fields["traceback"] = traceback.format_exc(limit=-20)
        entry: MutableJsonObject = {str(name): to_json_or_note(value, _FIELD_LIMIT) for name, value in fields.items()}
        entry |= {
            "level": level,
            "content": to_json_or_note(content if isinstance(content, str) else str(content), _FIELD_LIMIT),
            "is_pii": bool(is_pii),
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z"),
            "logger": "conversation_logger",
        }
        self._left -= len(repr(entry))
        self._emit(entry)
        if self._left <= 0:
            self._emit(
                {**entry, "level": "warning", "content": f"log is full: {LOG_LIMIT} characters; the rest is dropped"}
            )

    def _emit(self, entry: MutableJsonObject) -> None:
        self._entries.append(entry)
        self._send({**entry, "type": "log"})


_current: ContextVar[ConversationLogger | None] = ContextVar("conversation_logger", default=None)
_latest: list[ConversationLogger] = []


def use(logger: ConversationLogger) -> None:
    """Make `plog` write to `logger` in this thread and in the threads that project code starts."""
    _current.set(logger)
    # A thread that project code starts has a context of its own, without the logger.
    _latest[:] = [logger]


def current() -> ConversationLogger | None:
    return _current.get() or (_latest[0] if _latest else None)


__all__ = ["debug", "error", "exception", "info", "tmp_bind", "warning"]


def debug(message: object = "", is_pii: bool = False, **fields: object) -> None:
    _write("debug", message, is_pii, fields)


def info(message: object = "", is_pii: bool = False, **fields: object) -> None:
    _write("info", message, is_pii, fields)


def warning(message: object = "", is_pii: bool = False, **fields: object) -> None:
    _write("warning", message, is_pii, fields)


def error(message: object = "", is_pii: bool = False, **fields: object) -> None:
    _write("error", message, is_pii, fields)


def exception(message: object = "", is_pii: bool = False, **fields: object) -> None:
    _write("exception", message, is_pii, fields)


def tmp_bind(**fields: object) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Return a decorator that adds fields to all entries logged inside the decorated function."""

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def wrapper(*arguments: object, **named: object) -> object:
            logger = current()
            if logger is None:
                return function(*arguments, **named)
            with logger.with_fields(fields):
                return function(*arguments, **named)

        return wrapper

    return decorate


def _write(level: str, message: object, is_pii: bool, fields: dict[str, object]) -> None:
    logger = current()
    if logger is not None:
        getattr(logger, level)(message, is_pii, **fields)
