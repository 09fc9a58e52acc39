"""The texts that the models read: a conversation as a prompt, functions as declarations, and rows for training.

A prompt equals the output of the released chat template for the same conversation, because the models were trained on
that output: a space more or less changes their answers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from callagent import json_values
from callagent.models.functiongemma import format
from callagent.models.functiongemma.schema import coerce_arguments, normalise
from callagent.models.protocol import Message, Tool

_INSTRUCTIONS = ("system", "developer")


def render_prompt(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    tokens: format.TokenSet = format.FUNCTIONGEMMA,
    generation_prompt: bool = True,
) -> str:
    """Return the prompt for messages and tools in OpenAI's shape.

    `generation_prompt` opens a turn of the model if none is open.

    A tool's message holds `{"name", "response"}`, a list of those, or a text with the identifier of its call.
    Control tokens in texts are neutralised. Raises `ValueError` for a call without a response and for a response
    without a function.
    """
    instructions = [_content(message) for message in messages if message["role"] in _INSTRUCTIONS]
    writer = _Writer(tokens)
    writer.instruct("\n".join(text for text in instructions if text), tools)
    for message in messages:
        writer.add(message)
    return writer.finish(generation_prompt)


def one_utterance(messages: Sequence[Message]) -> list[Message]:
    """Return the last instructions, and the conversation from the caller's last utterance.

    The models were trained on single utterances, and earlier ones confuse them.
    """
    instructions = [message for message in messages if message["role"] in _INSTRUCTIONS]
    talk = [message for message in messages if message["role"] not in _INSTRUCTIONS]
    last = max((index for index, message in enumerate(talk) if message["role"] == "user"), default=0)
    return [*instructions[-1:], *talk[last:]]


class _Writer:
    """A writer of turns. Calls, their responses and the words after them share one turn of the model."""

    def __init__(self, tokens: format.TokenSet) -> None:
        self._tokens = tokens
        self._parts = [tokens.bos]
        self._names: dict[str, str] = {}
        """Names of functions by the identifiers of their calls."""
        self._last = ""
        """The last part of the model's open turn, `call` or `response`; empty: no turn is open."""

    def instruct(self, text: str, tools: Sequence[Tool]) -> None:
        """Write the turn of instructions and declarations."""
        tokens = self._tokens
        # Without this sentence the model calls no functions; a project's instructions may contain it already.
        if tools and tokens.trigger not in text:
            text = f"{text}\n{tokens.trigger}" if text else tokens.trigger
        declared = [
            f"{tokens.start_declaration}{render_declaration(tool, tokens=tokens)}{tokens.end_declaration}"
            for tool in tools
        ]
        if text or declared:
            self._write_turn(tokens.developer, text + "".join(declared))

    def add(self, message: Message) -> None:
        """Write a message, except for instructions, which `instruct` has written."""
        match message["role"]:
            case "system" | "developer":
                pass
            case "user":
                self._close_turn()
                self._write_turn("user", _content(message))
            case "assistant":
                self._add_answer(message)
            case "tool":
                self._add_response(message)
            case role:
                raise ValueError(f"unknown role {role!r}")

    def finish(self, generation_prompt: bool) -> str:
        """Return the prompt."""
        # After a call the model's own answer would end with the token for the response, and so does the prompt.
        if self._last == "call":
            self._parts.append(self._tokens.start_response)
        elif generation_prompt and not self._last:
            self._parts.append(f"{self._tokens.start_turn}model\n")
        return "".join(self._parts)

    def _add_answer(self, message: Message) -> None:
        self._require_response()
        if not self._last:
            self._parts.append(f"{self._tokens.start_turn}model\n")
        self._parts.append(_content(message))
        calls = message.get("tool_calls") or ()
        for call in calls:
            self._parts.append(self._render_call(call))
        self._last = "call" if calls else "content"
        if not calls:
            self._close_turn()

    def _render_call(self, call: Mapping[str, object]) -> str:
        # For the chat template a call may also be the inner `function` alone.
        function = call.get("function", call)
        if not isinstance(function, Mapping):
            raise ValueError("a called function must be a JSON object")
        name, arguments = function["name"], _arguments(function.get("arguments"))
        if not format.is_identifier(name):
            raise ValueError(f"the name of the called function {name!r} is not valid")
        if identifier := call.get("id"):
            self._names[str(identifier)] = str(name)
        tokens = self._tokens
        return (
            f"{tokens.start_call}call:{name}{format.format_value(arguments, tokens=tokens, sort=True)}{tokens.end_call}"
        )

    def _add_response(self, message: Message) -> None:
        if not self._last:
            self._parts.append(f"{self._tokens.start_turn}model\n")
        for name, response in self._responses(message):
            value = response if isinstance(response, Mapping) else {"value": response}
            written = format.format_value(value, tokens=self._tokens, sort=True)
            self._parts.append(f"{self._tokens.start_response}response:{name}{written}{self._tokens.end_response}")
        self._last = "response"

    def _responses(self, message: Message) -> Iterator[tuple[str, object]]:
        """Yield the names of the functions that a tool's message answers for, with their responses."""
        content = message.get("content")
        items = content if isinstance(content, list) else [content]
        named = [item for item in items if isinstance(item, Mapping) and "name" in item and "response" in item]
        if items and len(named) == len(items):
            yield from ((_expect_identifier(item["name"]), item["response"]) for item in named)
            return
        name = message.get("name") or self._names.get(message.get("tool_call_id") or "")
        if not name:
            raise ValueError("a tool's message names neither its function nor the call that it answers")
        yield _expect_identifier(name), _decode_object(content)

    def _require_response(self) -> None:
        if self._last == "call":
            raise ValueError("a function call has no response")

    def _close_turn(self) -> None:
        self._require_response()
        if self._last:
            self._parts.append(f"{self._tokens.end_turn}\n")
            self._last = ""

    def _write_turn(self, role: str, text: str) -> None:
        self._parts.append(f"{self._tokens.start_turn}{role}\n{text}{self._tokens.end_turn}\n")


