"""Stand-ins for the contexts, events and model requests that the ADK passes to project code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from callagent.agents.adk.runtime.genai_types import (
    Content,
    FunctionCall,
    FunctionResponse,
    GenerateContentConfig,
    Part,
    plain,
)
from callagent.agents.tree import STORAGE_REQUEST
from callagent.agents.tree.runtime import LiveState


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)


class EventActions(_Open):
    state_delta: dict[str, Any] = Field(default_factory=dict)
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    transfer_to_agent: str | None = None
    escalate: bool | None = None
    skip_summarization: bool | None = None


class MemoryEntry(_Open):
    content: Content
    custom_metadata: dict[str, Any] = Field(default_factory=dict)
    id: str | None = None
    author: str | None = None
    timestamp: str | None = None
    """ISO 8601."""


class SearchMemoryResponse(_Open):
    memories: list[MemoryEntry] = Field(default_factory=list)


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
    """The call as project code sees it."""

    id: str
    user_id: str
    """The caller's number."""
    app_name: str
    state: LiveState
    events: list[Any]


class ReadonlyContext:
    def __init__(self, session: Session, agent_name: str, invocation: Mapping[str, Any]) -> None:
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
    def __init__(self, session: Session, agent_name: str, invocation: Mapping[str, Any]) -> None:
        super().__init__(session, agent_name, invocation)
        self.actions = EventActions()
        self.ask: Callable[[dict[str, Any]], Any] = _nobody
        """Asks the core; `AdkSession` sets it."""

    async def save_artifact(self, filename: str, artifact: Any, custom_metadata: Any = None) -> int:
        """Keep an artifact and return the number of its version. Raises `AskFailed` when the call keeps no more."""
        part = artifact if isinstance(artifact, dict) else plain(artifact)
        version = int(self._kept("save", name=filename, part=plain(Part.model_validate(part))))
        self.actions.artifact_delta[filename] = version
        return version

    async def load_artifact(self, filename: str, version: int | None = None) -> Part | None:
        found = self._kept("load", name=filename, version=version)
        return None if found is None else Part.model_validate(found)

    async def list_artifacts(self) -> list[str]:
        return list(self._kept("names"))

    async def search_memory(self, query: str) -> SearchMemoryResponse:
        return SearchMemoryResponse(memories=self._kept("search", query=query))

    async def add_session_to_memory(self) -> None:
        self._kept("remember")

    def _kept(self, what: str, **more: Any) -> Any:
        return self.ask({"type": STORAGE_REQUEST, "ask": True, "what": what, **more})


class ToolContext(CallbackContext):
    seconds: float | None = None
    """Seconds that the tool may wait for a server; None: no limit."""

    def __init__(
        self, session: Session, agent_name: str, invocation: Mapping[str, Any], function_call_id: str | None = None
    ) -> None:
        super().__init__(session, agent_name, invocation)
        self.function_call_id = function_call_id


def _nobody(message: dict[str, Any]) -> Any:
    raise RuntimeError("artifacts and memories are only available while a call runs")


class InvocationContext(ToolContext):
    """The context of an agent class of the project."""

    def __init__(self, session: Session, agent: Any, invocation: Mapping[str, Any]) -> None:
        super().__init__(session, agent.name, invocation)
        self.agent = agent
        self.end_invocation = False
        self.run_child: Callable[[Any], AsyncIterator[Event]]
        """Runs another agent; `AdkSession` sets it."""
