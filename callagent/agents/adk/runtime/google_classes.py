"""Stand-ins for the classes of `google.genai.types`, `google.adk.agents`, `.events` and `.models`.

A project's Python creates, receives and returns them. Agents and models are descriptions only, which the core runs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from callagent.agents.tree import STORAGE_REQUEST, LiveState
from callagent.workers import Plain


class _Type(BaseModel):
    """A type of the API: it takes fields in snake_case and camelCase and keeps fields that are not declared here."""

    # Google's classes have many more fields than are needed here, and a project that sets one of them must not fail.
    model_config = ConfigDict(
        extra="allow", alias_generator=to_camel, populate_by_name=True, arbitrary_types_allowed=True
    )


class Blob(_Type):
    mime_type: str | None = None
    data: bytes | None = None


class FunctionCall(_Type):
    id: str | None = None
    name: str | None = None
    args: dict[str, object] | None = None


class FunctionResponse(_Type):
    id: str | None = None
    name: str | None = None
    response: dict[str, object] | None = None


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
    def from_function_call(cls, *, name: str, args: dict[str, object]) -> Part:
        return cls(function_call=FunctionCall(name=name, args=args))

    @classmethod
    def from_function_response(cls, *, name: str, response: dict[str, object]) -> Part:
        return cls(function_response=FunctionResponse(name=name, response=response))

    @classmethod
    def from_bytes(cls, *, data: bytes, mime_type: str) -> Part:
        return cls(inline_data=Blob(data=data, mime_type=mime_type))


class Content(_Type):
    role: str | None = None
    parts: list[Part] | None = None


class UserContent(Content):
    role: str | None = "user"

    def __init__(self, parts: object = None, **fields: object) -> None:
        super().__init__(parts=_parts(parts), **fields)


class ModelContent(Content):
    role: str | None = "model"

    def __init__(self, parts: object = None, **fields: object) -> None:
        super().__init__(parts=_parts(parts), **fields)


class Schema(_Type):
    type: object = None
    properties: dict[str, object] | None = None
    required: list[str] | None = None
    description: str | None = None
    items: object = None
    enum: list[str] | None = None


class FunctionDeclaration(_Type):
    name: str | None = None
    description: str | None = None
    parameters: Schema | dict[str, object] | None = None
    parameters_json_schema: object = None


class Tool(_Type):
    function_declarations: list[FunctionDeclaration] | None = None


class SafetySetting(_Type):
    category: object = None
    threshold: object = None


class _Names(type):
    """The metaclass of an enumeration of the API whose members are their own names."""

    def __getattr__(cls, name: str) -> str:
        # Python and pydantic probe for names such as `__get_pydantic_core_schema__`, which have to be missing.
        if name.startswith("_"):
            raise AttributeError(name)
        return name


# Projects use the following types in their settings of models; here they have no effect.
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
    system_instruction: object = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None
    response_mime_type: str | None = None
    response_schema: object = None
    safety_settings: list[Any] | None = None
    tools: list[Any] | None = None
    labels: dict[str, str] | None = None


class Type:
    """JSON types as the API spells them."""

    STRING, NUMBER, INTEGER, BOOLEAN, ARRAY, OBJECT = "STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT"


def to_plain(value: BaseModel) -> Plain:
    """Return a value as plain data for the tree engine: in snake_case, without fields that are not set."""
    dumped: Plain = value.model_dump(exclude_none=True)
    return dumped


def _parts(parts: object) -> list[Any] | None:
    """Return a text, a part, or a list of either as parts."""
    if parts is None:
        return None
    items = parts if isinstance(parts, list) else [parts]
    return [Part(text=item) if isinstance(item, str) else item for item in items]


# Events, requests and contexts: what the ADK passes to callbacks, tools and agents made of code -----------------------


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)


class EventActions(_Open):
    """The actions of an event: what it does beside its content."""

    state_delta: dict[str, object] = Field(default_factory=dict)
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    transfer_to_agent: str | None = None
    escalate: bool | None = None
    skip_summarization: bool | None = None


class MemoryEntry(_Open):
    """One utterance of an earlier call."""

    content: Content
    custom_metadata: dict[str, object] = Field(default_factory=dict)
    id: str | None = None
    author: str | None = None
    timestamp: str | None = None
    """ISO 8601."""


class SearchMemoryResponse(_Open):
    memories: list[MemoryEntry] = Field(default_factory=list)


class LlmResponse(_Open):
    """A model's answer as callbacks see it, or an answer that a callback returns instead."""

    content: Content | None = None
    partial: bool | None = None
    turn_complete: bool | None = None
    error_code: str | None = None
    error_message: str | None = None
    interrupted: bool | None = None
    custom_metadata: dict[str, object] | None = None