def _content(message: Message) -> str:
    """Return a message's text without control tokens."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [item for item in content if isinstance(item, Mapping) and item.get("type", "text") == "text"]
        texts = [str(part.get("text", "")).strip() for part in parts]
        return format.neutralise("".join(texts))
    return format.neutralise(str(content or "").strip())


def _arguments(arguments: object) -> Mapping[str, object]:
    if isinstance(arguments, str):
        arguments = _decode_object(arguments) if arguments.strip() else {}
    if arguments is None:
        return {}
    # Another model may have written something else than an object; the conversation must still be rendered.
    return arguments if isinstance(arguments, Mapping) else {"value": arguments}


def _decode_object(content: object) -> object:
    """Return the JSON object in a text, as OpenAI's shape has it; return anything else unchanged."""
    if isinstance(content, str) and content.lstrip().startswith("{"):
        try:
            # NaN and Infinity, which Python writes, are no JSON numbers.
            decoded: object = json.loads(content, parse_constant=str)
        except (ValueError, RecursionError):
            return content
        return decoded if isinstance(decoded, dict) else content
    return content


def _expect_identifier(name: object) -> str:
    if not format.is_identifier(name):
        raise ValueError(f"the name of the function that answers {name!r} is not valid")
    return str(name)


Order = Literal["hf", "input"]
Kind = str | list[str]
"""The name of a JSON schema's type, or several names."""

_MAP_KEYS = ("properties", "$defs", "definitions", "patternProperties")
"""Keywords whose keys are the project's names: a property called `type` is no type."""


