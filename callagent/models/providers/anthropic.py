"""Anthropic's Messages API, streamed (`POST {base_url}/v1/messages`, version 2023-06-01)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypedDict

from callagent.errors import ProviderError
from callagent.json_values import JsonObject
from callagent.models import model_server, protocol

BASE_URL = "https://api.anthropic.com"
_SAMPLING = {"top_p": "top_p", "top_k": "top_k", "stop": "stop_sequences"}

_PROTOCOL = "event of a message"
_VERSION = "2023-06-01"
_MAX_TOKENS = 1024
"""The API demands a limit; an answer on the phone is far shorter."""
_JSON_ONLY = "Answer with one JSON object and nothing else."
_MAX_CALLS = 64
_BELOW_LOW = ("none", "minimal")
"""Efforts that the API does not have; it is given `low`, the least that it has."""


@dataclass(slots=True)
class _ToolUse:
    """A tool call as far as it has arrived."""

    id: str
    name: str
    whole: str = ""
    """What the block began with, as JSON; the fragments replace it."""
    fragments: str = ""


@dataclass(slots=True)
class Answer:
    """A streamed message, put together as `model_server.Answer` says."""

    over: bool = False
    _calls: dict[int, _ToolUse] = field(default_factory=dict)
    _input_tokens: int = 0
    _output_tokens: int = 0

    def feed(self, event: str) -> str | None:
        """Return the text that an event adds, as `model_server.Answer` says."""
        data = model_server.read_event(event, _PROTOCOL)
        try:
            match data["type"]:
                case "message_start":
                    self._count(model_server.as_object(model_server.as_object(data["message"])["usage"]))
                case "content_block_start":
                    return self._begin_block(
                        model_server.as_int(data["index"]), model_server.as_object(data["content_block"])
                    )
                case "content_block_delta":
                    return self._add_to_block(model_server.as_int(data["index"]), model_server.as_object(data["delta"]))
                case "message_delta":
                    self._count(model_server.as_object(data.get("usage") or {}))
                case "message_stop":
                    self.over = True
                # The API's documentation: new kinds of events may come at any time. A "ping" says nothing.
        except (ValueError, LookupError) as error:
            raise model_server.not_of(_PROTOCOL, event) from error
        return None

    def rest(self) -> Iterator[protocol.Delta]:
        """Yield the tool calls in their order, then the usage."""
        # A connection that ends early ends like a whole answer; only `message_stop` tells them apart.
        if not self.over:
            raise ProviderError("the model's server ended the answer before it was whole")
        for call in self._calls.values():
            yield protocol.Delta(tool_call=protocol.ToolCall(call.id, call.name, call.fragments or call.whole))
        if self._input_tokens or self._output_tokens:
            yield protocol.Delta(usage=protocol.Usage(self._input_tokens, self._output_tokens))

    def _begin_block(self, index: int, block: JsonObject) -> str | None:
        if block["type"] == "tool_use":
            if len(self._calls) == _MAX_CALLS:
                raise ProviderError(f"the model called more than {_MAX_CALLS} tools at once")
            self._calls[index] = _ToolUse(str(block["id"]), str(block["name"]), json.dumps(block.get("input") or {}))
        # Of other blocks, such as a thought, nothing is passed on: they only show that the model goes on.
        return str(block.get("text") or "") or None if block["type"] == "text" else ""

    def _add_to_block(self, index: int, delta: JsonObject) -> str:
        # The arguments of a call come as pieces of a JSON text, which need not be whole in any of them.
        if delta["type"] == "input_json_delta" and index in self._calls:
            self._calls[index].fragments += str(delta["partial_json"])
        return str(delta["text"]) if delta["type"] == "text_delta" else ""

    def _count(self, usage: JsonObject) -> None:
        # Input that is read from the provider's cache, or written to it, is not counted in `input_tokens`.
        read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        # The last event repeats the counts, or leaves out those of the input.
        self._input_tokens = sum(model_server.as_int(usage.get(key) or 0) for key in read) or self._input_tokens
        self._output_tokens = model_server.as_int(usage.get("output_tokens") or self._output_tokens)


class AnthropicModel:
    """A model of Anthropic's, or of a server that speaks its protocol; `close()` ends its connections."""

    def __init__(self, model: str, settings: protocol.ProviderSettings) -> None:
        self._model = model
        self._settings = settings
        self._url = (settings.base_url or BASE_URL).rstrip("/").removesuffix("/v1") + "/v1/messages"
        self._server = model_server.ModelServer()

    async def stream(
        self, messages: Sequence[protocol.Message], tools: Sequence[protocol.Tool], settings: protocol.ModelSettings
    ) -> AsyncGenerator[protocol.Delta, None]:
        """Ask for one answer, as `LanguageModel` says."""
        deadlines = model_server.Deadlines.of(self._settings)
        headers = {"x-api-key": self._settings.api_key, "anthropic-version": _VERSION}
        request = model_server.Request(self._url, headers, self._body(messages, tools, settings))
        async with aclosing(self._server.deltas(request, deadlines, Answer())) as deltas:
            async for delta in deltas:
                yield delta

    async def close(self) -> None:
        await self._server.close()

    def _body(
        self, messages: Sequence[protocol.Message], tools: Sequence[protocol.Tool], settings: protocol.ModelSettings
    ) -> dict[str, object]:
        body: dict[str, object] = {
            "model": settings.model or self._model,
            "messages": to_turns(messages),
            "max_tokens": settings.max_tokens or _MAX_TOKENS,
            "stream": True,
        }
        system = [text for text in (protocol.system_text(messages), _JSON_ONLY if settings.json_output else "") if text]
        if system:
            body["system"] = "\n\n".join(system)
        if tools:
            body["tools"] = [_tool(tool["function"]) for tool in tools]
        temperature = settings.temperature if settings.temperature is not None else self._settings.temperature
        if temperature is not None:
            # Other providers' temperatures go up to 2; this API refuses more than 1.
            body["temperature"] = min(temperature, 1.0)
        if effort := self._settings.reasoning_effort:
            body["output_config"] = {"effort": "low" if effort in _BELOW_LOW else effort}
        return body | settings.sampling_as(_SAMPLING)


