"""The keys of agent-config YAML: the checks of their values, and the JSON schema that editors check files with."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

from callagent.agents.kernel import type_name
from callagent.agents.tree import HAND_OFF, HANDOFF_METHODS, PHONE_TOOL_OPTIONS

Check = Callable[[object], str]
"""Returns what is wrong with a value, or an empty text."""
_CLASSES = {
    "llm": ("LlmAgent", "Agent"),
    "sequential": ("SequentialAgent",),
    "loop": ("LoopAgent",),
    "parallel": ("ParallelAgent",),
}


def agent_kind(agent_class: str) -> str:
    """Return the kind of an agent class: `code` when it is not one of the built-in ones."""
    # `google.adk.agents.LlmAgent` and `google.adk.agents.llm_agent.LlmAgent` are the built-in class; a class of the
    # same name in another package is the project's own.
    head, dot, name = agent_class.rpartition(".")
    if dot and not re.fullmatch(r"google\.adk(\.agents(\.\w+)?)?", head):
        return "code"
    return next((kind for kind, names in _CLASSES.items() if name in names), "code")


def class_names(kind: str) -> list[str]:
    """Return the ways to write a built-in class: its name alone, or with a module that has it."""
    names = _CLASSES.get(kind, ())
    modules = [f"google.adk.agents.{re.sub('(?<!^)(?=[A-Z])', '_', name).lower()}" for name in names[:1]]
    return [*names, *(f"{place}.{name}" for place in ("google.adk.agents", *modules) for name in names)]


def _type_check(kind: str, *types: type) -> Check:
    def check(value: object) -> str:
        # In Python true and false are whole numbers; in a document they are not.
        is_flag = isinstance(value, bool) and bool not in types
        if value is None or (isinstance(value, types) and not is_flag):
            return ""
        return f"{kind} is needed but got {type_name(value)}"

    return check


def _check_name(value: object) -> str:
    if not isinstance(value, str) or not value.isidentifier():
        return f"{value!r} is not a valid agent name: use letters, digits and underscores, no digit first"
    return "'user' stands for the caller; choose another name" if value == "user" else ""


def _one_of(*known: str) -> Check:
    return lambda value: "" if value in known else f"one of {', '.join(known)} is needed but got {value!r}"


def read_whole_number(value: object) -> int | None:
    """Return a whole number, also from digits in quotes or from 3.0; None when the value is not one."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
        return int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0:
        return int(value)
    return None


def _check_whole_number(value: object) -> str:
    return "" if value is None or read_whole_number(value) is not None else "a whole number is needed"


def _check_number(value: object) -> str:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return ""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+(\.\d*)?\s*", value):
        return ""
    return f"a number is needed but got {type_name(value)}"


# The words that pydantic reads as truth values, as the ADK's own models do.
_FLAGS = {"1": True, "on": True, "t": True, "true": True, "y": True, "yes": True,
          "0": False, "off": False, "f": False, "false": False, "n": False, "no": False}  # fmt: skip


def read_flag(value: object) -> bool | None:
    """Return a truth value as the format reads it, also from words in quotes; None when the value is not one."""
    return _FLAGS.get(str(value).lower()) if isinstance(value, bool | int | str) else None


def _check_flag(value: object) -> str:
    is_right = value is None or read_flag(value) is not None
    return "" if is_right else f"true or false is needed but got {type_name(value)}"


def _check_text_parts(value: list[object]) -> str:
    return "" if all(_is_text_part(each) for each in value) else "a text, or maps with 'text', are needed"


def _is_text_part(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and "text" in value)


def _check_static_instruction(value: object) -> str:
    if value is None or _is_text_part(value):
        return ""
    parts = value.get("parts") if isinstance(value, dict) else value
    return (
        _check_text_parts(parts)
        if isinstance(parts, list)
        else "text is needed, a list of texts, or a map with 'parts'"
    )


def _check_text_list(value: object) -> str:
    is_right = value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    return "" if is_right else "a list of texts is needed"