def render_declaration(tool: Tool, *, tokens: format.TokenSet = format.FUNCTIONGEMMA, order: Order = "hf") -> str:
    """Return the declaration of one function, without the tokens around it.

    The fields have the order of the released chat template (`hf`), or the tool's own with every field kept (`input`).
    Raises `ValueError` for an invalid tool.
    """
    function = format.function_of(tool)
    if order == "input":
        fields = {key: value for key, value in function.items() if key != "name"}
        return f"declaration:{function['name']}{format.format_value(_upper_types(fields), tokens=tokens)}"
    parts = [f"description:{format.format_string(_text(function, 'description'), tokens)}"]
    if parameters := function.get("parameters"):
        parts.append(f"parameters:{{{_parameters(normalise(parameters), tokens)}}}")
    return f"declaration:{function['name']}{{{','.join(parts)}}}"


def _parameters(schema: json_values.JsonObject, tokens: format.TokenSet) -> str:
    """Return the fields of the outermost object: properties, required, type."""
    parts = []
    if properties := json_values.object_at(schema, "properties"):
        parts.append(f"properties:{{{_properties(properties, tokens)}}}")
    if required := schema.get("required"):
        parts.append(f"required:{format.format_value(required, tokens=tokens)}")
    kind = schema.get("type")
    parts.append(_type((kind if isinstance(kind, str) else _type_names({"type": kind})) or "object", tokens))
    return ",".join(parts)


def _properties(properties: json_values.JsonObject, tokens: format.TokenSet) -> str:
    # The template leaves out parameters called description, type, …; they are written here, because a function
    # cannot be called without them.
    keys = [key for key, _ in format.dictsort(properties)]
    return ",".join(
        f"{format.format_key(key, tokens)}:{_property(json_values.object_at(properties, key), tokens)}" for key in keys
    )


def _property(schema: json_values.JsonObject, tokens: format.TokenSet) -> str:
    parts = [
        f"description:{format.format_string(_text(schema, 'description'), tokens)}",
        *_detail_fields(schema, tokens),
    ]
    return f"{{{','.join(parts)}}}"


def _detail_fields(schema: json_values.JsonObject, tokens: format.TokenSet) -> list[str]:
    """Return the fields after the description, in the template's order."""
    parts = []
    kind, nullable = _type_and_nullable(schema)
    if enum := schema.get("enum"):
        parts.append(f"enum:{format.format_value(enum, tokens=tokens)}")
    if items := json_values.object_at(schema, "items"):
        parts.append(f"items:{{{','.join(_item_fields(items, tokens))}}}")
    if nullable is not None:
        parts.append(f"nullable:{format.format_value(nullable)}")
    if "properties" in schema:
        parts.append(f"properties:{{{_properties(json_values.object_at(schema, 'properties'), tokens)}}}")
    if required := schema.get("required"):
        parts.append(f"required:{format.format_value(required, tokens=tokens)}")
    if kind:
        parts.append(_type(kind, tokens))
    return parts


def _item_fields(items: json_values.JsonObject, tokens: format.TokenSet) -> list[str]:
    """Return the fields of an array's items: as a parameter's, but an empty description is left out."""
    described = [f"description:{format.format_string(text, tokens)}"] if (text := _text(items, "description")) else []
    return [*described, *_detail_fields(items, tokens)]


def _type_and_nullable(schema: json_values.JsonObject) -> tuple[Kind, bool | None]:
    """Return the type and `nullable`.

    `["string", "null"]` and `anyOf` with null, which the models do not know, become a nullable type.
    """
    nullable = json_values.is_true(schema, "nullable") if "nullable" in schema else None
    kind = schema.get("type")
    if isinstance(kind, str) and kind:
        return kind, nullable
    kinds = _type_names(schema)
    known = list(dict.fromkeys(each for each in kinds if each != "null"))
    enum = json_values.list_at(schema, "enum")
    if not known and enum and all(isinstance(each, str) for each in enum):
        known = ["string"]
    return known[0] if len(known) == 1 else known, True if "null" in kinds else nullable


