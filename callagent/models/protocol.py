"""The contract of language models: requests, streamed answers, and what a provider declares about itself.

Messages and tools have the shape of OpenAI's chat completions, which the adapters of other providers translate.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Required, TypedDict, runtime_checkable
from urllib.parse import urlsplit

from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, parse_json


class CalledFunction(TypedDict):
    """The function of a call in a message."""

    name: str
    arguments: JsonValue
    """JSON text as the model wrote it, which may be invalid, or the JSON value itself."""


class MessageCall(TypedDict, total=False):
    """A call that an assistant's message makes."""

    id: str
    type: str
    """Always `function`."""
    function: Required[CalledFunction]


class Message(TypedDict, total=False):
    """One message of a conversation."""

    role: Required[str]
    """`system`, `developer`, `user`, `assistant` or `tool`."""
    content: JsonValue
    """Text, or a list of parts, of which only those with a `text` are read."""
    tool_calls: Sequence[MessageCall]
    """Only in an assistant's message."""
    tool_call_id: str
    """Only in a tool's message: the identifier of the call that it answers."""
    name: str
    """Only in a tool's message without an identifier: the function that it answers for."""


class ToolFunction(TypedDict, total=False):
    """A function that is offered to a model."""

    name: Required[str]
    description: str
    parameters: JsonObject
    """A JSON schema of an object."""


class Tool(TypedDict, total=False):
    """A tool that is offered to a model."""

    type: str
    """Always `function`."""
    function: Required[ToolFunction]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's call of a function."""

    id: str
    """Unique within the conversation: the tool's message names the call by it."""
    name: str
    arguments: str
    """JSON as the model wrote it; it may be invalid."""

    def as_plain(self) -> MutableJsonObject:
        """Return name and arguments as JSON data; arguments that are not valid JSON stay text."""
        try:
            arguments = parse_json(self.arguments or "{}")
        except ValueError:
            arguments = self.arguments
        return {"name": self.name, "arguments": arguments}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a request used, as the provider counts them."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of a streamed answer; a tool call arrives whole."""

    text: str = ""
    tool_call: ToolCall | None = None
    usage: Usage | None = None
    progress: bool = False
    """Whether the model wrote part of a tool call or thoughts, which are not passed on but start deadlines anew."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings of one request."""

    model: str = ""
    """The provider's model name; empty: the one it was configured with."""
    temperature: float | None = None
    max_tokens: int | None = None
    json_output: bool = False
    sampling: JsonObject = field(default_factory=dict)
    """`top_p`, `top_k`, `stop`, `seed`, `presence_penalty`, `frequency_penalty`; a provider takes those it knows."""

    safety: Mapping[str, str] = field(default_factory=dict)
    """The threshold (`BLOCK_LOW_AND_ABOVE`, `OFF` …) from which an answer is withheld, for each kind of harm
    (`HARM_CATEGORY_…`). Only Gemini's models use it."""

    def sampling_as(self, names: Mapping[str, str]) -> MutableJsonObject:
        """Return the sampling settings that a provider knows, by its own names for them."""
        return {names[key]: value for key, value in self.sampling.items() if key in names and value is not None}


class LanguageModel(Protocol):
    """A language model, shared by all calls."""

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        """Ask for one answer and yield it step by step. Closing the iterator frees the provider's connection.

        Raises `ProviderError`: its subclass `AnswerWithheld` if the provider finds the answer unsafe.
        """

    async def close(self) -> None:
        """End the connections and processes; no answer may be running."""


# numpy is an optional dependency (extra `local`), so its type cannot be named where it is not installed.
Vector = Any
"""A numpy array of float32 whose length (Euclidean norm) is one."""


class Embedder(Protocol):
    """A model, shared by all calls, that turns texts into vectors whose inner product is the texts' similarity."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in their order."""


@runtime_checkable
class PerCallModel(Protocol):
    """A model with a state for each call, such as the position in a script."""

    def for_call(self) -> LanguageModel:
        """Return a new call's view of the model, in its initial state; only the model itself is closed."""


def for_call(model: LanguageModel) -> LanguageModel:
    """Return a new call's view of a model with a state for each call; else return the model itself."""
    return model.for_call() if isinstance(model, PerCallModel) else model


OPENING = "(The call begins.)"
"""The user's first message, where a provider demands one although the agent speaks first."""
SILENCE = "(The caller says nothing.)"
"""Replaces an empty message of the user, which providers refuse."""

INSTRUCTION_ROLES = ("system", "developer")
"""Roles whose messages instruct the model."""


def system_text(messages: Sequence[Message]) -> str:
    """Return all instructions, wherever they stand in the conversation.

    This is for providers that take instructions outside of the conversation: inside, they would be written as the
    user's words, and a caller's words could pass for instructions.
    """
    return "\n\n".join(
        text for message in messages if message["role"] in INSTRUCTION_ROLES and (text := text_of(message))
    )


def text_of(message: Message) -> str:
    """Return the message's text, joined from all parts of its content."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return json.dumps(content, ensure_ascii=False)


def tool_names(messages: Sequence[Message]) -> dict[str, str]:
    """Return the names of the tools that the conversation calls, by the identifiers of the calls."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {str(call["id"]): str(call["function"]["name"]) for call in calls}


def arguments_of(function: CalledFunction) -> JsonObject:
    """Return a call's arguments; empty where the model wrote something other than a JSON object."""
    arguments = function.get("arguments") or "{}"
    try:
        read = parse_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return {}
    return read if isinstance(read, Mapping) else {}


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """How a provider is reached and for how long it is waited for; the embedded models use none of it."""

    base_url: str = ""
    """Empty: the provider's own address."""
    api_key: str = field(default="", repr=False)
    temperature: float | None = None
    """Used where a request does not set its own."""
    reasoning_effort: str = ""
    """`none`, `minimal`, `low`, `medium` or `high`, for models that reason; empty: the model's own."""
    first_token_timeout: float = 6.0
    """Seconds from the request to the first token."""
    next_token_timeout: float = 2.0
    """Seconds from one token to the next."""
    total_timeout: float = 30.0
    """Seconds from the request to the end of the answer."""
    fallback: LanguageModel | None = None
    """The model that answers where FunctionGemma calls no function."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of a provider of models over the network, one in each provider's file."""

    name: str
    """The part of `model.name` before the slash; the provider's own name of a model follows it."""
    documentation: str
    """One line for the documentation: whose models these are."""
    open: Callable[[str, ProviderSettings], LanguageModel]
    """Opens a model by the provider's own name of it. Nothing is sent before the first request."""
    base_url: str
    """The provider's own address."""
    keys: tuple[str, ...]
    """The environment variables of its key; the first that is set counts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables, and the setting that each fills."""

    @property
    def form(self) -> str:
        """The form of its models' names, for help texts and messages."""
        return f"{self.name}/MODEL"

    @property
    def line(self) -> str:
        """Its line in the documentation's list of providers."""
        variables = ", ".join(f"`{name}`" for name in (*self.keys, *self.environment))
        return f"* `{self.form}`: {self.documentation}. {variables}"

    def needs_key(self, base_url: str) -> bool:
        """Return whether a key is needed at the address `base_url`; empty is the provider's own."""
        # Only hosts are compared, because an address may be written with a path (`/v1`) or without.
        return not base_url or urlsplit(base_url).hostname == urlsplit(self.base_url).hostname
