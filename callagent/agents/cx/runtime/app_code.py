"""An app's Python in a worker: its permitted imports, its globals, and its functions as declarations of tools.

An app may import three libraries, and the standard library without sockets and processes. This keeps apps portable;
protection comes from the confinement of the worker process, not from here.
"""

from __future__ import annotations

import builtins
import inspect
import os
import re
import signal
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from callagent.agents.cx.format import Code, CxApp
from callagent.agents.cx.runtime import classes
from callagent.agents.cx.runtime.http import ExternalResponse, Requests, StatusError
from callagent.json_values import JsonObject, MutableJsonObject

# Forbidden modules open sockets, start processes, or bypass the checked `__import__`.
_ALLOWED_LIBRARIES = frozenset({"pydantic", "pydantic_core", "numpy", "google"})
_FORBIDDEN = frozenset(
    {
        "_ctypes", "_posixsubprocess", "_socket", "_ssl", "_winapi", "ctypes", "ftplib", "gc", "imaplib", "importlib",
        "multiprocessing", "nntplib", "pip", "poplib", "pty", "runpy", "smtplib", "socket", "socketserver", "ssl",
        "subprocess", "telnetlib", "webbrowser", "xmlrpc",
    }
)  # fmt: skip
_FORBIDDEN_MODULES = ("http.client", "http.server", "urllib.request", "concurrent.futures.process")
_ALLOWED_OF_GOOGLE = ("google.protobuf",)


def may_import(name: str) -> bool:
    """Return whether an app's code may import a dotted name."""
    top = name.partition(".")[0]
    if top == "google":
        return any(f"{name}.".startswith(f"{each}.") for each in _ALLOWED_OF_GOOGLE)
    if top in _FORBIDDEN or any(f"{name}.".startswith(f"{each}.") for each in _FORBIDDEN_MODULES):
        return False
    return top in _ALLOWED_LIBRARIES or top in sys.stdlib_module_names


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> object:
    """Import a module for an app's code, in the place of Python's own `__import__`."""
    if level:
        raise ImportError("an app's code has no package for relative imports: write the code in this file")
    # `from urllib import request` imports `urllib.request`: each name of the list may be a module, too.
    wanted = [name, *(f"{name}.{each}" for each in fromlist or ())]
    is_google = name == "google" and fromlist
    for each in wanted[1:] if is_google else wanted:
        if not may_import(each):
            raise ImportError(f"'{each}' may not be imported: the standard library, pydantic, numpy and protobuf may")
    return builtins.__import__(name, globals, locals, fromlist or (), level)


def code_builtins() -> dict[str, object]:
    """Return the builtins of an app's code, whose imports are checked."""
    return {**vars(builtins), "__import__": _import}


CLASSES: Mapping[str, type] = {
    each.__name__: each
    for each in (
        classes.Blob, classes.Content, classes.Event, classes.EventActions, classes.FunctionCall,
        classes.FunctionDeclaration, classes.FunctionResponse, classes.GenerateContentConfig, classes.HttpMethod,
        classes.LlmRequest, classes.LlmResponse, classes.Part, classes.Tool, classes.ToolDeclaration,
        classes.CallbackContext, classes.ToolContext, ExternalResponse, Requests, StatusError,
    )
}  # fmt: skip
# Published code uses these names in annotations without importing them.
_TYPING = ("Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Literal", "Optional", "Set", "Tuple", "Union")


class _CesPublic:
    """The global `ces_public` of published code, which has the same classes as attributes (`ces_public.Part`)."""

    def __init__(self) -> None:
        for name, each in CLASSES.items():
            setattr(self, name, each)


Compiled = CodeType | SyntaxError
"""A compiled file, or its syntax error, which is raised when the file is used or described."""


def all_code(app: CxApp) -> list[Code]:
    """Return all Python files of an app."""
    found = [code for tool in app.tools.values() for code in (tool.code, tool.fake) if code is not None]
    for agent in app.agents.values():
        found += [code for row in agent.callbacks.values() for code in row]
        found += agent.conditions.values()
    for guardrail in app.guardrails.values():
        found += guardrail.callbacks.values()
    return found


def compile_app(app: CxApp) -> dict[str, Compiled]:
    """Compile all Python files of an app; the keys are the files."""
    return {code.file: _compiled(code) for code in all_code(app)}


