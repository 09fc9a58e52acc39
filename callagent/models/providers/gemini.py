"""Google's Gemini API, streamed (`POST {base_url}/v1beta/models/MODEL:streamGenerateContent?alt=sse`)."""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypedDict
from urllib.parse import quote

from callagent.errors import AnswerWithheld, ProviderError
from callagent.json_values import JsonObject, MutableJsonObject, object_at, parse_json
from callagent.models import model_server, protocol

BASE_URL = "https://generativelanguage.googleapis.com"
_SAMPLING = {
    "top_p": "topP", "top_k": "topK", "stop": "stopSequences", "seed": "seed",
    "presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty",
}  # fmt: skip

_PROTOCOL = "event of a generated content"
_MAX_CALLS = 64
_USUAL_ENDS = ("STOP", "MAX_TOKENS")
_UNSAFE_ENDS = ("SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")
_MAX_SIGNATURES = 4096
"""Signatures that are kept for all calls; the oldest one goes first."""
_NO_SIGNATURE = "skip_thought_signature_validator"
"""The signature that the API documents for calls which another model made."""
_THINKING_BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
"""Tokens of thought for each effort, for models before Gemini 3; later ones take the effort itself."""


@dataclass(slots=True)
class Answer:
    """A streamed content, put together see `model_server.Answer`."""

    to_tool_call: Callable[[JsonObject], protocol.ToolCall]
    """Returns the tool call of a part that has a function call."""
    guarded: bool = False
    """Whether an answer that is cut as unsafe is an error even after its beginning was passed on."""
    over: bool = False
    """Never true: the stream ends by itself, after the event that counts the tokens."""
    calls: list[JsonObject] = field(default_factory=list)
    """Parts with a function call, unchanged."""
    has_text: bool = False
    """Whether any text has come."""
    finish_reason: str = ""
    """Why the answer ended, in the API's terms; empty: it has not ended."""
    usage: protocol.Usage | None = None

    def feed(self, event: str) -> str | None:
        """Return the text that an event adds, see `model_server.Answer`."""
        data = model_server.read_event(event, _PROTOCOL)
        try:
            if reason := model_server.as_object(data.get("promptFeedback") or {}).get("blockReason"):
                raise AnswerWithheld(f"the model's server refused the conversation: {reason}")
            if counted := model_server.as_object(data.get("usageMetadata") or {}):
                # Thoughts are charged as output, but `candidatesTokenCount` does not include them.
                output = ("candidatesTokenCount", "thoughtsTokenCount")
                self.usage = protocol.Usage(
                    model_server.as_int(counted.get("promptTokenCount") or 0),
                    sum(model_server.as_int(counted.get(key) or 0) for key in output),
                )
            candidates = model_server.as_list(data.get("candidates") or ())
            return self._feed_candidate(model_server.as_object(candidates[0])) if candidates else None
        except (ValueError, LookupError) as error:
            raise model_server.unexpected_event(_PROTOCOL, event) from error

    def rest(self) -> Iterator[protocol.Delta]:
        """Yield the tool calls in their order, then the usage."""
        if not self.finish_reason:
            raise ProviderError("the model's server ended the answer before it was whole")
        # Text that was passed on cannot be taken back, so it stands, unless the project set its own thresholds.
        if self.finish_reason in _UNSAFE_ENDS and (self.guarded or not self.has_text):
            raise AnswerWithheld(f"the model's server withheld the answer: {self.finish_reason}")
        if self.finish_reason not in _USUAL_ENDS and not self.has_text:
            raise ProviderError(f"the model gave no answer: {self.finish_reason}")
        for part in self.calls:
            yield protocol.Delta(tool_call=self.to_tool_call(part))
        if self.usage:
            yield protocol.Delta(usage=self.usage)

    def _feed_candidate(self, candidate: JsonObject) -> str | None:
        text = ""
        parts = model_server.as_list(model_server.as_object(candidate.get("content") or {}).get("parts") or ())
        for part in map(model_server.as_object, parts):
            if "functionCall" in part:
                if len(self.calls) == _MAX_CALLS:
                    raise ProviderError(f"the model called more than {_MAX_CALLS} tools at once")
                if "name" not in model_server.as_object(part["functionCall"]):
                    raise ValueError("a function call without a name")
                self.calls.append(part)
            elif not part.get("thought"):
                text += str(part.get("text") or "")
        self.finish_reason = str(candidate.get("finishReason") or self.finish_reason)
        self.has_text = self.has_text or bool(text)
        return text if parts else None


class Content(TypedDict):
    """Consecutive parts of one role."""

    role: str
    parts: list[JsonObject]