class Turn(TypedDict):
    """What one side says in one go."""

    role: str
    content: list[JsonObject]


def to_turns(messages: Sequence[protocol.Message]) -> list[Turn]:
    """Return the conversation as turns of user and assistant, as the API demands them.

    They alternate, and the user has the first and the last one.
    """
    turns: list[Turn] = []
    names = protocol.tool_names(messages)
    for message in messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        if blocks := list(_blocks(message, names)):
            if not turns and role == "assistant":
                turns.append(_user_turn(protocol.OPENING))
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += blocks
            else:
                turns.append({"role": role, "content": blocks})
    if not turns or turns[-1]["role"] == "assistant":
        turns.append(_user_turn(protocol.SILENCE if turns else protocol.OPENING))
    return turns


def _user_turn(text: str) -> Turn:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _blocks(message: protocol.Message, names: Mapping[str, str]) -> Iterator[JsonObject]:
    text = protocol.text_of(message)
    match message["role"]:
        case "user" | "assistant":
            # The API refuses an empty block.
            if text.strip():
                yield {"type": "text", "text": text}
            elif message["role"] == "user":
                yield {"type": "text", "text": protocol.SILENCE}
            for call in message.get("tool_calls") or ():
                function = call["function"]
                yield {
                    "type": "tool_use",
                    "id": _identifier(call["id"]),
                    "name": function["name"],
                    "input": protocol.arguments_of(function),
                }
        # A result without its call, which may have been cut off the conversation's beginning, would be refused.
        case "tool" if message.get("tool_call_id") in names:
            yield {"type": "tool_result", "tool_use_id": _identifier(message["tool_call_id"]), "content": text}


def _identifier(text: str) -> str:
    """Return an identifier that the API takes; those of other providers' models may hold what it refuses."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", text)


def _tool(function: protocol.ToolFunction) -> JsonObject:
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "input_schema": {"type": "object", **(function.get("parameters") or {})},
    }


DECLARATION = protocol.Declaration(
    "anthropic",
    "Anthropic",
    open=AnthropicModel,
    base_url=BASE_URL,
    keys=("ANTHROPIC_API_KEY",),
)
