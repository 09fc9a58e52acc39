"""Any server that speaks OpenAI's chat completions: OpenAI itself, vLLM, Ollama, llama.cpp, Groq and others.

One streamed request per answer (`POST {base_url}/chat/completions`). Text is passed on as it arrives; tool calls come
in fragments and are passed on whole, behind the text.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from callagent.errors import ProviderError
from callagent.json_values import JsonObject, object_at
from callagent.models import model_server, protocol

BASE_URL = "https://api.openai.com/v1"
_SAMPLING = {each: each for each in ("top_p", "stop", "seed", "presence_penalty", "frequency_penalty")}

_PROTOCOL = "chat completion"
_MAX_CALLS = 64
"""Tool calls of one answer; a model that repeats itself must not fill the memory."""
_DONE = "[DONE]"


@dataclass(slots=True)
class _Fragments:
    """The parts of a tool call that have arrived."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """A streamed chat completion, put together see `model_server.Answer`."""

    over: bool = False
    finished: bool = False
    """Whether the server reported the end of the answer; the usage may still follow."""
    _calls: dict[str, _Fragments] = field(default_factory=dict)
    _usage: protocol.Usage | None = None

    def feed(self, event: str) -> str | None:
        """Return the text that an event adds, see `model_server.Answer`."""
        if event == _DONE:
            self.over = self.finished = True
            return None
        data = model_server.read_event(event, _PROTOCOL)
        try:
            if data.get("usage"):
                # Some servers count in every event, others once, in an event without choices.
                usage = model_server.as_object(data["usage"])
                self._usage = protocol.Usage(
                    model_server.as_int(usage.get("prompt_tokens")), model_server.as_int(usage.get("completion_tokens"))
                )
            # Only one choice is requested; an event that only counts tokens has none.
            choices = model_server.as_list(data.get("choices") or ())
            return self._feed_choice(model_server.as_object(choices[0])) if choices else None
        except ValueError as error:
            raise model_server.unexpected_event(_PROTOCOL, event) from error

    def rest(self) -> Iterator[protocol.Delta]:
        """Yield the tool calls in their order, then the usage."""
        # A connection that is cut looks like the end of an answer; only the finish reason shows that it is whole.
        if not self.finished:
            raise ProviderError("the model's server ended the answer before it was whole")
        for number, call in enumerate(self._calls.values(), 1):
            if not call.name:
                raise ProviderError("the model's server sent a tool call without a name")
            # Some servers give no identifiers; the answer to a call needs one.
            yield protocol.Delta(
                tool_call=protocol.ToolCall(call.id or f"call_{number}", call.name, call.arguments or "{}")
            )
        if self._usage:
            yield protocol.Delta(usage=self._usage)

    def _feed_choice(self, choice: JsonObject) -> str | None:
        delta = model_server.as_object(choice.get("delta") or {})
        fragments = model_server.as_list(delta.get("tool_calls") or ())
        for fragment in fragments:
            self._add_fragment(model_server.as_object(fragment))
        # The stream goes on: the usage comes in a later event.
        if choice.get("finish_reason"):
            self.finished = True
        # Servers of models that reason send their thoughts under this name, which is not OpenAI's own.
        progresses = fragments or delta.get("reasoning_content")
        return str(delta.get("content") or "") or ("" if progresses else None)

    def _add_fragment(self, fragment: JsonObject) -> None:
        call = self._calls.setdefault(self._key(fragment), _Fragments())
        if len(self._calls) > _MAX_CALLS:
            raise ProviderError(f"the model called more than {_MAX_CALLS} tools at once")
        function = model_server.as_object(fragment.get("function") or {})
        call.id = call.id or str(fragment.get("id") or "")
        call.name += str(function.get("name") or "")
        arguments = function.get("arguments")
        # Some servers send the arguments as an object, in place of its text.
        call.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""

    def _key(self, fragment: JsonObject) -> str:
        """Return the key of a fragment's call. Without an index, a new identifier or a name begins a call."""
        if fragment.get("index") is not None:
            return f"index {fragment['index']}"
        if fragment.get("id"):
            return f"id {fragment['id']}"
        begins_call = bool(object_at(fragment, "function").get("name")) or not self._calls
        return f"number {len(self._calls)}" if begins_call else next(reversed(self._calls))


class OpenAIModel:
    """A model of an OpenAI-compatible server; `close()` ends its connections."""

    def __init__(self, model: str, settings: protocol.ProviderSettings) -> None:
        self._model = model
        self._settings = settings
        self._base_url = (settings.base_url or BASE_URL).rstrip("/")
        self._server = model_server.ModelServer()

    async def stream(
        self, messages: Sequence[protocol.Message], tools: Sequence[protocol.Tool], settings: protocol.ModelSettings
    ) -> AsyncGenerator[protocol.Delta, None]:
        """Ask for one answer, as `LanguageModel` says."""
        deadlines = model_server.Deadlines.of(self._settings)
        key = self._settings.api_key
        # A self-hosted server may need no key, and refuse an empty one.
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = model_server.Request(
            f"{self._base_url}/chat/completions", headers, self._body(messages, tools, settings)
        )
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
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            body["tools"] = list(tools)
        temperature = settings.temperature if settings.temperature is not None else self._settings.temperature
        if temperature is not None:
            body["temperature"] = temperature
        if settings.max_tokens is not None:
            # OpenAI has renamed this field; other servers of its protocol know only the old name.
            field_name = "max_completion_tokens" if "//api.openai.com" in self._base_url else "max_tokens"
            body[field_name] = settings.max_tokens
        if self._settings.reasoning_effort:
            body["reasoning_effort"] = self._settings.reasoning_effort
        if settings.json_output:
            body["response_format"] = {"type": "json_object"}
        return body | settings.sampling_as(_SAMPLING)


DECLARATION = protocol.Declaration(
    "openai",
    "OpenAI, and every server that speaks its chat completions",
    open=OpenAIModel,
    base_url=BASE_URL,
    keys=("OPENAI_API_KEY",),
    environment={"OPENAI_BASE_URL": "base_url"},
)