class GeminiModel:
    """A Gemini model; `close()` ends its connections."""

    def __init__(self, model: str, settings: protocol.ProviderSettings) -> None:
        self._model = model
        self._settings = settings
        self._base_url = (settings.base_url or BASE_URL).rstrip("/").removesuffix("/v1beta")
        self._server = model_server.ModelServer()
        self._numbers = itertools.count(1)
        # The API wants back the signature of the thoughts behind a call. Messages have no field for it, so it is kept
        # here by the identifier of the call.
        self._signatures: OrderedDict[str, str] = OrderedDict()

    async def stream(
        self, messages: Sequence[protocol.Message], tools: Sequence[protocol.Tool], settings: protocol.ModelSettings
    ) -> AsyncGenerator[protocol.Delta, None]:
        """Ask for one answer, as `LanguageModel` says."""
        deadlines = model_server.Deadlines.of(self._settings)
        request, answer = self._request(messages, tools, settings), Answer(self._to_tool_call, bool(settings.safety))
        async with aclosing(self._server.deltas(request, deadlines, answer)) as deltas:
            async for delta in deltas:
                yield delta

    async def close(self) -> None:
        await self._server.close()

    def _to_tool_call(self, part: JsonObject) -> protocol.ToolCall:
        call = object_at(part, "functionCall")
        # Identifiers must be unique in a conversation; calls of most models come without one.
        identifier = str(call.get("id") or f"gemini_{next(self._numbers)}")
        if signature := part.get("thoughtSignature"):
            self._signatures[identifier] = str(signature)
            if len(self._signatures) > _MAX_SIGNATURES:
                self._signatures.popitem(last=False)
        return protocol.ToolCall(identifier, str(call["name"]), json.dumps(call.get("args") or {}, ensure_ascii=False))

    def _request(
        self, messages: Sequence[protocol.Message], tools: Sequence[protocol.Tool], settings: protocol.ModelSettings
    ) -> model_server.Request:
        model = settings.model or self._model
        body: dict[str, object] = {"contents": self._contents(messages, model)}
        if system := protocol.system_text(messages):
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if tools:
            body["tools"] = [{"functionDeclarations": [_declaration(tool["function"]) for tool in tools]}]
        if generation := self._generation_config(model, settings, with_tools=bool(tools)):
            body["generationConfig"] = generation
        if settings.safety:
            body["safetySettings"] = [{"category": kind, "threshold": each} for kind, each in settings.safety.items()]
        url = f"{self._base_url}/v1beta/models/{quote(model, safe='')}:streamGenerateContent?alt=sse"
        return model_server.Request(url, {"x-goog-api-key": self._settings.api_key}, body)

    def _generation_config(self, model: str, settings: protocol.ModelSettings, *, with_tools: bool) -> JsonObject:
        generation: MutableJsonObject = {}
        temperature = settings.temperature if settings.temperature is not None else self._settings.temperature
        if temperature is not None:
            generation["temperature"] = temperature
        if settings.max_tokens is not None:
            generation["maxOutputTokens"] = settings.max_tokens
        generation |= settings.sampling_as(_SAMPLING)
        # Only the newest models take functions and JSON output at once.
        if settings.json_output and not with_tools:
            generation["responseMimeType"] = "application/json"
        if effort := self._settings.reasoning_effort:
            before_3 = model.startswith(("gemini-1", "gemini-2"))
            level = {"thinkingLevel": "minimal" if effort == "none" else effort}
            generation["thinkingConfig"] = {"thinkingBudget": _THINKING_BUDGETS[effort]} if before_3 else level
        return generation

    def _contents(self, messages: Sequence[protocol.Message], model: str) -> list[Content]:
        """Return the conversation as contents of user and model, which alternate; the user's are first and last."""
        contents: list[Content] = []
        names = protocol.tool_names(messages)
        for message in messages:
            role = "model" if message["role"] == "assistant" else "user"
            if parts := list(self._parts(message, names, model)):
                if not contents and role == "model":
                    contents.append({"role": "user", "parts": [{"text": protocol.OPENING}]})
                if contents and contents[-1]["role"] == role:
                    contents[-1]["parts"] += parts
                else:
                    contents.append({"role": role, "parts": parts})
        if not contents or contents[-1]["role"] == "model":
            contents.append({"role": "user", "parts": [{"text": protocol.SILENCE if contents else protocol.OPENING}]})
        return contents

    def _parts(self, message: protocol.Message, names: Mapping[str, str], model: str) -> Iterator[JsonObject]:
        text = protocol.text_of(message)
        match message["role"]:
            case "user" | "assistant":
                if text.strip() or message["role"] == "user":
                    yield {"text": text if text.strip() else protocol.SILENCE}
                for index, call in enumerate(message.get("tool_calls") or ()):
                    function = call["function"]
                    part: JsonObject = {
                        "functionCall": {"name": function["name"], "args": protocol.arguments_of(function)}
                    }
                    yield {**part, **self._signature(str(call["id"]), index, model)}
            case "tool" if name := names.get(str(message.get("tool_call_id"))):
                yield {"functionResponse": {"name": name, "response": _response(text)}}

    def _signature(self, call_id: str, index: int, model: str) -> JsonObject:
        """Return the signature field of a call's part; of parallel calls only the first needs one."""
        if signature := self._signatures.get(call_id):
            return {"thoughtSignature": signature}
        return {"thoughtSignature": _NO_SIGNATURE} if not index and model.startswith("gemini-3") else {}


def _response(text: str) -> JsonObject:
    """Return a function's result as the JSON object that the API demands."""
    try:
        data = parse_json(text)
    except ValueError:
        data = text
    return data if isinstance(data, Mapping) else {"result": data}


def _declaration(function: protocol.ToolFunction) -> JsonObject:
    declaration: MutableJsonObject = {"name": function["name"], "description": function.get("description") or ""}
    parameters = function.get("parameters") or {}
    # A function without parameters has no schema at all.
    return declaration | ({"parametersJsonSchema": parameters} if parameters.get("properties") else {})


DECLARATION = protocol.Declaration(
    "gemini",
    "Google's Gemini",
    open=GeminiModel,
    base_url=BASE_URL,
    # Google's other libraries read GOOGLE_API_KEY, which may be meant for speech: the one for models comes first.
    keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
)
