"""Stand-ins for the contexts, events and model requests that functions of agent trees get."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from callagent.agents.adk.runtime.genai import Content, FunctionCall, FunctionResponse, GenerateContentConfig
from callagent.agents.tree.runtime import LiveState


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)


class EventActions(_Open):
    state_delta: dict[str, Any] = Field(default_factory=dict)
    transfer_to_agent: str | None = None
    escalate: bool | None = None
    skip_summarization: bool | None = None


class LlmResponse(_Open):
    content: Content | None = None
    partial: bool | None = None
    turn_complete: bool | None = None
    error_code: str | None = None
    error_message: str | None = None
    interrupted: bool | None = None
    custom_metadata: dict[str, Any] | None = None


class Event(LlmResponse):
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
        if self.actions.skip_summarization or self.long_running_tool_ids:
            return True
        return not self.get_function_calls() and not self.get_function_responses() and not self.partial

    def _parts(self) -> list[Any]:
        return (self.content.parts if self.content else None) or []


class LlmRequest(_Open):
    model: str | None = None
    contents: list[Content] = Field(default_factory=list)
    config: GenerateContentConfig = Field(default_factory=GenerateContentConfig)
    tools_dict: dict[str, Any] = Field(default_factory=dict)

    def append_instructions(self, instructions: list[str]) -> None:
        texts = [self.config.system_instruction, *instructions]
        self.config.system_instruction = "\n\n".join(text for text in texts if text)


@dataclass(slots=True)
class Session:
    """The call, as functions know it."""

    id: str
    user_id: str
    """The caller's number."""
    app_name: str
    state: LiveState
    events: list[Any]


class ReadonlyContext:
    def __init__(self, session: Session, agent_name: str, scene: Mapping[str, Any]) -> None:
        self.session = session
        self.agent_name = agent_name
        self.invocation_id = str(scene.get("invocation_id") or "")
        content = scene.get("user_content")
        self.user_content = Content.model_validate(content) if content else None
        self.branch = scene.get("branch") or None

    @property
    def state(self) -> LiveState:
        return self.session.state

    @property
    def user_id(self) -> str:
        return self.session.user_id


class CallbackContext(ReadonlyContext):
    def __init__(self, session: Session, agent_name: str, scene: Mapping[str, Any]) -> None:
        super().__init__(session, agent_name, scene)
        self.actions = EventActions()

    async def save_artifact(self, filename: str, artifact: Any, **options: Any) -> int:
        raise NotImplementedError("a call keeps no artifacts; put what is needed into the state")

    async def load_artifact(self, filename: str, version: int | None = None) -> None:
        """A call keeps no artifacts: there is none of that name."""

    async def list_artifacts(self) -> list[str]:
        return []


class ToolContext(CallbackContext):
    def __init__(
        self, session: Session, agent_name: str, scene: Mapping[str, Any], function_call_id: str | None = None
    ) -> None:
        super().__init__(session, agent_name, scene)
        self.function_call_id = function_call_id

    async def search_memory(self, query: str) -> None:
        raise NotImplementedError("there is no memory service")


class InvocationContext(ToolContext):
    """What an agent class of the project gets."""

    def __init__(self, session: Session, agent: Any, scene: Mapping[str, Any]) -> None:
        super().__init__(session, agent.name, scene)
        self.agent = agent
        self.end_invocation = False
        self.run_child: Callable[[Any], AsyncIterator[Event]]
        """Runs another agent; set by whoever makes the context."""