class Event(LlmResponse):
    """One entry of a call's history."""

    author: str = ""
    invocation_id: str = ""
    id: str = ""
    branch: str | None = None
    actions: EventActions = Field(default_factory=EventActions)
    long_running_tool_ids: set[str] | None = None

    def get_function_calls(self) -> list[FunctionCall]:
        return [part.function_call for part in self._parts() if part.function_call]

    def get_function_responses(self) -> list[FunctionResponse]:
        return [part.function_response for part in self._parts() if part.function_response]

    def is_final_response(self) -> bool:
        # The same rule as `tree.events.Event.is_final`, as far as project code can see it.
        if self.actions.skip_summarization or self.long_running_tool_ids:
            return True
        return not self.get_function_calls() and not self.get_function_responses() and not self.partial

    def _parts(self) -> list[Part]:
        return (self.content.parts if self.content else None) or []


class LlmRequest(_Open):
    """A request to the model, which before-model callbacks may change."""

    model: str | None = None
    contents: list[Content] = Field(default_factory=list)
    config: GenerateContentConfig = Field(default_factory=GenerateContentConfig)
    tools_dict: dict[str, object] = Field(default_factory=dict)

    def append_instructions(self, instructions: list[str]) -> None:
        texts = [self.config.system_instruction, *instructions]
        self.config.system_instruction = "\n\n".join(str(text) for text in texts if text)


@dataclass(slots=True)
class Session:
    """The call as project code sees it."""

    id: str
    user_id: str
    """The caller's number."""
    app_name: str
    state: LiveState
    events: list[Event]


class ReadonlyContext:
    """The place in a call where project code runs: session, agent and turn."""

    def __init__(self, session: Session, agent_name: str, invocation: Mapping[str, object]) -> None:
        self.session = session
        self.agent_name = agent_name
        self.invocation_id = str(invocation.get("invocation_id") or "")
        content = invocation.get("user_content")
        self.user_content = Content.model_validate(content) if content else None
        self.branch = invocation.get("branch") or None

    @property
    def state(self) -> LiveState:
        return self.session.state

    @property
    def user_id(self) -> str:
        return self.session.user_id


class CallbackContext(ReadonlyContext):
    """The context of a callback, which may also use artifacts and memories."""

    def __init__(self, session: Session, agent_name: str, invocation: Mapping[str, object]) -> None:
        super().__init__(session, agent_name, invocation)
        self.actions = EventActions()
        self.ask: Callable[[Plain], Any] = _refuse_questions
        """Asks the core; `AdkSession` sets it."""

    async def save_artifact(self, filename: str, artifact: object, custom_metadata: object = None) -> int:
        """Keep an artifact and return the number of its version. Raises `AskFailed` when the call keeps no more."""
        # A part may also be a plain dict, or an object of another pydantic class with the same fields.
        part = to_plain(artifact) if isinstance(artifact, BaseModel) else artifact
        version = int(self._ask_storage("save", name=filename, part=to_plain(Part.model_validate(part))))
        self.actions.artifact_delta[filename] = version
        return version

    async def load_artifact(self, filename: str, version: int | None = None) -> Part | None:
        found = self._ask_storage("load", name=filename, version=version)
        return None if found is None else Part.model_validate(found)

    async def list_artifacts(self) -> list[str]:
        return list(self._ask_storage("names"))

    async def search_memory(self, query: str) -> SearchMemoryResponse:
        return SearchMemoryResponse(memories=self._ask_storage("search", query=query))

    async def add_session_to_memory(self) -> None:
        self._ask_storage("remember")

    def _ask_storage(self, what: str, **more: object) -> Any:
        return self.ask({"type": STORAGE_REQUEST, "ask": True, "what": what, **more})


class ToolContext(CallbackContext):
    """The context of a tool."""

    seconds: float | None = None
    """Seconds that the tool may wait for a server; None: no limit."""

    def __init__(
        self, session: Session, agent_name: str, invocation: Mapping[str, object], function_call_id: str | None = None
    ) -> None:
        super().__init__(session, agent_name, invocation)
        self.function_call_id = function_call_id


