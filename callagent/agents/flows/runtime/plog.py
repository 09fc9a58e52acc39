"""The module that project code imports as `plog`: the log of whichever call runs now."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from callagent.agents.flows.runtime import logs

__all__ = ["debug", "error", "exception", "info", "tmp_bind", "warning"]


def debug(message: Any = "", is_pii: bool = False, **fields: Any) -> None:
    _write("debug", message, is_pii, fields)


def info(message: Any = "", is_pii: bool = False, **fields: Any) -> None:
    _write("info", message, is_pii, fields)


def warning(message: Any = "", is_pii: bool = False, **fields: Any) -> None:
    _write("warning", message, is_pii, fields)


def error(message: Any = "", is_pii: bool = False, **fields: Any) -> None:
    _write("error", message, is_pii, fields)


def exception(message: Any = "", is_pii: bool = False, **fields: Any) -> None:
    _write("exception", message, is_pii, fields)


def tmp_bind(**fields: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds fields to what is logged inside the decorated function."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def bound(*arguments: Any, **named: Any) -> Any:
            logger = logs.current()
            if logger is None:
                return function(*arguments, **named)
            with logger.bound(fields):
                return function(*arguments, **named)

        return bound

    return decorate


def _write(level: str, message: Any, is_pii: bool, fields: dict[str, Any]) -> None:
    logger = logs.current()
    if logger is not None:
        getattr(logger, level)(message, is_pii, **fields)
