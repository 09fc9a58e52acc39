"""What a worker finds out about an app's Python before any call: declarations of tools, and code that does not end."""

from __future__ import annotations

import inspect
import os
import re
import signal
import threading
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

_ARGUMENT = re.compile(r"\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_HEADING = re.compile(r"\s*(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?)\s*:\s*")


def declare(function: Callable[..., Any], description: str) -> dict[str, Any]:
    """Return a function as a tool, `{"description", "parameters"}`, from its hints and docstring.

    `description`: the configured one, which wins over the docstring's.
    """
    text, arguments = read_docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        hints = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        schema = _schema(hints.get(parameter.name, Any))
        if parameter.name in arguments:
            schema = {**schema, "description": arguments[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, **({"required": required} if required else {})}
    return {"description": description or text, "parameters": parameters if properties else None}


def read_docstring(text: str) -> tuple[str, Mapping[str, str]]:
    """Return a docstring's description of the function, and of each argument (Google style)."""
    said: list[str] = []
    arguments: dict[str, str] = {}
    section, name = "", ""
    for line in text.splitlines():
        if found := _HEADING.fullmatch(line):
            section, name = found.group(1), ""
        elif not section:
            said.append(line)
        elif section in ("Args", "Arguments", "Parameters"):
            if found := _ARGUMENT.fullmatch(line):
                name = found.group(1)
                arguments[name] = found.group(2).strip()
            elif name and line.strip():
                arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return "\n".join(said).strip(), arguments


def _schema(hint: Any) -> dict[str, Any]:
    try:
        return TypeAdapter(hint).json_schema()
    except PydanticUserError:
        # A type without a JSON schema is declared as any value.
        return {}


class OutOfTime(BaseException):
    """The time is over. It is no Exception, so that code that catches those does not go on."""


_MAX_RAISES = 3
"""`OutOfTime` is raised so often in code that catches it; then the process ends."""


@contextmanager
def time_limit(file: str, seconds: float, on_over: Callable[[int], None]) -> Iterator[None]:
    """Raise `OutOfTime` in the code of a file after some seconds, again where it is caught, and then end the process.

    `on_over` is called with the line of the file at which the code was. Without effect outside of the main thread,
    which alone takes signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    left = _MAX_RAISES

    def over(number: int, frame: FrameType | None) -> None:
        nonlocal left
        left -= 1
        on_over(_line(file, frame))
        if not left:
            os._exit(1)
        raise OutOfTime(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _line(file: str, frame: FrameType | None) -> int:
    """Return the line of the file's own code, whatever code it has called."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 1
