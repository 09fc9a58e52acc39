"""What an agent asks of a language model. Messages and tools have the shape of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

Message = Mapping[str, Any]
"""`{"role": "system"|"user"|"assistant"|"tool", "content": …, "tool_calls": […], "tool_call_id": …}`"""
Tool = Mapping[str, Any]
"""`{"type": "function", "function": {"name", "description", "parameters": <JSON schema>}}`"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON as the model wrote it; it may be invalid."""

    def as_plain(self) -> dict[str, Any]:
        """Name and arguments as JSON data; arguments that are no JSON stay the text that they are."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = self.arguments
        return {"name": self.name, "arguments": arguments}


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of a streamed answer; a tool call arrives whole."""

    text: str = ""
    tool_call: ToolCall | None = None
    usage: Usage | None = None
    progress: bool = False
    """The model goes on, with what cannot be passed on yet: a part of a tool call, or its thoughts."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    model: str = ""
    """The provider's model name; empty: the one it was configured with."""
    temperature: float | None = None
    max_tokens: int | None = None
    json_output: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """`top_p`, `top_k`, `stop`, `seed`, `presence_penalty`, `frequency_penalty`; a provider takes those it knows."""

    safety: Mapping[str, str] = field(default_factory=dict)
    """Kinds of harm (`HARM_CATEGORY_…`) -> from where on an answer is withheld (`BLOCK_LOW_AND_ABOVE`, `OFF` …).
    Gemini's models heed it."""

    def sampling_as(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Those that a provider knows, by its names."""
        return {names[key]: value for key, value in self.sampling.items() if key in names and value is not None}


class LanguageModel(Protocol):
    """A language model, shared by all calls."""

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        """One answer. Closing the iterator frees the provider's connection. Raises `ProviderError`,
        and of these `AnswerWithheld` for what is not safe."""

    async def close(self) -> None: ...


Vector = Any
"""A numpy array of float32 of length one."""


class Embedder(Protocol):
    """Texts to vectors whose product says how alike the texts are; shared by all calls."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]: ...


@runtime_checkable
class PerCallModel(Protocol):
    """A model that keeps something per call: a script's position."""

    def for_call(self) -> LanguageModel:
        """The model as one call sees it, from the beginning; it needs no closing of its own."""


def for_call(model: LanguageModel) -> LanguageModel:
    """What an engine asks for when a call opens: the call's own view of a model that has one, else the model."""
    return model.for_call() if isinstance(model, PerCallModel) else model


OPENING = "(The call begins.)"
"""Stands where a provider wants the user to speak first."""
SILENCE = "(The caller says nothing.)"

INSTRUCTIONS = ("system", "developer")


def system_text(messages: Sequence[Message]) -> str:
    """All instructions: wherever they stand, a caller's words must not be able to pass for them."""
    return "\n\n".join(text for message in messages if message["role"] in INSTRUCTIONS and (text := text_of(message)))


def text_of(message: Message) -> str:
    """The message's words; content may be parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return json.dumps(content, ensure_ascii=False)


def tool_names(messages: Sequence[Message]) -> dict[str, str]:
    """Identifier of each call in the conversation -> the tool's name."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {str(call["id"]): str(call["function"]["name"]) for call in calls}


def arguments_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments; what the model wrote may have been no JSON object, and then it is none."""
    arguments = function.get("arguments") or "{}"
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


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
        return not base_url or urlsplit(base_url).hostname == urlsplit(self.base_url).hostname