def _refuse_questions(message: Plain) -> Any:
    raise RuntimeError("artifacts and memories are only available while a call runs")


class InvocationContext(ToolContext):
    """The context of an agent class of the project."""

    def __init__(self, session: Session, agent: BaseAgent, invocation: Mapping[str, object]) -> None:
        super().__init__(session, agent.name, invocation)
        self.agent = agent
        self.end_invocation = False
        # An attribute instead of a method, because only `AdkSession` knows the worker's channel.
        self.run_child: Callable[[BaseAgent], AsyncIterator[Event]]
        """Runs another agent; `AdkSession` sets it."""


Callbacks = Callable[..., object] | list[Callable[..., object]] | None


# Agents and models: what `google.adk.agents` and `google.adk.models` have ---------------------------------------------


class BaseAgentConfig(BaseModel):
    """The keys of a YAML file, for agent classes that declare their own."""

    model_config = ConfigDict(extra="allow")
    agent_class: str = ""
    name: str
    description: str = ""
    sub_agents: list[object] | None = None
    before_agent_callbacks: list[object] | None = None
    after_agent_callbacks: list[object] | None = None


class BaseAgent(BaseModel):
    """An agent; the base of a project's own classes of agents, which override `_run_async_impl`."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    config_type: ClassVar[type[BaseAgentConfig]] = BaseAgentConfig
    name: str
    description: str = ""
    sub_agents: list[Any] = Field(default_factory=list)
    before_agent_callback: Callbacks = None
    after_agent_callback: Callbacks = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.isidentifier() or name == "user":
            raise ValueError(f"'{name}' is not a valid agent name: use a Python identifier other than 'user'")
        return name

    @classmethod
    def _parse_config(cls, config: BaseAgentConfig, config_abs_path: str, kwargs: Plain) -> Plain:
        """Return the arguments of the class from the keys of its file; agent classes override it."""
        # `kwargs` come last: they have the objects of the callbacks, tools and sub-agents, the file only their names.
        own = {key: value for key, value in config.model_dump(exclude_unset=True).items() if key in cls.model_fields}
        return {**own, **kwargs}

    def run_async(self, parent_context: InvocationContext) -> AsyncIterator[Event]:
        """Run this agent from the code of another one; its events come all at once, when it has ended."""
        return parent_context.run_child(self)

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        raise NotImplementedError(f"{type(self).__name__} has no _run_async_impl")


class LlmAgent(BaseAgent):
    """An agent that asks a language model."""

    model: object = ""
    instruction: str | Callable[..., object] = ""
    static_instruction: object = None
    tools: list[object] = Field(default_factory=list)
    generate_content_config: GenerateContentConfig | None = None
    disallow_transfer_to_parent: bool = False
    disallow_transfer_to_peers: bool = False
    include_contents: str = "default"
    input_schema: object = None
    output_schema: object = None
    output_key: str | None = None
    before_model_callback: Callbacks = None
    after_model_callback: Callbacks = None
    before_tool_callback: Callbacks = None
    after_tool_callback: Callbacks = None


class SequentialAgent(BaseAgent):
    """An agent whose sub-agents run one after the other."""


class LoopAgent(BaseAgent):
    """An agent whose sub-agents run in rounds until one escalates."""

    max_iterations: int | None = None


class ParallelAgent(BaseAgent):
    """An agent whose sub-agents run at the same time."""


KINDS: dict[type[BaseAgent], str] = {
    LlmAgent: "llm",
    SequentialAgent: "sequential",
    LoopAgent: "loop",
    ParallelAgent: "parallel",
}


def kind_of(agent: BaseAgent) -> str:
    """Return an agent's kind: `code` for classes with a `_run_async_impl` of the project's own."""
    # A subclass of LlmAgent that only adds fields is still an agent with a model, which the core runs.
    if type(agent)._run_async_impl is not BaseAgent._run_async_impl:
        return "code"
    return next((kind for known, kind in KINDS.items() if isinstance(agent, known)), "code")


class BaseLlm(BaseModel):
    """A model that a project's Python names.

    Only its name is used: the settings map it to a configured model, and no request goes through this object.
    """

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)
    model: str


class LiteLlm(BaseLlm):
    """A model whose name is `provider/model`."""


class Gemini(BaseLlm):
    model: str = ""


class Claude(BaseLlm):
    model: str = ""
