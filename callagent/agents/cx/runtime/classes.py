"""The classes among the globals of an app's code: contents, requests, answers, events.

Every class also accepts field names in camelCase and ignores unknown fields.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PAYLOAD = "application/json"
AUDIO = "application/json+audio"
CUSTOMIZED = "application/json+agentResponse"


class CesModel(BaseModel):
    """The base of the platform's classes (`ces_public`), with their published fields and types."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", arbitrary_types_allowed=True
    )


class Blob(CesModel):
    display_name: str | None = None
    data: bytes | None = None
    """Base64 text, as ASCII bytes."""
    mime_type: str | None = None
    transcript_field: str | None = Field(default=None, alias="transcript")

    @property
    def raw_data(self) -> bytes | None:
        """The decoded data; data that is not base64 is returned unchanged."""
        if self.data is None:
            return None
        try:
            return base64.b64decode(self.data, validate=True)
        except binascii.Error:
            return self.data

    @raw_data.setter
    def raw_data(self, value: bytes) -> None:
        self.data = base64.b64encode(value)

    def transcript(self) -> str | None:
        return self.transcript_field

    @classmethod
    def from_json(cls, data: str) -> Blob:
        return cls._of(PAYLOAD, data)

    @classmethod
    def _of(cls, mime_type: str, text: str) -> Blob:
        return cls(data=base64.b64encode(text.encode()), mime_type=mime_type)


class FunctionCall(CesModel):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


class FunctionResponse(CesModel):
    id: str | None = None
    name: str | None = None
    response: dict[str, Any] | None = None
    will_continue: bool | None = None


class Part(CesModel):
    """A part of a content; only one of its fields is set."""

    text: str | None = None
    inline_data: Blob | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    is_partial: bool | None = Field(default=None, alias="partial")

    def text_or_transcript(self) -> str | None:
        if self.text is None and self.inline_data is not None:
            return self.inline_data.transcript()
        return self.text

    def has_function_call(self, name: str) -> bool:
        return self.function_call is not None and self.function_call.name == name

    def has_function_response(self, name: str) -> bool:
        return self.function_response is not None and self.function_response.name == name

    @classmethod
    def from_text(cls, text: str, partial: bool | None = None) -> Part:
        return cls(text=text, is_partial=partial)

    @classmethod
    def from_function_call(cls, name: str, args: dict[str, object] | None = None) -> Part:
        return cls(function_call=FunctionCall(name=name, args=args or {}))

    @classmethod
    def from_function_response(cls, name: str, response: dict[str, object]) -> Part:
        return cls(function_response=FunctionResponse(name=name, response=response))

    @classmethod
    def from_inline_data(cls, data: bytes, mime_type: str) -> Part:
        return cls(inline_data=Blob(data=data, mime_type=mime_type))

    @classmethod
    def from_json(cls, data: str) -> Part:
        return cls(inline_data=Blob.from_json(data))

    @classmethod
    def from_audio(cls, audio_uri: str, cancellable: bool = False, interruptable: bool = True) -> Part:
        audio = {"audioUri": audio_uri, "cancellable": cancellable, "interruptable": interruptable}
        return cls(inline_data=Blob._of(AUDIO, json.dumps(audio)))

    @classmethod
    def from_agent_transfer(cls, agent: str) -> Part:
        return cls.from_function_call("transfer_to_agent", {"agent_name": agent})

    @classmethod
    def from_end_session(cls, *, reason: str, escalated: bool = False) -> Part:
        return cls.from_function_call("end_session", {"reason": reason, "session_escalated": escalated})

    @classmethod
    def from_customized_response(
        cls,
        *,
        content: str = "",
        disable_barge_in: bool = False,
        enable_dtmf: bool = False,
        dtmf_finish_digit: str = "#",
        dtmf_endpointing_timeout: int = 3,
    ) -> Part:
        response = {
            "content": content,
            "disableBargeIn": disable_barge_in,
            "enableDtmf": enable_dtmf,
            "dtmfFinishDigit": dtmf_finish_digit,
            "dtmfEndpointingTimeout": dtmf_endpointing_timeout,
        }
        return cls(inline_data=Blob._of(CUSTOMIZED, json.dumps(response)))


class Content(CesModel):
    parts: list[Part] | None = None
    role: str | None = None

    def is_user(self) -> bool:
        return self.role == "user"

    def is_model(self) -> bool:
        return self.role in ("model", "agent")


class EventActions(CesModel):
    skip_summarization: bool | None = None
    state_delta: dict[str, Any] = Field(default_factory=dict)
    artifact_delta: dict[str, Any] = Field(default_factory=dict)
    transfer_to_agent: str | None = None
    escalate: bool | None = None
    requested_auth_configs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    end_invocation: bool | None = None


