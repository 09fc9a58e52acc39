"""A conversation as the models were trained to read it, equal to the released chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from callagent.models.functiongemma.declarations import render_declaration
from callagent.models.functiongemma.format import FUNCTIONGEMMA, TokenSet, format_value, is_identifier, neutralise
from callagent.models.protocol import Message, Tool

_INSTRUCTIONS = ("system", "developer")


def render_prompt(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    tokens: TokenSet = FUNCTIONGEMMA,
    generation_prompt: bool = True,
) -> str:
    """Messages and tools in OpenAI's shape as one text; `generation_prompt` opens the model's turn where none is open.

    A tool's message holds `{"name", "response"}`, a list of those, or a text with the identifier of its call.
    Control tokens in anybody's words are neutralised. Raises `ValueError` where a call has no response and a response
    no function.
    """
    instructions = [_content(message) for message in messages if message["role"] in _INSTRUCTIONS]
    writer = _Writer(tokens)
    writer.instruct("\n".join(text for text in instructions if text), tools)
    for message in messages:
        writer.take(message)
    return writer.finish(generation_prompt)


class _Writer:
    """The turns after one another. Calls, their responses and the words after them share one turn of the model."""

    def __init__(self, tokens: TokenSet) -> None:
        self._tokens = tokens
        self._parts = [tokens.bos]
        self._names: dict[str, str] = {}
        """Function by identifier of its call."""
        self._last = ""
        """What the open turn of the model ends in: `call`, `response` or, with no turn open, nothing."""

    def instruct(self, text: str, tools: Sequence[Tool]) -> None:
        tokens = self._tokens
        if tools and tokens.trigger not in text:
            text = f"{text}\n{tokens.trigger}" if text else tokens.trigger
        declared = [
            f"{tokens.start_declaration}{render_declaration(tool, tokens=tokens)}{tokens.end_declaration}"
            for tool in tools
        ]
        if text or declared:
            self._turn(tokens.developer, text + "".join(declared))

    def take(self, message: Message) -> None:
        match message["role"]:
            case "system" | "developer":
                pass
            case "user":
                self._close()
                self._turn("user", _content(message))
            case "assistant":
                self._take_answer(message)
            case "tool":
                self._take_response(message)
            case role:
                raise ValueError(f"unknown role {role!r}")

    def finish(self, generation_prompt: bool) -> str:
        if self._last == "call":
            self._parts.append(self._tokens.start_response)
        elif generation_prompt and not self._last:
            self._parts.append(f"{self._tokens.start_turn}model\n")
        return "".join(self._parts)

    def _take_answer(self, message: Message) -> None:
        self._require_response()
        if not self._last:
            self._parts.append(f"{self._tokens.start_turn}model\n")
        self._parts.append(_content(message))
        calls = message.get("tool_calls") or ()
        for call in calls:
            self._parts.append(self._call(call))
        self._last = "call" if calls else "content"
        if not calls:
            self._close()

    def _call(self, call: Mapping[str, Any]) -> str:
        function = call.get("function", call)
        name, arguments = function["name"], _arguments(function.get("arguments"))
        if not is_identifier(name):
            raise ValueError(f"the name of the called function {name!r} is not valid")
        if identifier := call.get("id"):
            self._names[identifier] = name
        tokens = self._tokens
        return f"{tokens.start_call}call:{name}{format_value(arguments, tokens=tokens, sort=True)}{tokens.end_call}"

    def _take_response(self, message: Message) -> None:
        if not self._last:
            self._parts.append(f"{self._tokens.start_turn}model\n")
        for name, response in self._responses(message):
            value = response if isinstance(response, Mapping) else {"value": response}
            written = format_value(value, tokens=self._tokens, sort=True)
            self._parts.append(f"{self._tokens.start_response}response:{name}{written}{self._tokens.end_response}")
        self._last = "response"

    def _responses(self, message: Message) -> Iterator[tuple[str, Any]]:
        content = message.get("content")
        items: list[Any] = content if isinstance(content, list) else [content]
        if items and all(isinstance(item, Mapping) and "name" in item and "response" in item for item in items):
            yield from ((_checked(item["name"]), item["response"]) for item in items)
            return
        name = message.get("name") or self._names.get(message.get("tool_call_id") or "")
        if not name:
            raise ValueError("a tool's message names neither its function nor the call that it answers")
        yield _checked(name), _decoded(content)

    def _require_response(self) -> None:
        if self._last == "call":
            raise ValueError("a function call has no response")

    def _close(self) -> None:
        self._require_response()
        if self._last:
            self._parts.append(f"{self._tokens.end_turn}\n")
            self._last = ""

    def _turn(self, role: str, text: str) -> None:
        self._parts.append(f"{self._tokens.start_turn}{role}\n{text}{self._tokens.end_turn}\n")


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        texts = [str(item.get("text", "")).strip() for item in content if item.get("type", "text") == "text"]
        return neutralise("".join(texts))
    return neutralise(str(content or "").strip())


def _arguments(arguments: object) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        arguments = _decoded(arguments) if arguments.strip() else {}
    if arguments is None:
        return {}
    # What another model wrote instead of an object must not make the conversation unreadable.
    return arguments if isinstance(arguments, Mapping) else {"value": arguments}


def _decoded(content: object) -> object:
    """A JSON object given as text, as OpenAI's shape has it; anything else stays as it is."""
    if isinstance(content, str) and content.lstrip().startswith("{"):
        try:
            # NaN and Infinity, which Python writes, are no JSON numbers.
            decoded = json.loads(content, parse_constant=str)
        except (ValueError, RecursionError):
            return content
        return decoded if isinstance(decoded, dict) else content
    return content


def _checked(name: object) -> str:
    if not is_identifier(name):
        raise ValueError(f"the name of the function that answers {name!r} is not valid")
    return str(name)