def _type_names(schema: json_values.JsonObject) -> list[str]:
    """Return the names of the types of a schema with several types or with a choice of schemas."""
    if "type" in schema:
        return [str(each) for each in json_values.list_at(schema, "type")]
    choices = json_values.objects_at(schema, "anyOf") or json_values.objects_at(schema, "oneOf")
    return [name for choice in choices if isinstance(name := choice.get("type"), str)]


def _type(kind: Kind, tokens: format.TokenSet) -> str:
    return f"type:{format.format_value(_upper(kind), tokens=tokens)}"


def _upper_type(kind: json_values.JsonValue) -> json_values.JsonValue:
    return (
        kind.upper()
        if isinstance(kind, str)
        else [str(each).upper() for each in json_values.list_at({"type": kind}, "type")]
    )


def _upper(kind: Kind) -> Kind:
    return kind.upper() if isinstance(kind, str) else [each.upper() for each in kind]


def _upper_types(schema: json_values.JsonValue, in_map: bool = False) -> json_values.JsonValue:
    """Return a schema with the names of its types in capitals. `in_map`: its keys are names, not keywords."""
    if isinstance(schema, list):
        return [_upper_types(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _upper_type(value)
        if key == "type" and not in_map and isinstance(value, str | list)
        else _upper_types(value, key in _MAP_KEYS and not in_map)
        for key, value in schema.items()
    }


def _text(schema: json_values.JsonObject, key: str) -> str:
    return str(schema.get(key) or "")


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?)\s*:\s*$")
_ARGUMENTS = ("Args", "Arguments", "Parameters")
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^()]*\))?\s*:\s*(.*)$")
_CHOICES = re.compile(r"\s*\(\s*choices\s*:\s*(\[.*\])\s*\)\s*$", re.IGNORECASE | re.DOTALL)
_SIMPLE: dict[object, json_values.JsonObject] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def declaration_from_function(python_function: Callable[..., object]) -> Tool:
    """Return a Python function as a tool in OpenAI's shape.

    `(choices: ["a", "b"])` at the end of an argument's description becomes its `enum`; a default makes it optional;
    a class that is no JSON type becomes an object. Raises `ValueError` where a docstring, a type or a description is
    missing.
    """
    name = python_function.__name__
    description, described = _read_docstring(inspect.getdoc(python_function) or "")
    if not description:
        raise ValueError(f"{name} has no docstring")
    hints = _type_hints(python_function)
    properties: json_values.MutableJsonObject = {}
    required: list[str] = []
    for parameter in _function_parameters(python_function):
        if parameter.name not in hints:
            raise ValueError(f"{name}: the argument {parameter.name} has no type")
        if parameter.name not in described:
            raise ValueError(f"{name}: the argument {parameter.name} has no description")
        properties[parameter.name] = _property_schema(hints[parameter.name], described[parameter.name])
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters: json_values.MutableJsonObject = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _function_parameters(function: Callable[..., object]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and parameter.name != "self":
            yield parameter


def _type_hints(function: Callable[..., object]) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ValueError(f"the types of {function.__name__} cannot be resolved: {error}") from None


def _property_schema(hint: object, description: str) -> json_values.JsonObject:
    schema = dict(_hint_schema(hint))
    if (choices := _CHOICES.search(description)) is not None:
        try:
            schema["enum"] = json_values.parse_json(choices[1])
        except ValueError:
            raise ValueError(f"the choices {choices[1]} are no JSON list") from None
        description = description[: choices.start()].rstrip()
    schema["description"] = description
    return schema


def _hint_schema(hint: object) -> json_values.JsonObject:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union_schema(arguments)
    if origin is typing.Literal:
        kinds = [_text(_SIMPLE[type(each)], "type") for each in arguments]
        kind: Kind = kinds[0] if len(set(kinds)) == 1 else list(dict.fromkeys(kinds))
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


def _union_schema(arguments: Sequence[object]) -> json_values.JsonObject:
    nullable = {"nullable": True} if type(None) in arguments else {}
    schemas = [_hint_schema(each) for each in arguments if each is not type(None)]
    if len(schemas) == 1:
        return {**schemas[0], **nullable}
    if all(set(each) == {"type"} and isinstance(each["type"], str) for each in schemas):
        return {"type": sorted({_text(each, "type") for each in schemas}), **nullable}
    return {"anyOf": schemas, **nullable}


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the function's description and, by name, that of each argument on one line."""
    section, head, arguments = "", [], []
    # Google's style of docstrings: sections with a title at the margin and indented lines below it.
    for line in text.splitlines():
        if (title := _SECTION.match(line.strip())) is not None and not line[:1].isspace():
            section = title[1]
        elif section in _ARGUMENTS and line[:1].strip():
            # A line at the margin, such as "Returns: nothing", is no argument.
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


_HELD_OUT = 10
"""One in so many utterances is kept for the evaluation of the training."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A prompt, and the answer that the model is to learn."""

    utterance: str
    """The caller's words; rows with equal ones are on the same side of the split."""
    prompt: str
    """The exact text that the model reads."""
    completion: str
    """The answer to learn, with the token that ends it."""
    source: str
    """Where the row comes from, for people who read the rows."""

    def as_json(self) -> dict[str, str]:
        """Return the row as a line of the training file."""
        return {"prompt": self.prompt, "completion": self.completion, "source": self.source}


def training_row(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    calls: Sequence[json_values.JsonObject],
    source: str,
    tokens: format.TokenSet = format.FUNCTIONGEMMA,
) -> TrainingRow:
    """Return the training row whose prompt is `messages` and whose answer is `calls`.

    Each call is `{"name", "arguments"}`; without calls the model ends its turn at once.

    Raises `ValueError` for a call that the tools do not allow and for a conversation that cannot be rendered.
    """
    read = one_utterance(messages)
    utterance = next((str(message["content"]) for message in read if message["role"] == "user"), "")
    parameters = {
        function["name"]: json_values.object_at(function, "parameters") for function in map(format.function_of, tools)
    }
    written = []
    for call in calls:
        name, arguments = str(call["name"]), call.get("arguments")
        if name not in parameters:
            raise ValueError(f"there is no function '{name}'")
        if not isinstance(arguments, Mapping):
            raise ValueError(f"the arguments of '{name}' are not known")
        fitted = coerce_arguments(_without_blanks(arguments), parameters[name] or {"type": "object"})
        value = format.format_value(fitted, tokens=tokens, sort=True)
        written.append(f"{tokens.start_call}call:{name}{value}{tokens.end_call}")
    completion = "".join(written) + (tokens.start_response if written else tokens.end_turn)
    return TrainingRow(utterance, render_prompt(read, tools, tokens=tokens), completion, source)


def split_rows(rows: Sequence[TrainingRow]) -> tuple[list[TrainingRow], list[TrainingRow]]:
    """Return the rows for training and those for evaluation, a tenth of the utterances.

    Utterances are chosen by a hash of their words, so the choice hardly changes when rows are added. Of two or more
    utterances at least one is for evaluation.
    """
    utterances = sorted({row.utterance for row in rows}, key=_hash_of)
    # All rows of an utterance are on the same side, so that the model is not evaluated with training data.
    held = set(utterances[: max(round(len(utterances) / _HELD_OUT), min(1, len(utterances) - 1))])
    return [row for row in rows if row.utterance not in held], [row for row in rows if row.utterance in held]


def _hash_of(utterance: str) -> float:
    """Return a hash of the words, from 0 to 1."""
    digest = hashlib.sha256(" ".join(utterance.casefold().split()).encode()).digest()
    return int.from_bytes(digest[:8]) / math.pow(2, 64)


def _without_blanks(arguments: json_values.JsonObject) -> json_values.JsonObject:
    """Return the arguments without empty ones, which the model is not to learn."""
    return {name: value for name, value in arguments.items() if value not in (None, "")}