class Event(CesModel):
    id: str = ""
    invocation_id: str = ""
    author: str = ""
    timestamp: int = 0
    content: Content | None = None
    actions: EventActions = Field(default_factory=EventActions)
    long_running_tool_ids: set[str] | None = None
    partial: bool | None = None
    turn_complete: bool | None = None
    error_code: str | None = None
    error_message: str | None = None
    interrupted: bool | None = None
    branch: str | None = None
    grounding_metadata: Any = None

    def is_user(self) -> bool:
        return self.author == "user"

    def is_agent(self, agent_name: str | None = None) -> bool:
        return self.author != "user" if agent_name is None else self.author == agent_name

    def has_error(self) -> bool:
        return self.error_code is not None

    def parts(self) -> list[Part]:
        return (self.content.parts if self.content else None) or []


class Tool(CesModel):
    name: str
    description: str = ""


class FunctionDeclaration(CesModel):
    name: str | None = None


class ToolDeclaration(CesModel):
    function_declarations: list[FunctionDeclaration] | None = None


class GenerateContentConfig(CesModel):
    system_instruction: Content | None = None
    tools: list[ToolDeclaration] | None = None
    excluded_tools: list[str] | None = None
    """Names of tools that are not offered to the model, even if `tools` has them."""

    def hide_tool(self, tool_name: str) -> None:
        self.excluded_tools = [*(self.excluded_tools or ()), tool_name]


class LlmRequest(CesModel):
    model: str | None = None
    contents: list[Content] = Field(default_factory=list)
    config: GenerateContentConfig | None = None


class LlmResponse(CesModel):
    content: Content | None = None
    partial: bool | None = None
    """Whether the response is spoken at once while the model is still asked."""
    turn_complete: bool | None = None

    @classmethod
    def from_parts(cls, parts: list[Part]) -> LlmResponse:
        return cls(content=Content(parts=parts, role="model"))


class HttpMethod(StrEnum):
    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    DELETE = "DELETE"
    PATCH = "PATCH"
    HEAD = "HEAD"
    OPTIONS = "OPTIONS"


def plain(model: CesModel) -> dict[str, object]:
    """Return an object as plain data without unset fields; bytes become text, in base64 unless they are ASCII."""
    return {key: _bytes_as_text(value) for key, value in model.model_dump(exclude_none=True).items()}


def _bytes_as_text(value: object) -> object:
    if isinstance(value, dict):
        return {key: _bytes_as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_bytes_as_text(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("ascii") if value.isascii() else base64.b64encode(value).decode("ascii")
    return value


class CallbackContext(CesModel):
    user_content: Content | None = None
    invocation_id: str = ""
    agent_name: str = ""
    session_id: str = ""
    state: dict[str, Any] = Field(default_factory=dict)
    """The call's variables; changes inside a value are kept, too."""
    actions: EventActions = Field(default_factory=EventActions)
    events: list[Event] = Field(default_factory=list)
    streaming_stage: str | None = None
    language_code: str = ""
    project_id: str = ""
    project_number: int = 0
    location: str = ""
    app_id: str = ""
    turn_index: int = 0

    @property
    def variables(self) -> dict[str, object]:
        """The variables of the session; the same mapping as `state`."""
        return self.state

    @variables.setter
    def variables(self, value: dict[str, object]) -> None:
        self.state = value

    def get_variable(self, key: str, default: object = None) -> object:
        return self.state.get(key, default)

    def set_variable(self, key: str, value: object) -> None:
        self.state[key] = value

    def remove_variable(self, key: str) -> None:
        """Remove a variable. Raises KeyError if it does not exist."""
        del self.state[key]

    def get_last_user_input(self) -> list[Part]:
        """Return the parts of the caller's newest consecutive events, oldest first."""
        if not self.events and self.user_content is not None:
            return list(self.user_content.parts or ())
        return self._newest_parts(Event.is_user)

    def get_last_agent_output(self) -> list[Part]:
        return self._newest_parts(Event.is_agent)

    def parts(self) -> list[Part]:
        """Return the parts of all events of the call."""
        return [part for event in self.events for part in event.parts()]

    def _newest_parts(self, belongs: Callable[[Event], bool]) -> list[Part]:
        newest: list[Event] = []
        for event in reversed(self.events):
            if belongs(event):
                newest.append(event)
            elif newest:
                break
        return [part for event in reversed(newest) for part in event.parts()]


class ToolContext(CallbackContext):
    function_call_id: str | None = None


def as_tool_context(context: CallbackContext) -> ToolContext:
    """Return a callback's context as the context of a tool that the callback calls."""
    if isinstance(context, ToolContext):
        return context
    return ToolContext.model_construct(**{name: getattr(context, name) for name in CallbackContext.model_fields})
