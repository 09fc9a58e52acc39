"""What a model returned, measured against a JSON schema: as much as agents rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from callagent.agents.tree.events import Event, RunFailed, parts
from callagent.agents.tree.nodes import LlmNode

_NUMBERS = {"integer": int, "number": float}


def parse_output(text: str, schema: Mapping[str, Any] | None) -> Any:
    """A text as it is; with a schema the JSON in it. Raises `RunFailed`."""
    if schema is None:
        return text
    stripped = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        value = json.loads(stripped)
    except json.JSONDecodeError as error:
        raise RunFailed("ValidationError", f"the model's answer is not JSON: {error}") from None
    try:
        return conform(value, schema)
    except ValueError as error:
        raise RunFailed("ValidationError", f"the model's answer is not as agreed: {error}") from None


def conform(value: Any, schema: Mapping[str, Any]) -> Any:
    """The value as a class with this schema has it: numbers made of digits, defaults filled in, nothing that is null.

    Raises `ValueError` naming what is missing or wrong.
    """
    return _conform(value, schema, schema.get("$defs") or {}, "")


def _conform(value: Any, schema: Mapping[str, Any], named: Mapping[str, Any], place: str) -> Any:
    if "$ref" in schema:
        schema = named.get(str(schema["$ref"]).rpartition("/")[2]) or {}
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return _object(value, schema, named, place)
    if kind == "array" and isinstance(value, list):
        return [_conform(each, schema.get("items") or {}, named, f"{place}[{n}]") for n, each in enumerate(value)]
    if kind in _NUMBERS and isinstance(value, str):
        try:
            return _NUMBERS[kind](value)
        except ValueError:
            raise ValueError(f"{place or 'it'} is no {kind}") from None
    if kind == "string" and not isinstance(value, str):
        raise ValueError(f"{place or 'it'} is no text")
    return value


def _object(value: Any, schema: Mapping[str, Any], named: Mapping[str, Any], place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place or 'it'} is no object")
    missing = [str(key) for key in schema.get("required") or () if key not in value]
    if missing:
        raise ValueError(f"{place or 'it'} lacks {', '.join(missing)}")
    made: dict[str, Any] = {}
    for key, own in schema["properties"].items():
        given = _conform(value[key], own, named, key) if key in value else own.get("default")
        if given is not None:
            made[key] = given
    # Schemas of classes have titles; others say nothing of what else may be there.
    return made if "title" in schema else {**value, **made}


class SavedOutput:
    """Of one run of an agent. Without a schema all that it says counts, also the words before a call of a tool."""

    def __init__(self, node: LlmNode) -> None:
        self._node = node
        self._said = ""

    def save(self, event: Event) -> None:
        """Before the event is in the history. Raises `RunFailed` when the text is not what was agreed."""
        found = [part["text"] for part in parts(event.content) if "text" in part and not part.get("thought")]
        said = "".join(found)
        if not self._node.output_key or not found or not (said or event.is_final):
            return
        if self._node.output_schema is None:
            self._said += said
            event.actions.state_delta[self._node.output_key] = self._said if said else ""
        elif event.is_final and said.strip():
            event.actions.state_delta[self._node.output_key] = parse_output(said, self._node.output_schema)
