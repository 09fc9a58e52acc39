"""A flow project as read from its folder: data only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from callagent.agents.flows.apis import ApiIntegration
from callagent.agents.flows.entities import Entity
from callagent.agents.flows.experimental import Experimental
from callagent.agents.flows.flow import Flow
from callagent.agents.flows.functions import ProjectFunction
from callagent.agents.flows.handoffs import HandoffTarget
from callagent.agents.flows.identity import Guardrail, Languages
from callagent.agents.flows.mcp import McpConfig
from callagent.agents.flows.safety import SafetyFilters
from callagent.agents.flows.sms import SmsTemplate
from callagent.agents.flows.steps import Step
from callagent.agents.flows.topics import Topic
from callagent.agents.flows.variants import Variants
from callagent.agents.flows.voice import Greeting, VoiceSettings


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
    experimental: Experimental = field(default_factory=Experimental)
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
