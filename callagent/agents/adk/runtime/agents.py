"""Stand-ins for the agents of `google.adk.agents` and the models of `google.adk.models`.

A project's Python makes them and its YAML is turned into them. They only describe: the core runs the agents.
"""

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
        """Return the arguments of the class from the keys of its file; agent classes override it."""
        own = {key: value for key, value in config.model_dump(exclude_unset=True).items() if key in cls.model_fields}
        return {**own, **kwargs}

    def run_async(self, parent_context: InvocationContext) -> AsyncIterator[Event]:
        """Run this agent from the code of another one; its events come all at once, when it has ended."""
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
    """Return an agent's kind: `code` for classes with a `_run_async_impl` of the project's own."""
    if type(agent)._run_async_impl is not BaseAgent._run_async_impl:
        return "code"
    return next((kind for known, kind in KINDS.items() if isinstance(agent, known)), "code")


class BaseLlm(BaseModel):
    """A model that a project's Python names.

    Only the name counts: the settings say which configured model it means, and nothing is asked through this object.
    """

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)
    model: str


class LiteLlm(BaseLlm):
    """A model whose name is `provider/model`."""


class Gemini(BaseLlm):
    model: str = ""


class Claude(BaseLlm):
    model: str = ""
