"""Declarations of functions: how a model reads them, and how one is made from a Python function."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from callagent.models.functiongemma.format import (
    FUNCTIONGEMMA,
    TokenSet,
    dictsort,
    format_key,
    format_string,
    format_value,
    is_identifier,
)
from callagent.models.functiongemma.schema import tidy
from callagent.models.protocol import Tool

Order = Literal["hf", "input"]

_MAP_KEYS = ("properties", "$defs", "definitions", "patternProperties")
"""Their keys are names of the project's own: a property called `type` is no type."""


def render_declaration(tool: Tool, *, tokens: TokenSet = FUNCTIONGEMMA, order: Order = "hf") -> str:
    """One function, in OpenAI's shape or its inner `function` alone, without the tokens around it.

    `order` is that of the released chat template (`hf`), or the tool's own with every field kept (`input`).
    Raises `ValueError` for what is no tool.
    """
    function = function_of(tool)
    if order == "input":
        fields = {key: value for key, value in function.items() if key != "name"}
        return f"declaration:{function['name']}{format_value(_upper_types(fields), tokens=tokens)}"
    parts = [f"description:{format_string(_text(function, 'description'), tokens)}"]
    if parameters := function.get("parameters"):
        parts.append(f"parameters:{{{_parameters(tidy(parameters), tokens)}}}")
    return f"declaration:{function['name']}{{{','.join(parts)}}}"


def function_of(tool: object) -> Mapping[str, Any]:
    """The function that a tool describes. Raises `ValueError`."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(inner, Mapping):
        raise ValueError("a tool must be a JSON object")
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("a tool must have a name")
    if not is_identifier(name):
        raise ValueError(f"the tool's name {name!r} is not valid: letters, digits, '_', '.' and '-'")
    if not isinstance(inner.get("parameters") or {}, Mapping):
        raise ValueError(f"the parameters of the tool '{name}' must be a JSON object")
    return inner


def _parameters(schema: Mapping[str, Any], tokens: TokenSet) -> str:
    """The fields of the outermost object: properties, required, type."""
    parts = []
    if properties := schema.get("properties"):
        parts.append(f"properties:{{{_properties(properties, tokens)}}}")
    if required := schema.get("required"):
        parts.append(f"required:{format_value(required, tokens=tokens)}")
    parts.append(_type(schema.get("type") or "object", tokens))
    return ",".join(parts)


def _properties(properties: Mapping[str, Any], tokens: TokenSet) -> str:
    # The template leaves out parameters called description, type, …: a function without its parameter cannot be
    # called, so they are written here.
    return ",".join(f"{format_key(key, tokens)}:{_property(schema, tokens)}" for key, schema in dictsort(properties))


def _property(schema: Mapping[str, Any], tokens: TokenSet) -> str:
    parts = [f"description:{format_string(_text(schema, 'description'), tokens)}", *_details(schema, tokens)]
    return f"{{{','.join(parts)}}}"


def _details(schema: Mapping[str, Any], tokens: TokenSet) -> list[str]:
    """What follows the description, in the template's order."""
    parts = []
    kind, nullable = _kind(schema)
    if enum := schema.get("enum"):
        parts.append(f"enum:{format_value(enum, tokens=tokens)}")
    if items := schema.get("items"):
        parts.append(f"items:{{{','.join(_item_parts(items, tokens))}}}")
    if nullable is not None:
        parts.append(f"nullable:{format_value(nullable)}")
    if (properties := schema.get("properties")) is not None:
        parts.append(f"properties:{{{_properties(properties, tokens)}}}")
    if required := schema.get("required"):
        parts.append(f"required:{format_value(required, tokens=tokens)}")
    if kind:
        parts.append(_type(kind, tokens))
    return parts


def _item_parts(items: Mapping[str, Any], tokens: TokenSet) -> list[str]:
    """The elements of an array: as a parameter, but a description only where there is one."""
    described = [f"description:{format_string(text, tokens)}"] if (text := _text(items, "description")) else []
    return [*described, *_details(items, tokens)]


def _kind(schema: Mapping[str, Any]) -> tuple[Any, bool | None]:
    """Type and `nullable`; `["string", "null"]` and `anyOf` with null, which the models do not know, become both."""
    kind, nullable = schema.get("type"), schema.get("nullable")
    choices = schema.get("anyOf") or schema.get("oneOf")
    if kind is None and choices:
        kinds = [choice.get("type") for choice in choices]
        kind = [each for each in kinds if isinstance(each, str)]
    if isinstance(kind, list):
        known = list(dict.fromkeys(each for each in kind if each != "null"))
        nullable = True if "null" in kind else nullable
        kind = known[0] if len(known) == 1 else known
    if not kind and (enum := schema.get("enum")):
        kind = "string" if all(isinstance(each, str) for each in enum) else kind
    return kind, nullable


def _type(kind: Any, tokens: TokenSet) -> str:
    return f"type:{format_value(_upper(kind), tokens=tokens)}"


def _upper(kind: Any) -> Any:
    return kind.upper() if isinstance(kind, str) else [_upper(each) for each in kind]


def _upper_types(schema: Any, in_map: bool = False) -> Any:
    if isinstance(schema, list):
        return [_upper_types(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _upper(value)
        if key == "type" and not in_map and isinstance(value, str | list)
        else _upper_types(value, key in _MAP_KEYS and not in_map)
        for key, value in schema.items()
    }


def _text(schema: Mapping[str, Any], key: str) -> str:
    return str(schema.get(key) or "")


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
    for parameter in _function_parameters(python_function):
        if parameter.name not in hints:
            raise ValueError(f"{name}: the argument {parameter.name} has no type")
        if parameter.name not in described:
            raise ValueError(f"{name}: the argument {parameter.name} has no description")
        properties[parameter.name] = _property_schema(hints[parameter.name], described[parameter.name])
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _function_parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and parameter.name != "self":
            yield parameter


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ValueError(f"the types of {function.__name__} cannot be resolved: {error}") from None


def _property_schema(hint: Any, description: str) -> dict[str, Any]:
    schema = dict(_hint_schema(hint))
    if (choices := _CHOICES.search(description)) is not None:
        try:
            schema["enum"] = json.loads(choices[1])
        except ValueError:
            raise ValueError(f"the choices {choices[1]} are no JSON list") from None
        description = description[: choices.start()].rstrip()
    schema["description"] = description
    return schema


def _hint_schema(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is typing.Literal:
        kinds = [_SIMPLE[type(each)]["type"] for each in arguments]
        kind: Any = kinds[0] if len(set(kinds)) == 1 else list(dict.fromkeys(kinds))
        return {"type": kind, "enum": list(arguments)}
    if origin is typing.Annotated:
        return _hint_schema(arguments[0])
    if (origin or hint) in (list, tuple, set, frozenset):
        items = [each for each in arguments if each is not ...]
        return {"type": "array", **({"items": _hint_schema(items[0])} if items and _hint_schema(items[0]) else {})}
    if (origin or hint) is dict:
        values = _hint_schema(arguments[1]) if len(arguments) == 2 else {}
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    return _SIMPLE.get(hint, {"type": "object"})


def _union(arguments: tuple[Any, ...]) -> dict[str, Any]:
    nullable = {"nullable": True} if type(None) in arguments else {}
    schemas = [_hint_schema(each) for each in arguments if each is not type(None)]
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
