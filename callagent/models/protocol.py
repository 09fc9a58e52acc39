"""What an agent asks of a language model, and what a provider declares of itself.

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
    """JSON text as the model wrote it, which may be invalid; or what it stands for."""


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
    """Words, or a list of parts of which those with a `text` count."""
    tool_calls: Sequence[MessageCall]
    """Of an assistant's message."""
    tool_call_id: str
    """Of a tool's message: the call that it answers."""
    name: str
    """Of a tool's message that has no identifier: the function that it answers for."""


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
    """A function that a model calls."""

    id: str
    """Unique within the conversation: the tool's message names the call by it."""
    name: str
    arguments: str
    """JSON as the model wrote it; it may be invalid."""

    def as_plain(self) -> MutableJsonObject:
        """Return name and arguments as JSON data; arguments that are not valid JSON stay the text that they are."""
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
    """The model is at work on what is not passed on: a part of a tool call, or its thoughts. Deadlines start anew."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one request is to be answered."""

    model: str = ""
    """The provider's model name; empty: the one it was configured with."""
    temperature: float | None = None
    max_tokens: int | None = None
    json_output: bool = False
    sampling: JsonObject = field(default_factory=dict)
    """`top_p`, `top_k`, `stop`, `seed`, `presence_penalty`, `frequency_penalty`; a provider takes those it knows."""

    safety: Mapping[str, str] = field(default_factory=dict)
    """The threshold (`BLOCK_LOW_AND_ABOVE`, `OFF` …) from which an answer is withheld, for each kind of harm
    (`HARM_CATEGORY_…`). Gemini's models heed it."""

    def sampling_as(self, names: Mapping[str, str]) -> MutableJsonObject:
        """Return the sampling settings that a provider knows, by its own names for them."""
        return {names[key]: value for key, value in self.sampling.items() if key in names and value is not None}


class LanguageModel(Protocol):
    """A language model, shared by all calls."""

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        """Ask for one answer and yield it step by step. Closing the iterator frees the provider's connection.

        Raises `ProviderError`, and of these `AnswerWithheld` for an answer that the provider holds to be unsafe.
        """

    async def close(self) -> None:
        """End the connections and processes; no answer may be running."""


# numpy is an optional dependency (extra `local`), so its type cannot be named where it is not installed.
Vector = Any
"""A numpy array of float32 whose length (Euclidean norm) is one."""


class Embedder(Protocol):
    """Turns texts into vectors whose inner product says how alike the texts are; shared by all calls."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in their order."""


@runtime_checkable
class PerCallModel(Protocol):
    """A model that keeps something per call: a script's position."""

    def for_call(self) -> LanguageModel:
        """Return the model as one call sees it, from the beginning; it needs no closing of its own."""


def for_call(model: LanguageModel) -> LanguageModel:
    """Return the call's own view of a model that keeps something per call, else the model. Asked when a call opens."""
    return model.for_call() if isinstance(model, PerCallModel) else model


OPENING = "(The call begins.)"
"""Stands where a provider demands that the user speaks first, but the agent greets the caller."""
SILENCE = "(The caller says nothing.)"
"""Stands for an empty message of the user, which providers refuse."""

INSTRUCTIONS = ("system", "developer")
"""Roles whose messages instruct the model."""


def system_text(messages: Sequence[Message]) -> str:
    """Return all instructions, wherever they stand in the conversation.

    For providers that take them apart from the conversation: left in it, they would have to be written as the user's
    words, and then a caller's words could pass for instructions.
    """
    return "\n\n".join(text for message in messages if message["role"] in INSTRUCTIONS and (text := text_of(message)))


def text_of(message: Message) -> str:
    """Return the message's words; of content in parts, those of all parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return json.dumps(content, ensure_ascii=False)


def tool_names(messages: Sequence[Message]) -> dict[str, str]:
    """Return the tool's name for the identifier of each call in the conversation."""
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
    """How a provider is reached; the embedded models need none of it."""

    base_url: str = ""
    """Empty: the provider's own."""
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
    """Of FunctionGemma: answers where it calls no function."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One provider of models behind a network; each provider's file has its own."""

    name: str
    """What stands before the slash in `model.name`; the provider's own name of a model stands behind it."""
    documentation: str
    """One line for the documentation: whose models these are."""
    open: Callable[[str, ProviderSettings], LanguageModel]
    """Opens a model by the provider's own name of it. Nothing is sent before the first request."""
    base_url: str
    """The provider's own address."""
    keys: tuple[str, ...]
    """The environment variables of its key; where several are set, the first of them counts."""
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
        # By the host alone: an address may be written with a path (`/v1`) or without.
        return not base_url or urlsplit(base_url).hostname == urlsplit(self.base_url).hostname
