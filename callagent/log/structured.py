"""Structured logs: one line when a call starts, one when it ends, the wire at debug.

`get_logger` is cheap: structlog is imported with the first line logged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast

from callagent.log.scrubbing import scrub

_THEIR_WORDS: Final = ("error", "traceback", "text", "detail", "returned", "message", "reason", "what", "exception")


class Logger:
    """A named logger; methods take an event name and fields."""

    __slots__ = ("_bound", "_fields")

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._bound: Any = None

    @property
    def debug_enabled(self) -> bool:
        """Whether lines at debug level are written; for a path where even asking is to be done once."""
        return _state.debug

    def bind(self, **fields: Any) -> Logger:
        """A logger that adds `fields` to every line."""
        return Logger({**self._fields, **fields})

    @property
    def debugging(self) -> bool:
        """Whether `debug` writes anything. Code that runs often asks once and keeps the answer."""
        return _state.debug

    def debug(self, event: str, **fields: Any) -> None:
        if _state.debug:
            self._structlog().debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self._structlog().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._structlog().warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self._structlog().error(event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """At error level, with the traceback of the exception being handled."""
        self._structlog().error(event, exc_info=True, **fields)

    def contain(self, event: str, **fields: object) -> Boundary:
        """Return a context whose unforeseen exceptions are logged as `event` and end with its block."""
        return Boundary(self, event, fields)

    def _structlog(self) -> Any:
        if self._bound is None:
            import structlog

            if not _state.configured:
                # A command that did not choose says what is wrong, on standard error.
                configure("warning")

            self._bound = structlog.get_logger().bind(**self._fields)
        return self._bound


class Boundary:
    """A block of code that no exception leaves: it is logged with its traceback, and the code after the block runs.

    For the outermost places of a call or of project code, where whatever goes wrong must end one thing and no other.
    Cancellation and `SystemExit`, which are no `Exception`, pass.
    """

    __slots__ = ("_event", "_fields", "_log", "error")

    def __init__(self, log: Logger, event: str, fields: dict[str, object]) -> None:
        self._log = log
        self._event = event
        self._fields = fields
        self.error: Exception | None = None
        """What was raised; None so far, or if nothing was."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        self._log.exception(self._event, **self._fields)
        return True


class _StandardError:
    """Standard error as it is when something is written: it may have been replaced since logging was set up."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _redacted(redact: Callable[[Any], Any], _: object, __: str, fields: dict[str, Any]) -> dict[str, Any]:
    for name in _THEIR_WORDS:
        if value := fields.get(name):
            fields[name] = redact(value)
    return fields


def plain(text: str) -> str:
    """One line that a terminal only shows: a caller's name or words may hold what it would obey."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _plain_fields(_: object, __: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) if isinstance(value, str) else value for name, value in fields.items()}


def _scrubbed(_: object, __: str, line: Any) -> str:
    return scrub(str(line))


class _State:
    configured = False
    debug = False


_state = _State()


def get_logger(name: str) -> Logger:
    return Logger({"logger": name.removeprefix("callagent.")})


def configure(level: str = "info", *, json: bool | None = None, redact: Callable[[Any], Any] | None = None) -> None:
    """Set level (`debug`, `info`, `warning`, `error`) and form; JSON unless standard error is a terminal.

    `redact` is put over what project code and peers say in their own words.
    """
    import logging

    import structlog

    _state.configured = True
    _state.debug = level == "debug"
    as_json = not sys.stderr.isatty() if json is None else json
    # Never with the values of variables: they may be secrets or what a caller said.
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    renderer: Any = structlog.processors.JSONRenderer() if as_json else console
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        without_values = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        processors.append(structlog.processors.ExceptionRenderer(without_values))
    else:
        processors.append(_plain_fields)
    if redact:
        processors.append(partial(_redacted, redact))
    structlog.configure(
        # Last, over the whole line: exceptions have texts of their own, and those that they came from.
        processors=[*processors, renderer, _scrubbed],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast("Any", _StandardError())),
        cache_logger_on_first_use=True,
    )
