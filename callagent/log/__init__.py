"""Structured logs: one line when a call starts, one when it ends, and what goes over the wire at level `debug`.

`get_logger` is cheap: structlog is imported with the first line that is logged. `scrubbing.py` takes keys and passwords
out of every line.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from callagent.log.scrubbing import HIDDEN, MIN_SECRET, remember_secrets, scrub

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor

__all__ = [
    "HIDDEN",
    "MIN_SECRET",
    "Boundary",
    "Logger",
    "configure",
    "escape_unprintable",
    "get_logger",
    "remember_secrets",
    "scrub",
]

Redact: TypeAlias = Callable[[object], object]
_FREE_TEXT: Final = ("error", "traceback", "text", "detail", "returned", "message", "reason", "what", "exception")
"""Fields whose text was written by project code, providers or peers."""


class Logger:
    """A named logger. Its methods take the name of an event, and fields."""

    __slots__ = ("_bound", "_fields")

    def __init__(self, fields: dict[str, object]) -> None:
        self._fields = fields
        self._bound: FilteringBoundLogger | None = None

    @property
    def debug_enabled(self) -> bool:
        """Whether `debug` writes anything. Code that runs for every packet or frame asks once and keeps the answer."""
        return _state.debug

    def bind(self, **fields: object) -> Logger:
        """Return a logger that adds `fields` to every line."""
        return Logger({**self._fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        # Every message on the wire is logged at this level, so a disabled `debug` costs no more than this test.
        if _state.debug:
            self._structlog().debug(event, **fields)

    def info(self, event: str, **fields: object) -> None:
        self._structlog().info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        self._structlog().warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        self._structlog().error(event, **fields)

    def exception(self, event: str, **fields: object) -> None:
        """Log at level `error`, with the traceback of the exception that is being handled."""
        self._structlog().error(event, exc_info=True, **fields)

    def contain(self, event: str, **fields: object) -> Boundary:
        """Return a context manager that logs an exception of its block as `event` and suppresses it."""
        return Boundary(self, event, fields)

    def _structlog(self) -> FilteringBoundLogger:
        if self._bound is None:
            import structlog

            if not _state.configured:
                # A command that has not called `configure` logs only warnings and errors.
                configure("warning")
            bound: FilteringBoundLogger = structlog.get_logger().bind(**self._fields)
            self._bound = bound
        return self._bound


class Boundary:
    """A context manager that logs an exception of its block with the traceback and suppresses it.

    It is for the outermost places of a call or of project code, where one failure must not end anything else.
    Cancellation and `SystemExit` pass, because they are no `Exception`.
    """

    __slots__ = ("_event", "_fields", "_log", "error")

    def __init__(self, log: Logger, event: str, fields: dict[str, object]) -> None:
        self._log = log
        self._event = event
        self._fields = fields
        self.error: Exception | None = None
        """The suppressed exception; None if there was none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        self._log.exception(self._event, **self._fields)
        return True


class _StandardError:
    """A writer that looks up `sys.stderr` for each line, because it may have been replaced since logging was set up."""

    def write(self, line: str) -> None:
        # Only one thread writes at a time, so that lines do not mix.
        with _state.writing:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    debug = info = warning = error = write


def escape_unprintable(text: str) -> str:
    """Return `text` with control characters escaped: those in a caller's name or words could steer the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _redact_free_text(redact: Redact, _: object, __: str, fields: EventDict) -> EventDict:
    for name in _FREE_TEXT:
        if value := fields.get(name):
            fields[name] = redact(value)
    return fields


def _escape_fields(_: object, __: str, fields: EventDict) -> EventDict:
    return {name: escape_unprintable(value) if isinstance(value, str) else value for name, value in fields.items()}


def _scrub_line(_: object, __: str, line: EventDict | str) -> str:
    return scrub(str(line))


class _State:
    configured = False
    debug = False
    writing = threading.Lock()


_state = _State()


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger({"logger": name.removeprefix("callagent.")})


def configure(level: str = "info", *, json: bool | None = None, redact: Redact | None = None) -> None:
    """Set level (`debug`, `info`, `warning`, `error`) and form; JSON unless standard error is a terminal.

    `redact` is applied to fields whose text was written by project code, providers or peers.
    """
    import logging

    import structlog

    _state.configured = True
    _state.debug = level == "debug"
    as_json = not sys.stderr.isatty() if json is None else json
    # Tracebacks never show the values of variables, which may be secrets or a caller's words.
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    renderer: Processor = structlog.processors.JSONRenderer() if as_json else console
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        without_values = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        processors.append(structlog.processors.ExceptionRenderer(without_values))
    else:
        processors.append(_escape_fields)
    if redact:
        processors.append(partial(_redact_free_text, redact))
    structlog.configure(
        # Scrubbing comes last, over the whole line, because exceptions and their causes have texts as well.
        processors=[*processors, renderer, _scrub_line],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=_StandardError,
        cache_logger_on_first_use=True,
    )
