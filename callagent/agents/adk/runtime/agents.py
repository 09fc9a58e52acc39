"""Stand-ins for the agents of `google.adk.agents`: what a project's YAML and Python describe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from callagent.agents.adk.runtime.contexts import Event, InvocationContext
from callagent.agents.adk.runtime.genai_types import GenerateContentConfig

Callbacks = Callable[..., Any] | list[Callable[..., Any]] | None


class BaseAgentConfig(BaseModel):
    """The keys of a YAML file, for agent classes that declare their own."""

    model_config = ConfigDict(extra="allow")
    agent_class: str = ""
    name: str
    description: str = ""
    sub_agents: list[Any] | None = None
    before_agent_callbacks: list[Any] | None = None
    after_agent_callbacks: list[Any] | None = None


class BaseAgent(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    config_type: ClassVar[type[BaseAgentConfig]] = BaseAgentConfig
    name: str
    description: str = ""
    sub_agents: list[Any] = Field(default_factory=list)
    before_agent_callback: Callbacks = None
    after_agent_callback: Callbacks = None

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name.isidentifier() or name == "user":
            raise ValueError(f"'{name}' is no name for an agent: an identifier is needed, and not 'user'")
        return name

    @classmethod
    def _parse_config(cls, config: BaseAgentConfig, config_abs_path: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """For agent classes to override: the arguments of the class from the keys of the file."""
        own = {key: value for key, value in config.model_dump(exclude_unset=True).items() if key in cls.model_fields}
        return {**own, **kwargs}

    def run_async(self, parent_context: InvocationContext) -> AsyncIterator[Event]:
        """For agent classes that run the agents below them; the events come when the agent is done."""
        return parent_context.run_child(self)

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
        raise NotImplementedError(f"{type(self).__name__} has no _run_async_impl")


class LlmAgent(BaseAgent):
    model: Any = ""
    instruction: str | Callable[..., Any] = ""
    static_instruction: Any = None
    tools: list[Any] = Field(default_factory=list)
    generate_content_config: GenerateContentConfig | None = None
    disallow_transfer_to_parent: bool = False
    disallow_transfer_to_peers: bool = False
    include_contents: str = "default"
    input_schema: Any = None
    output_schema: Any = None
    output_key: str | None = None
    before_model_callback: Callbacks = None
    after_model_callback: Callbacks = None
    before_tool_callback: Callbacks = None
    after_tool_callback: Callbacks = None


class SequentialAgent(BaseAgent):
    pass


class LoopAgent(BaseAgent):
    max_iterations: int | None = None


class ParallelAgent(BaseAgent):
    pass


KINDS: dict[type[BaseAgent], str] = {
    LlmAgent: "llm",
    SequentialAgent: "sequential",
    LoopAgent: "loop",
    ParallelAgent: "parallel",
}


def kind_of(agent: BaseAgent) -> str:
    """`code` for classes whose run is the project's own."""
    if type(agent)._run_async_impl is not BaseAgent._run_async_impl:
        return "code"
    return next((kind for known, kind in KINDS.items() if isinstance(agent, known)), "code")


class BaseLlm(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)
    model: str


class LiteLlm(BaseLlm):
    """Its names are `provider/model`."""


class Gemini(BaseLlm):
    model: str = ""


class Claude(BaseLlm):
    model: str = ""