def _not_null(check: Check) -> Check:
    """Return a check for a key that may be left out but may not be null."""
    return lambda value: "a value is needed; leave the key out where there is none" if value is None else check(value)


_check_text = _type_check("text", str)
_check_list, _check_map = _type_check("a list", list), _type_check("a map", dict)
COMMON_KEYS: dict[str, Check] = {
    "agent_class": _check_text,
    "name": _check_name,
    "description": _not_null(_check_text),
    "sub_agents": _not_null(_check_list),
    "before_agent_callbacks": _check_list,
    "after_agent_callbacks": _check_list,
}
LLM_KEYS: dict[str, Check] = {
    "instruction": _not_null(_check_text),
    "static_instruction": _check_static_instruction,
    "model": _check_text,
    "model_code": _check_map,
    "disallow_transfer_to_parent": _check_flag,
    "disallow_transfer_to_peers": _check_flag,
    "input_schema": _check_map,
    "output_schema": _check_map,
    "output_key": _check_text,
    "include_contents": _one_of("default", "none"),
    "tools": _not_null(_check_list),
    "before_model_callbacks": _check_list,
    "after_model_callbacks": _check_list,
    "before_tool_callbacks": _check_list,
    "after_tool_callbacks": _check_list,
    "generate_content_config": _check_map,
}
KEYS: Mapping[str, dict[str, Check]] = {
    "llm": LLM_KEYS,
    "sequential": {},
    "loop": {"max_iterations": _check_whole_number},
    "parallel": {},
    "code": {},
}
CODE_KEYS = (
    *(key for key in (*COMMON_KEYS, *LLM_KEYS) if key.endswith("_callbacks")),
    *("model_code", "input_schema", "output_schema"),
)
"""Keys whose values refer to project code."""

