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
"""Efforts that the API does not know; `low`, its least one, is sent for them."""


@dataclass(slots=True)
class _ToolUse:
    """The parts of a tool call that have arrived."""

    id: str
    name: str
    first_input: str = ""
    """The arguments in the block's first event, as JSON; fragments replace them."""
    fragments: str = ""


@dataclass(slots=True)
class Answer:
    """A streamed message, put together see `model_server.Answer`."""

    over: bool = False
    _calls: dict[int, _ToolUse] = field(default_factory=dict)
    _input_tokens: int = 0
    _output_tokens: int = 0

    def feed(self, event: str) -> str | None:
        """Return the text that an event adds, see `model_server.Answer`."""
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
                # Other events are ignored: the API announces that there will be new kinds, and a "ping" is empty.
        except (ValueError, LookupError) as error:
            raise model_server.unexpected_event(_PROTOCOL, event) from error
        return None

    def rest(self) -> Iterator[protocol.Delta]:
        """Yield the tool calls in their order, then the usage."""
        # A connection that is cut looks like the end of an answer; only `message_stop` shows that it is whole.
        if not self.over:
            raise ProviderError("the model's server ended the answer before it was whole")
        for call in self._calls.values():
            yield protocol.Delta(tool_call=protocol.ToolCall(call.id, call.name, call.fragments or call.first_input))
        if self._input_tokens or self._output_tokens:
            yield protocol.Delta(usage=protocol.Usage(self._input_tokens, self._output_tokens))

    def _begin_block(self, index: int, block: JsonObject) -> str | None:
        if block["type"] == "tool_use":
            if len(self._calls) == _MAX_CALLS:
                raise ProviderError(f"the model called more than {_MAX_CALLS} tools at once")
            self._calls[index] = _ToolUse(str(block["id"]), str(block["name"]), json.dumps(block.get("input") or {}))
        # Other blocks, such as thoughts, are not passed on; they only show that the model is at work.
        return str(block.get("text") or "") or None if block["type"] == "text" else ""

    def _add_to_block(self, index: int, delta: JsonObject) -> str:
        # The arguments of a call come as pieces of one JSON text.
        if delta["type"] == "input_json_delta" and index in self._calls:
            self._calls[index].fragments += str(delta["partial_json"])
        return str(delta["text"]) if delta["type"] == "text_delta" else ""

    def _count(self, usage: JsonObject) -> None:
        # `input_tokens` does not include input that is read from the provider's cache or written to it.
        input_keys = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        # The last event repeats all counts, or only that of the output.
        self._input_tokens = sum(model_server.as_int(usage.get(key) or 0) for key in input_keys) or self._input_tokens
        self._output_tokens = model_server.as_int(usage.get("output_tokens") or self._output_tokens)


class AnthropicModel:
    """A model of Anthropic, or of a server that speaks its protocol; `close()` ends its connections."""

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
    """Consecutive content blocks of one role."""

    role: str
    content: list[JsonObject]


def to_turns(messages: Sequence[protocol.Message]) -> list[Turn]:
    """Return the conversation as turns of user and assistant.

    As the API demands, they alternate, and the first and the last one are the user's.
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
        # The API refuses a result without its call, which may be missing because old messages are left out.
        case "tool" if message.get("tool_call_id") in names:
            yield {"type": "tool_result", "tool_use_id": _identifier(message["tool_call_id"]), "content": text}


def _identifier(text: str) -> str:
    """Return the identifier without characters that the API refuses; those of other providers may have some."""
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
