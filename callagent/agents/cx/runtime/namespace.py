"""The globals of an app's Python files, and the functions in them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from callagent.agents.cx.runtime.allowed_imports import code_builtins
from callagent.agents.cx.runtime.classes import (
    Blob,
    CallbackContext,
    Content,
    Event,
    EventActions,
    FunctionCall,
    FunctionDeclaration,
    FunctionResponse,
    GenerateContentConfig,
    HttpMethod,
    LlmRequest,
    LlmResponse,
    Part,
    Tool,
    ToolContext,
    ToolDeclaration,
)
from callagent.agents.cx.runtime.http import ExternalResponse, Requests, StatusError

CLASSES: Mapping[str, type] = {
    each.__name__: each
    for each in (
        Blob, Content, Event, EventActions, FunctionCall,
        FunctionDeclaration, FunctionResponse, GenerateContentConfig, HttpMethod,
        LlmRequest, LlmResponse, Part, Tool, ToolDeclaration,
        CallbackContext, ToolContext, ExternalResponse, Requests, StatusError,
    )
}  # fmt: skip
# Published code annotates with these and does not import them.
_TYPING = ("Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Literal", "Optional", "Set", "Tuple", "Union")


class _CesPublic:
    """`ces_public`, under which published code names the same classes (`ces_public.Part`)."""

    def __init__(self) -> None:
        for name, each in CLASSES.items():
            setattr(self, name, each)


class Namespaces:
    """The namespaces of one call: each file is run once, when it is first needed."""

    def __init__(self, compiled: Mapping[str, CodeType | SyntaxError], platform: Mapping[str, Any]) -> None:
        self._compiled = compiled
        self._platform = platform
        self._made: dict[str, dict[str, Any]] = {}
        self._typing = {name: getattr(typing, name) for name in _TYPING}

    def get(self, file: str) -> dict[str, Any]:
        """Return the globals of a file, which runs if it has not. Raises what the file raises."""
        if file in self._made:
            return self._made[file]
        code = self._compiled[file]
        if isinstance(code, SyntaxError):
            raise code
        names = {
            **self._typing,
            **CLASSES,
            "ces_public": _CesPublic(),
            **self._platform,
            "__name__": file.rpartition("/")[2].removesuffix(".py"),
            "__file__": file,
            "__builtins__": code_builtins(),
        }
        exec(code, names)
        self._made[file] = names
        return names

    def function(self, file: str, name: str) -> Callable[..., Any]:
        """Return a function of a file; empty name: the first one. Raises LookupError and what the file raises."""
        names = self.get(file)
        if name:
            found = names.get(name)
            if not callable(found):
                raise LookupError(f"{file} has no function '{name}'")
            return found  # type: ignore[no-any-return]
        own = (each for each in names.values() if inspect.isfunction(each) and each.__code__.co_filename == file)
        first = next(own, None)
        if first is None:
            raise LookupError(f"{file} has no function")
        return first


def call_by_name(function: Callable[..., Any], named: Mapping[str, Any]) -> Any:
    """Call a function by keyword with those of the arguments that it takes."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function(**named)
    return function(**{name: value for name, value in named.items() if name in parameters})
