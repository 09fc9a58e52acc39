"""A Python function as a tool: types from its hints, descriptions from its docstring (Google's style)."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?)\s*:\s*$")
_ARGUMENTS = ("Args", "Arguments", "Parameters")
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^()]*\))?\s*:\s*(.*)$")
_CHOICES = re.compile(r"\s*\(\s*choices\s*:\s*(\[.*\])\s*\)\s*$", re.IGNORECASE | re.DOTALL)
_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def declaration_from_function(python_function: Callable[..., Any]) -> dict[str, Any]:
    """The tool, in OpenAI's shape, that the function is.

    `(choices: ["a", "b"])` at the end of an argument's description becomes its `enum`; a default makes it optional;
    a class that is no JSON type becomes an object. Raises `ValueError` where a docstring, a type or a description is
    missing.
    """
    name = python_function.__name__
    description, described = _read_docstring(inspect.getdoc(python_function) or "")
    if not description:
        raise ValueError(f"{name} has no docstring")
    hints = _hints(python_function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in _parameters(python_function):
        if parameter.name not in hints:
            raise ValueError(f"{name}: the argument {parameter.name} has no type")
        if parameter.name not in described:
            raise ValueError(f"{name}: the argument {parameter.name} has no description")
        properties[parameter.name] = _property(hints[parameter.name], described[parameter.name])
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and parameter.name != "self":
            yield parameter


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ValueError(f"the types of {function.__name__} cannot be resolved: {error}") from None


def _property(hint: Any, description: str) -> dict[str, Any]:
    schema = dict(_schema(hint))
    if (choices := _CHOICES.search(description)) is not None:
        try:
            schema["enum"] = json.loads(choices[1])
        except ValueError:
            raise ValueError(f"the choices {choices[1]} are no JSON list") from None
        description = description[: choices.start()].rstrip()
    schema["description"] = description
    return schema


def _schema(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is typing.Literal:
        kinds = [_SIMPLE[type(each)]["type"] for each in arguments]
        kind: Any = kinds[0] if len(set(kinds)) == 1 else list(dict.fromkeys(kinds))
        return {"type": kind, "enum": list(arguments)}
    if origin is typing.Annotated:
        return _schema(arguments[0])
    if (origin or hint) in (list, tuple, set, frozenset):
        items = [each for each in arguments if each is not ...]
        return {"type": "array", **({"items": _schema(items[0])} if items and _schema(items[0]) else {})}
    if (origin or hint) is dict:
        values = _schema(arguments[1]) if len(arguments) == 2 else {}
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    return _SIMPLE.get(hint, {"type": "object"})


def _union(arguments: tuple[Any, ...]) -> dict[str, Any]:
    nullable = {"nullable": True} if type(None) in arguments else {}
    schemas = [_schema(each) for each in arguments if each is not type(None)]
    if len(schemas) == 1:
        return {**schemas[0], **nullable}
    if all(set(each) == {"type"} and isinstance(each["type"], str) for each in schemas):
        return {"type": sorted({each["type"] for each in schemas}), **nullable}
    return {"anyOf": schemas, **nullable}


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description and that of each argument, each on one line."""
    section, head, arguments = "", [], []
    for line in text.splitlines():
        if (title := _SECTION.match(line.strip())) is not None and not line[:1].isspace():
            section = title[1]
        elif section in _ARGUMENTS and line[:1].strip():
            # "Returns: nothing" on one line: what stands at the margin is no argument.
            section = "Returns"
        elif section in _ARGUMENTS:
            arguments.append(line)
        elif not section:
            head.append(line.strip())
    return "\n".join(head).strip(), _read_arguments(arguments)


def _read_arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    current: list[str] = []
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    for line in lines:
        argument = _ARGUMENT.match(line.strip()) if line[indent : indent + 1].strip() else None
        if argument is not None:
            current = found[argument[1]] = [argument[2]]
        elif line.strip():
            current.append(line.strip())
    return {name: " ".join(words).strip() for name, words in found.items()}