GENERATION_KEYS: dict[str, Check] = {
    "temperature": _check_number,
    "top_p": _check_number,
    "top_k": _check_number,
    "candidate_count": _check_whole_number,
    "max_output_tokens": _check_whole_number,
    "stop_sequences": _check_text_list,
    "seed": _check_whole_number,
    "presence_penalty": _check_number,
    "frequency_penalty": _check_number,
    "response_mime_type": _check_text,
    "safety_settings": _check_list,
}
"""Keys of `generate_content_config` whose values are checked."""
IGNORED_GENERATION_KEYS = (
    "audio_timestamp", "audio_transcription_config", "automatic_continuation", "automatic_function_calling",
    "cached_content", "continuation_token", "enable_enhanced_civic_answers", "generation_output_config", "http_options",
    "image_config", "labels", "logprobs", "media_resolution", "model_armor_config", "model_selection_config",
    "response_json_schema", "response_logprobs", "response_modalities", "routing_config",
    "service_tier", "should_return_http_response", "speech_config", "store", "thinking_config",
    "tool_config",
)  # fmt: skip
"""Other keys of `generate_content_config`, for Google's own service only; they are accepted and ignored."""
SAMPLING = {
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Sampling parameters: the format's names -> those of `models.ModelSettings`."""
EFFECTIVE_GENERATION_KEYS = ("temperature", "max_output_tokens", "response_mime_type", "safety_settings", *SAMPLING)
"""Keys of `generate_content_config` that have an effect, some only with certain providers."""
PROVIDER_SPECIFIC_KEYS = {
    "top_k": ("anthropic", "gemini"),
    "seed": ("gemini", "openai"),
    "presence_penalty": ("gemini", "openai"),
    "frequency_penalty": ("gemini", "openai"),
    "safety_settings": ("gemini",),
}
"""Keys that only the models of some providers take -> those providers."""


def snake_case(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()


def check_generation(value: object) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield key and problem for each error in `generate_content_config`; keys may be in snake_case or camelCase."""
    if not isinstance(value, dict):
        return
    names: set[str] = set()
    for key, item in value.items():
        # Google's API has camelCase, its Python library snake_case; projects are written in both.
        name = snake_case(str(key))
        if name in names:
            yield (str(key),), "it is set twice, in snake_case and in camelCase"
        names.add(name)
        if name == "response_schema":
            yield (str(key),), "it is not allowed here; set 'output_schema' of the agent"
        elif name in ("tools", "system_instruction"):
            yield (str(key),), "it is not allowed here, because the agent sets it"
        elif name in GENERATION_KEYS and (problem := GENERATION_KEYS[name](item)):
            yield (str(key),), problem
        elif name not in GENERATION_KEYS and name not in IGNORED_GENERATION_KEYS:
            yield (str(key),), f"there is no such key{suggest(name, (*GENERATION_KEYS, *IGNORED_GENERATION_KEYS))}"


def suggest(key: str, known: Iterable[str]) -> str:
    """Return the part of an error message that names the known key nearest to `key`; empty if none is near."""
    near = difflib.get_close_matches(str(key), list(known), 1)
    return f"; the nearest is '{near[0]}'" if near else ""


ADK_PACKAGE = "google.adk"
PHONE_PACKAGE = "callagent"
"""The package by which YAML names the tools of the telephone, such as `callagent.hang_up`."""
MCP_TOOLSETS = ("McpToolset", "MCPToolset")
ALLOW_PROGRAMS = "ADK_ALLOW_CONFIG_STDIO_MCP_SERVERS"
"""The ADK's environment variable that allows YAML to name MCP servers that are programs."""
IGNORED_MCP_ARGUMENTS = ("credential_key", "tool_list_cache_ttl_seconds", "use_mcp_resources")
"""Arguments of an MCP toolset that have no effect here."""
_REFUSED = {"yaml", "ruamel", "distutils", "pip", "setuptools", "pkg_resources"}


def reference_problem(path: str, package: str) -> str:
    """Return why a dotted path may not be used, or an empty text.

    Only the project's own package, `google.adk` and `callagent.NAME` may be referred to.
    """
    parts = path.removeprefix(".").split(".")
    if not all(part.isidentifier() for part in parts) or (len(parts) < 2 and not path.startswith(".")):
        return f"'{path}' is not a dotted path such as {package}.module.name"
    head = parts[0]
    # A leading dot stands for the project's own package.
    if path.startswith((".", f"{ADK_PACKAGE}.")) or head == package:
        return ""
    if head == PHONE_PACKAGE and len(parts) == 2:
        return ""
    # A YAML file must not reach `os.system` or a YAML loader, but only the project's own names.
    if head in sys.stdlib_module_names:
        return f"'{path}' is not in the project: agents may not refer to Python's own modules"
    if head in _REFUSED:
        return f"'{path}' is not in the project: agents may not refer to the package '{head}'"
    return f"'{path}' is not in the project: a path that begins with '{package}.' is needed"


def phone_problems(name: str, options: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys and the problem for each error in a `callagent.…` tool."""
    known = PHONE_TOOL_OPTIONS.get(name)
    if known is None:
        names = ", ".join(f"{PHONE_PACKAGE}.{each}" for each in PHONE_TOOL_OPTIONS)
        yield ("name",), f"there is no tool '{PHONE_PACKAGE}.{name}'; use {names}"
        return
    for key, value in options.items():
        if key not in known:
            yield ("args", str(key)), f"there is no such key; the keys are {', '.join(known)}"
        elif not _is_option(value, known[key]):
            yield ("args", str(key)), f"{known[key].__name__} is needed but got {type(value).__name__}"
    if name == HAND_OFF and options.get("method", "refer") not in HANDOFF_METHODS:
        yield ("args", "method"), f"one of {', '.join(HANDOFF_METHODS)} is needed"
    if name == HAND_OFF and not options.get("destination"):
        yield ("args",), "the key 'destination' is missing"


def _is_option(value: object, kind: type) -> bool:
    # In Python true and false are whole numbers; in a document they are not.
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def absolute_reference(path: str, package: str) -> str:
    """Return a dotted path with the package's name in front when it begins with a dot."""
    return f"{package}{path}" if path.startswith(".") else path


_TEXT, _FLAG, _NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "number"}
_WHOLE = {"type": ["integer", "string"], "pattern": r"^\s*-?\d+\s*$"}
_NAME = {"type": "string", "pattern": r"^[^\W\d]\w*$", "not": {"const": "user"}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _list_of(items: Mapping[str, object]) -> dict[str, object]:
    return {"type": "array", "items": items}


def _object(required: list[str], **properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_ARGUMENTS = _list_of(_object(["name"], name=_TEXT, value={}))
_AGENT = {"oneOf": [_object(["config_path"], config_path=_TEXT), _object(["code"], code=_TEXT)]}
_VALUE_SCHEMAS: Mapping[str, Mapping[str, object]] = {
    "agent_class": _TEXT,
    "name": _NAME,
    "description": _TEXT,
    "sub_agents": _list_of(_ref("agent")),
    "instruction": _TEXT,
    "static_instruction": {"type": ["string", "object", "array"]},
    "model": _TEXT,
    "disallow_transfer_to_parent": _FLAG,
    "disallow_transfer_to_peers": _FLAG,
    "output_key": _TEXT,
    "include_contents": {"enum": ["default", "none"]},
    "tools": _list_of(_ref("tool")),
    "generate_content_config": _ref("generation"),
    "max_iterations": _WHOLE,
    **{key: _list_of(_ref("code")) if key.endswith("_callbacks") else _ref("code") for key in CODE_KEYS},
}
_GENERATION_SCHEMAS: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(GENERATION_KEYS, _NUMBER),
    "candidate_count": {"type": "integer"},
    "max_output_tokens": {"type": "integer"},
    "seed": {"type": "integer"},
    "stop_sequences": _list_of(_TEXT),
    "response_mime_type": _TEXT,
    "safety_settings": _list_of(_object(["category", "threshold"], category=_TEXT, threshold={}, method=_TEXT)),
}


def agent_config_schema() -> dict[str, object]:
    """Return the schema (draft 2020-12). An agent of the project's own class may have any keys."""
    # One case for each kind of agent, with its keys, and one for classes of the project's own.
    own_class = {
        "required": ["agent_class"],
        "properties": {"agent_class": {"not": {"enum": ["", *_built_in_class_names()]}}},
    }
    cases: list[object] = [
        {"if": _is_kind(kind), "then": _schema_of_kind(kind)} for kind in KEYS if kind != "code"
    ]  # fmt: skip
    cases.append(
        {"if": own_class, "then": {"type": "object", "required": ["name"], "properties": _values_of(COMMON_KEYS)}}
    )
    generation: dict[str, object] = {**{key: {} for key in IGNORED_GENERATION_KEYS}, **_GENERATION_SCHEMAS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An agent of an agent-config tree",
        "type": "object",
        "allOf": cases,
        "$defs": {
            "agent": _AGENT,
            "code": _object(["name"], name=_TEXT, args=_list_of(_object(["value"], name=_TEXT, value={}))),
            "tool": _object(["name"], name=_TEXT, args={"anyOf": [{"type": "object"}, _ARGUMENTS]}),
            "generation": {
                "type": "object",
                # Every key may be written in snake_case or camelCase.
                "properties": {written: value for key, value in generation.items() for written in (key, _camel(key))},
                "additionalProperties": False,
            },
        },
    }


def _schema_of_kind(kind: str) -> dict[str, object]:
    required = ["name", "instruction"] if kind == "llm" else ["name"]
    return {
        "properties": _values_of({**COMMON_KEYS, **KEYS[kind]}),
        "required": required,
        "additionalProperties": False,
    }


def _is_kind(kind: str) -> dict[str, object]:
    # An agent file without `agent_class` means an LlmAgent.
    if kind == "llm":
        return {"properties": {"agent_class": {"enum": [*class_names(kind), ""]}}}
    return {"properties": {"agent_class": {"enum": class_names(kind)}}, "required": ["agent_class"]}


def _built_in_class_names() -> list[str]:
    return [name for kind in KEYS for name in class_names(kind)]


def _values_of(keys: Mapping[str, object]) -> dict[str, object]:
    return {key: dict(_VALUE_SCHEMAS[key]) for key in keys}


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)