def _compiled(code: Code) -> Compiled:
    try:
        return compile(code.source, code.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return error if isinstance(error, SyntaxError) else SyntaxError(str(error))


class Namespaces:
    """The namespaces of one call: each file runs once, when it is first needed."""

    def __init__(self, compiled: Mapping[str, Compiled], platform: Mapping[str, object]) -> None:
        self._compiled = compiled
        self._platform = platform
        self._globals_by_file: dict[str, dict[str, object]] = {}
        self._typing = {name: getattr(typing, name) for name in _TYPING}

    def get(self, file: str) -> dict[str, object]:
        """Return the globals of a file; run it first if it has not run yet. Raises the file's exceptions."""
        if file in self._globals_by_file:
            return self._globals_by_file[file]
        code = self._compiled[file]
        if isinstance(code, SyntaxError):
            raise code
        names: dict[str, object] = {
            **self._typing,
            **CLASSES,
            "ces_public": _CesPublic(),
            **self._platform,
            "__name__": file.rpartition("/")[2].removesuffix(".py"),
            "__file__": file,
            # Without this key `exec` would put the real builtins there, with the real `__import__`.
            "__builtins__": code_builtins(),
        }
        exec(code, names)
        # A file that fails is not kept, so that it runs and fails again when it is next needed.
        self._globals_by_file[file] = names
        return names

    def function(self, file: str, name: str) -> Callable[..., object]:
        """Return a function of a file; empty name: the first one. Raises LookupError and the file's exceptions."""
        names = self.get(file)
        if name:
            found = names.get(name)
            if not callable(found):
                raise LookupError(f"{file} has no function '{name}'")
            return found
        # The globals also have functions that the file has imported; its own were compiled from it.
        own = (each for each in names.values() if inspect.isfunction(each) and each.__code__.co_filename == file)
        first = next(own, None)
        if first is None:
            raise LookupError(f"{file} defines no function")
        return first


def call_by_name(function: Callable[..., object], named: Mapping[str, object]) -> object:
    """Call a function by keyword with the arguments that it takes."""
    # Published callbacks declare only the arguments that they use, and further ones would be an error.
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function(**named)
    return function(**{name: value for name, value in named.items() if name in parameters})


_ARGUMENT = re.compile(r"\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_HEADING = re.compile(r"\s*(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?)\s*:\s*")


def declare(function: Callable[..., object], description: str) -> JsonObject:
    """Return the declaration of a function as a tool, `{"description", "parameters"}`, from its hints and docstring.

    `description`: the configured one, which replaces the docstring's.
    """
    text, arguments = read_docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        # A hint may use an undefined name. The tool works all the same; its arguments are declared without types.
        hints = {}
    properties: MutableJsonObject = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        schema = _schema(hints[parameter.name]) if parameter.name in hints else {}
        if parameter.name in arguments:
            schema = {**schema, "description": arguments[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = schema
    parameters: JsonObject = {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }
    return {"description": description or text, "parameters": parameters if properties else None}


def read_docstring(text: str) -> tuple[str, Mapping[str, str]]:
    """Return a docstring's description of the function, and of each argument (Google style)."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    section, name = "", ""
    for line in text.splitlines():
        if found := _HEADING.fullmatch(line):
            section, name = found.group(1), ""
        elif not section:
            description.append(line)
        elif section in ("Args", "Arguments", "Parameters"):
            if found := _ARGUMENT.fullmatch(line):
                name = found.group(1)
                arguments[name] = found.group(2).strip()
            elif name and line.strip():
                arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return "\n".join(description).strip(), arguments


def _schema(hint: Any) -> JsonObject:
    try:
        schema: JsonObject = TypeAdapter(hint).json_schema()
        return schema
    except PydanticUserError:
        # A type without a JSON schema is declared as any value.
        return {}


class OutOfTime(BaseException):
    """Raised in code that exceeds its time limit. No `Exception`, because the code may catch all of those."""


_MAX_RAISES = 3
"""Number of times that the limit interrupts code that catches `OutOfTime`; the last time ends the process."""


@contextmanager
def time_limit(file: str, seconds: float, on_timeout: Callable[[int], None]) -> Iterator[None]:
    """Raise `OutOfTime` in a file's code after some seconds, again if the code catches it, and then end the process.

    `on_timeout` is called with the line of the file at which the code was. Only in the main thread is there a limit,
    because only that receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    left = _MAX_RAISES

    def raise_timeout(number: int, frame: FrameType | None) -> None:
        nonlocal left
        left -= 1
        on_timeout(_line(file, frame))
        if not left:
            # The core knows the file from the last report (`project.describe_app`).
            os._exit(1)
        raise OutOfTime(f"still running after {seconds:g} s")

    # Only a signal can interrupt an endless loop, so this is a timer and not a thread. It repeats every second, because
    # the code may catch the first exception.
    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _line(file: str, frame: FrameType | None) -> int:
    """Return the line in the file from which the running code was called."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 1
