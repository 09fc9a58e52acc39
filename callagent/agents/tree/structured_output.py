"""Structured output: a model's final text parsed with a JSON schema and stored in the state under an `output_key`."""

from __future__ import annotations

import json

from callagent.agents.tree.events import Event, RunFailed, parts
from callagent.agents.tree.nodes import JsonSchema, LlmNode

_NUMBERS = {"integer": int, "number": float}


def parse_output(text: str, schema: JsonSchema | None) -> object:
    """Return the JSON value of the text; without a schema, the text. Raises `RunFailed` if the value violates it."""
    if schema is None:
        return text
    # Models without a JSON mode may put their answer into a code block.
    stripped = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        value = json.loads(stripped)
    except json.JSONDecodeError as error:
        raise RunFailed("ValidationError", f"the model's answer is not JSON: {error}") from None
    try:
        return conform(value, schema)
    except ValueError as error:
        raise RunFailed("ValidationError", f"the model's answer does not match the output schema: {error}") from None


def conform(value: object, schema: JsonSchema) -> object:
    """Return the value as a pydantic class with this schema would hold it.

    Numbers given as text become numbers, defaults are filled in, and null values are left out. Checked are types,
    required keys and nested objects only. Raises `ValueError` naming what is missing or wrong.
    """
    return _conform(value, schema, schema.get("$defs") or {}, "")


def _conform(value: object, schema: JsonSchema, definitions: JsonSchema, place: str) -> object:
    if "$ref" in schema:
        schema = definitions.get(str(schema["$ref"]).rpartition("/")[2]) or {}
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return _object(value, schema, definitions, place)
    if kind == "array" and isinstance(value, list):
        return [_conform(each, schema.get("items") or {}, definitions, f"{place}[{n}]") for n, each in enumerate(value)]
    if kind in _NUMBERS and isinstance(value, str):
        try:
            return _NUMBERS[kind](value)
        except ValueError:
            raise ValueError(f"{place or 'it'} is not of type {kind}") from None
    if kind == "string" and not isinstance(value, str):
        raise ValueError(f"{place or 'it'} is not a text")
    return value


def _object(value: object, schema: JsonSchema, definitions: JsonSchema, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{place or 'it'} is not an object")
    missing = [str(key) for key in schema.get("required") or () if key not in value]
    if missing:
        raise ValueError(f"{place or 'it'} lacks {', '.join(missing)}")
    made: dict[str, object] = {}
    for key, subschema in schema["properties"].items():
        conformed = _conform(value[key], subschema, definitions, key) if key in value else subschema.get("default")
        # Null values are left out, as by `model_dump(exclude_none=True)`.
        if conformed is not None:
            made[key] = conformed
    # A schema made from a class has a title and lists every key; others allow further keys.
    return made if "title" in schema else {**value, **made}


class SavedOutput:
    """The output of one run of an agent, written to the state under the agent's `output_key`.

    Without a schema, the output is all that the agent says, including the words before a tool call.
    """

    def __init__(self, node: LlmNode) -> None:
        self._node = node
        self._text = ""

    def save(self, event: Event) -> None:
        """Add the output to an event's state changes, before the event is added to the history.

        Raises `RunFailed` when the text violates the output schema.
        """
        found = [part["text"] for part in parts(event.content) if "text" in part and not part.get("thought")]
        text = "".join(found)
        # An empty text is stored only as the final answer: before a tool call, models often write nothing.
        if not self._node.output_key or not found or not (text or event.is_final):
            return
        if self._node.output_schema is None:
            self._text += text
            event.actions.state_delta[self._node.output_key] = self._text if text else ""
        elif event.is_final and text.strip():
            event.actions.state_delta[self._node.output_key] = parse_output(text, self._node.output_schema)
