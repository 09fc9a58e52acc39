"""The JSON schema of agent-config YAML for editors: strict where the loader is, open where the loader ignores keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callagent.agents.adk.format.fields import (
    CODE_KEYS,
    COMMON_KEYS,
    GENERATION_KEYS,
    IGNORED_GENERATION_KEYS,
    KEYS,
    class_names,
)

_TEXT, _FLAG, _NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "number"}
_WHOLE = {"type": ["integer", "string"], "pattern": r"^\s*-?\d+\s*$"}
_NAME = {"type": "string", "pattern": r"^[^\W\d]\w*$", "not": {"const": "user"}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_ARGUMENTS = _list(_object(["name"], name=_TEXT, value={}))
_AGENT = {"oneOf": [_object(["config_path"], config_path=_TEXT), _object(["code"], code=_TEXT)]}
_VALUES: Mapping[str, Mapping[str, Any]] = {
    "agent_class": _TEXT,
    "name": _NAME,
    "description": _TEXT,
    "sub_agents": _list(_ref("agent")),
    "instruction": _TEXT,
    "static_instruction": {"type": ["string", "object", "array"]},
    "model": _TEXT,
    "disallow_transfer_to_parent": _FLAG,
    "disallow_transfer_to_peers": _FLAG,
    "output_key": _TEXT,
    "include_contents": {"enum": ["default", "none"]},
    "tools": _list(_ref("tool")),
    "generate_content_config": _ref("generation"),
    "max_iterations": _WHOLE,
    **{key: _list(_ref("code")) if key.endswith("_callbacks") else _ref("code") for key in CODE_KEYS},
}
_GENERATION: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(GENERATION_KEYS, _NUMBER),
    "candidate_count": {"type": "integer"},
    "max_output_tokens": {"type": "integer"},
    "seed": {"type": "integer"},
    "stop_sequences": _list(_TEXT),
    "response_mime_type": _TEXT,
    "safety_settings": _list(_object(["category", "threshold"], category=_TEXT, threshold={}, method=_TEXT)),
}


def agent_config_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12). An agent of the project's own class may have any keys."""
    own_class = {"required": ["agent_class"], "properties": {"agent_class": {"not": {"enum": ["", *_built_in()]}}}}
    cases: list[dict[str, Any]] = [
        {"if": _is_kind(kind), "then": _agent(kind)} for kind in KEYS if kind != "code"
    ]  # fmt: skip
    cases.append(
        {"if": own_class, "then": {"type": "object", "required": ["name"], "properties": _values(COMMON_KEYS)}}
    )
    generation: dict[str, Any] = {**{key: {} for key in IGNORED_GENERATION_KEYS}, **_GENERATION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An agent of an agent-config tree",
        "type": "object",
        "allOf": cases,
        "$defs": {
            "agent": _AGENT,
            "code": _object(["name"], name=_TEXT, args=_list(_object(["value"], name=_TEXT, value={}))),
            "tool": _object(["name"], name=_TEXT, args={"anyOf": [{"type": "object"}, _ARGUMENTS]}),
            "generation": {
                "type": "object",
                "properties": {written: value for key, value in generation.items() for written in (key, _camel(key))},
                "additionalProperties": False,
            },
        },
    }


def _agent(kind: str) -> dict[str, Any]:
    required = ["name", "instruction"] if kind == "llm" else ["name"]
    return {
        "properties": _values({**COMMON_KEYS, **KEYS[kind]}),
        "required": required,
        "additionalProperties": False,
    }


def _is_kind(kind: str) -> dict[str, Any]:
    names = {"properties": {"agent_class": {"enum": [*class_names(kind), *([""] if kind == "llm" else [])]}}}
    return names if kind == "llm" else {**names, "required": ["agent_class"]}


def _built_in() -> list[str]:
    return [name for kind in KEYS for name in class_names(kind)]


def _values(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dict(_VALUES[key]) for key in keys}


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)
