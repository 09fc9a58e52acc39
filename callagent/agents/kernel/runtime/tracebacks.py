"""Errors of project code as text: without the frames of this package, with the remedy where the sandbox refused."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

_OURS = str(Path(__file__).parents[2])
"""The folder of the agents package: frames of its files are left out at the top of a traceback."""
_TEXT_LIMIT = 8 * 1024
_CHAIN = 20
_NOT_PERMITTED = "Permission denied"
_REMEDY = (
    "callagent: project code connects to the TCP ports of limits.function_network, starts the programs of "
    "limits.function_programs, reads the project's folder and Python's, and writes to tempfile.gettempdir() only"
)


def error_message(error: BaseException) -> str:
    """Return the error's text, cut to 2,000 characters."""
    try:
        return str(error)[:2000]
    except Exception:  # the exception's own __str__ is project code
        return f"<{type(error).__name__} whose text cannot be shown>"


def error_report(error: BaseException) -> dict[str, Any]:
    """Return `{"type", "message", "traceback"}` without this package's own frames at the top."""
    inside = error.__traceback__
    while inside is not None and inside.tb_next is not None and _is_ours(inside):
        inside = inside.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, inside, limit=-30))
    except Exception:  # as above
        text = "".join(traceback.format_tb(inside, limit=-30))
    text = text.encode("utf-8", "replace").decode() + remedy_of(error, "{}\n")
    message = error_message(error).encode("utf-8", "replace").decode()
    return {"type": type(error).__name__, "message": message, "traceback": text[-_TEXT_LIMIT:]}


def import_report(error: BaseException, root: Path, source: Path) -> dict[str, Any]:
    """Return `{"type", "message", "file", "line"}`: the last place in the project that led to the error."""
    file, line = source, None
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(root):
        file, line = Path(error.filename), error.lineno
    else:
        for frame, number in traceback.walk_tb(error.__traceback__):
            place = Path(frame.f_code.co_filename)
            if place.is_relative_to(root):
                file, line = place, number
    # The project knows its modules without the prefix that keeps projects apart.
    message = re.sub(r"\bflow_project_\d+\.", "", error_message(error)).replace(f"{root}/", "")
    message += remedy_of(error)
    return {"type": type(error).__name__, "message": message, "file": str(file.relative_to(root)), "line": line}


def remedy_of(error: BaseException, form: str = " ({})") -> str:
    """Return which setting to change where the kernel refused something to project code; empty: it did not.

    It is meant for readers of logs and start messages; a model is told the error alone.
    """
    cause: BaseException | None = error
    for _ in range(_CHAIN):
        if cause is None:
            break
        # Libraries in C, and urllib3, give the kernel's answer as words only.
        if isinstance(cause, PermissionError) or _NOT_PERMITTED in error_message(cause):
            return form.format(_REMEDY)
        cause = cause.__cause__ or cause.__context__
    return ""


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)
