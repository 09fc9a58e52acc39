"""A flow project and its flows as read from the project folder: data only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from callagent.agents.flows.format.agent_settings import Guardrail, Languages, SafetyFilters
from callagent.agents.flows.format.config import ApiIntegration, Entity, HandoffTarget, McpConfig, SmsTemplate, Variants
from callagent.agents.flows.format.experimental import ExperimentalSettings
from callagent.agents.flows.format.functions import ProjectFunction
from callagent.agents.flows.format.steps import Step
from callagent.agents.flows.format.topics import Topic
from callagent.agents.flows.format.voice import Greeting, VoiceSettings


@dataclass(frozen=True, slots=True)
class Project:
    path: Path
    name: str
    account_id: str = ""
    project_id: str = ""
    identity: str = ""
    rules: str = ""
    guardrails: tuple[Guardrail, ...] = ()
    safety: Mapping[str, SafetyFilters] = field(default_factory=dict)
    """Channel (`voice`, `webchat`) -> its filters; empty: those of the agent."""
    languages: Languages = field(default_factory=Languages)
    experimental: ExperimentalSettings = field(default_factory=ExperimentalSettings)
    voice: VoiceSettings = field(default_factory=VoiceSettings)
    chat: Greeting | None = None
    entities: Mapping[str, Entity] = field(default_factory=dict)
    handoffs: Mapping[str, HandoffTarget] = field(default_factory=dict)
    sms_templates: Mapping[str, SmsTemplate] = field(default_factory=dict)
    apis: Mapping[str, ApiIntegration] = field(default_factory=dict)
    mcp: tuple[McpConfig, ...] = ()
    remote: Mapping[str, ProjectFunction] = field(default_factory=dict)
    """Functions of its MCP servers, by the name the model sees; known when the servers have been asked."""
    variants: Variants = field(default_factory=Variants)
    translations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    topics: tuple[Topic, ...] = ()
    functions: Mapping[str, ProjectFunction] = field(default_factory=dict)
    """Global functions, without start and end."""
    start_function: ProjectFunction | None = None
    end_function: ProjectFunction | None = None
    flows: Mapping[str, Flow] = field(default_factory=dict)
    """By display name."""

    def safety_of(self, channel: str) -> SafetyFilters | None:
        """The channel's filters in place of the agent's."""
        return self.safety.get(channel) or self.safety.get("")

    def step(self, flow: str | None, step: str | None) -> Step | None:
        """None outside flows and on a function step."""
        found = self.flows.get(flow or "")
        return found.steps.get(step or "") if found else None

    def function_step(self, flow: str | None, step: str | None) -> ProjectFunction | None:
        found = self.flows.get(flow or "")
        return found.function_steps.get(step or "") if found else None

    def all_functions(self) -> Iterator[ProjectFunction]:
        """Every function file of the project."""
        yield from (each for each in (self.start_function, self.end_function) if each is not None)
        yield from self.functions.values()
        for flow in self.flows.values():
            yield from flow.functions.values()
            yield from flow.function_steps.values()


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    folder: str
    description: str
    start_step: str
    steps: Mapping[str, Step] = field(default_factory=dict)
    function_steps: Mapping[str, ProjectFunction] = field(default_factory=dict)
    functions: Mapping[str, ProjectFunction] = field(default_factory=dict)

    def has_step(self, name: str | None) -> bool:
        return name in self.steps or name in self.function_steps
