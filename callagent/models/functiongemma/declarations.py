"""What a model is told of a function: `declaration:NAME{description:…,parameters:{…}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from callagent.models.functiongemma.tidy import tidy
from callagent.models.functiongemma.tokens import FUNCTIONGEMMA, TokenSet
from callagent.models.functiongemma.values import dictsort, format_key, format_string, format_value, is_identifier
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
