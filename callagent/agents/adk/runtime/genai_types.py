"""Stand-ins for `google.genai.types`, which callbacks and tools of agent trees read and return."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class _Type(BaseModel):
    """A type of the API: it takes fields in snake_case and camelCase and keeps fields that are not declared here."""

    model_config = ConfigDict(
        extra="allow", alias_generator=to_camel, populate_by_name=True, arbitrary_types_allowed=True
    )


class Blob(_Type):
    mime_type: str | None = None
    data: bytes | None = None


class FunctionCall(_Type):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


class FunctionResponse(_Type):
    id: str | None = None
    name: str | None = None
    response: dict[str, Any] | None = None


class Part(_Type):
    text: str | None = None
    thought: bool | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    inline_data: Blob | None = None

    @classmethod
    def from_text(cls, *, text: str) -> Part:
        return cls(text=text)

    @classmethod
    def from_function_call(cls, *, name: str, args: dict[str, Any]) -> Part:
        return cls(function_call=FunctionCall(name=name, args=args))

    @classmethod
    def from_function_response(cls, *, name: str, response: dict[str, Any]) -> Part:
        return cls(function_response=FunctionResponse(name=name, response=response))

    @classmethod
    def from_bytes(cls, *, data: bytes, mime_type: str) -> Part:
        return cls(inline_data=Blob(data=data, mime_type=mime_type))


class Content(_Type):
    role: str | None = None
    parts: list[Part] | None = None


class UserContent(Content):
    role: str | None = "user"

    def __init__(self, parts: Any = None, **fields: Any) -> None:
        super().__init__(parts=_parts(parts), **fields)


class ModelContent(Content):
    role: str | None = "model"

    def __init__(self, parts: Any = None, **fields: Any) -> None:
        super().__init__(parts=_parts(parts), **fields)


class Schema(_Type):
    type: Any = None
    properties: dict[str, Any] | None = None
    required: list[str] | None = None
    description: str | None = None
    items: Any = None
    enum: list[str] | None = None


class FunctionDeclaration(_Type):
    name: str | None = None
    description: str | None = None
    parameters: Schema | dict[str, Any] | None = None
    parameters_json_schema: Any = None


class Tool(_Type):
    function_declarations: list[FunctionDeclaration] | None = None


class SafetySetting(_Type):
    category: Any = None
    threshold: Any = None


class _Names(type):
    """The metaclass of an enumeration of the API whose members are their own names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class Modality(metaclass=_Names):
    pass


class HttpRetryOptions(_Type):
    pass


class HttpOptions(_Type):
    pass


class ThinkingConfig(_Type):
    pass


class PrebuiltVoiceConfig(_Type):
    pass


class VoiceConfig(_Type):
    pass


class SpeechConfig(_Type):
    pass


class HarmCategory(StrEnum):
    HARM_CATEGORY_HATE_SPEECH = "HARM_CATEGORY_HATE_SPEECH"
    HARM_CATEGORY_DANGEROUS_CONTENT = "HARM_CATEGORY_DANGEROUS_CONTENT"
    HARM_CATEGORY_HARASSMENT = "HARM_CATEGORY_HARASSMENT"
    HARM_CATEGORY_SEXUALLY_EXPLICIT = "HARM_CATEGORY_SEXUALLY_EXPLICIT"


class HarmBlockThreshold(StrEnum):
    BLOCK_LOW_AND_ABOVE = "BLOCK_LOW_AND_ABOVE"
    BLOCK_MEDIUM_AND_ABOVE = "BLOCK_MEDIUM_AND_ABOVE"
    BLOCK_ONLY_HIGH = "BLOCK_ONLY_HIGH"
    BLOCK_NONE = "BLOCK_NONE"
    OFF = "OFF"


class GenerateContentConfig(_Type):
    system_instruction: Any = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None
    response_mime_type: str | None = None
    response_schema: Any = None
    safety_settings: list[Any] | None = None
    tools: list[Any] | None = None
    labels: dict[str, str] | None = None


class Type:
    """JSON types as the API spells them."""

    STRING, NUMBER, INTEGER, BOOLEAN, ARRAY, OBJECT = "STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT"


def plain(value: BaseModel) -> dict[str, Any]:
    """Return a value as the tree engine carries it: in snake_case, without fields that are not set."""
    dumped: dict[str, Any] = value.model_dump(exclude_none=True)
    return dumped


def _parts(parts: Any) -> list[Any] | None:
    """Return a text, a part, or a list of either as parts."""
    if parts is None:
        return None
    items = parts if isinstance(parts, list) else [parts]
    return [Part(text=item) if isinstance(item, str) else item for item in items]
