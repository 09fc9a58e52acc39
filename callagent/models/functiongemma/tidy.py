"""JSON schemas as projects and their tools give them, brought to the few keywords that this package reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]

_DEEPEST = 50
"""Levels of a schema; below, anything is allowed."""
_DEFINITIONS = ("#/$defs/", "#/definitions/")


def tidy(schema: object) -> dict[str, Any]:
    """The schema with its references unfolded, `const` as an `enum` of one and `allOf` merged.

    A keyword of the wrong shape is left out, for it must not cost the function its other parameters. Never raises.
    """
    return _Tidier(schema if isinstance(schema, Mapping) else {}).tidy(schema, ())


class _Tidier:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._readers: dict[str, Callable[[Any, tuple[str, ...]], Any]] = {
            "properties": self._properties,
            "items": self._schema,
            "additionalProperties": self._bool_or_schema,
            "anyOf": self._schemas,
            "oneOf": self._schemas,
        }

    def tidy(self, schema: object, inside: tuple[str, ...]) -> dict[str, Any]:
        """`inside` has the references that are being unfolded, and a blank for every other level."""
        if not isinstance(schema, Mapping) or len(inside) > _DEEPEST:
            return {}
        if "$ref" in schema:
            return self._referred(schema, inside)
        found: dict[str, Any] = {}
        for key, value in schema.items():
            if (reader := self._readers.get(key)) is not None:
                value = reader(value, (*inside, ""))
            elif (fits := _SHAPES.get(key)) is not None and not fits(value):
                value = None
            if value is not None:
                found[key] = value
        if "const" in schema:
            found.setdefault("enum", [schema["const"]])
        for part in self._schemas(found.pop("allOf", None), (*inside, "")) or ():
            properties = {**(part.get("properties") or {}), **(found.get("properties") or {})}
            found = {**part, **found, **({"properties": properties} if properties else {})}
        return _or_null(found)

    def _referred(self, schema: Schema, inside: tuple[str, ...]) -> dict[str, Any]:
        reference = schema["$ref"]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if not isinstance(reference, str) or reference in inside:
            return self.tidy(rest, (*inside, ""))
        for prefix in _DEFINITIONS:
            definitions = self._root.get(prefix[2:-1])
            name = reference.removeprefix(prefix)
            if name != reference and isinstance(definitions, Mapping) and isinstance(definitions.get(name), Mapping):
                return self.tidy({**definitions[name], **rest}, (*inside, reference))
        return self.tidy(rest, (*inside, ""))

    def _properties(self, value: Any, inside: tuple[str, ...]) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            return None
        return {name: self.tidy(each, inside) for name, each in value.items() if isinstance(name, str)}

    def _schema(self, value: Any, inside: tuple[str, ...]) -> dict[str, Any] | None:
        return self.tidy(value, inside) if isinstance(value, Mapping) else None

    def _bool_or_schema(self, value: Any, inside: tuple[str, ...]) -> Any:
        return value if isinstance(value, bool) else self._schema(value, inside)

    def _schemas(self, value: Any, inside: tuple[str, ...]) -> list[dict[str, Any]] | None:
        return [self.tidy(each, inside) for each in value] if isinstance(value, list) and value else None


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Of a choice between one schema and null, that schema with `nullable`."""
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key) or ()
        others = [choice for choice in choices if choice.get("type") != "null"]
        if len(others) == 1 and len(choices) == 2:
            rest = {name: value for name, value in schema.items() if name != key}
            return {**others[0], **rest, "nullable": True}
    return schema


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "type": lambda value: isinstance(value, str) or (_are_words(value) and bool(value)),
    "required": _are_words,
    "enum": lambda value: isinstance(value, list | tuple) and bool(value),
    "nullable": lambda value: isinstance(value, bool),
    "pattern": lambda value: isinstance(value, str),
    **dict.fromkeys(
        (
            *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            *("minLength", "maxLength", "minItems", "maxItems"),
        ),
        _is_number,
    ),
}
