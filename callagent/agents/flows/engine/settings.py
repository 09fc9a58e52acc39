"""Settings of the flow engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from callagent.agents.flows.engine.memory import MemoryStore
from callagent.agents.flows.senders import MessageRules, MessageSender, Outside
from callagent.models import Embedder


@dataclass(frozen=True, slots=True)
class FlowSettings:
    environment: str = "live"
    """`draft`, `sandbox`, `pre-release` or `live`: `conv.env`, SMS senders, real-time configuration."""
    channel: str = ""
    """`voice`, `webchat` …; empty: voice."""
    variant: str | None = None
    """None: the project's default."""
    language: str | None = None
    """None: the project's default."""
    at: datetime | None = None
    """Pins the clock of the project's functions and of relative dates; without a zone it is UTC."""
    function_timeout: float = 10.0
    """Seconds a function may run."""
    slow_function_timeout: float = 30.0
    """Seconds for a function with latency control: the caller hears something meanwhile."""
    tool_timeout: float = 30.0
    """Seconds for an app's tool that says nothing of it."""
    start_timeout: float = 10.0
    end_timeout: float = 30.0
    model_timeout: float = 30.0
    """Seconds for `prompt_llm`."""
    max_rounds: int = 10
    """Requests to the model in one turn."""
    max_function_steps: int = 20
    """Function steps in one chain."""
    max_failures: int = 3
    """Unusable return values in one turn."""
    max_filter_hits: int = 3
    """Phrase filters that act in one turn."""
    fallback_utterance: str = "Sorry, I had a problem just now. Could you say that again, please?"
    """Said when the model fails or does not come to an end."""
    max_model_failures: int = 3
    """Turns in a row in which the model failed, after which the agent gives the call up."""
    failure_utterance: str = "I am sorry, I cannot help you at the moment."
    """Said when the agent gives the call up."""
    models: Mapping[str, str] = field(default_factory=dict)
    """The platform's model names -> ours; a name that is not listed is the configured model."""
    embedder: Embedder | None = None
    """Finds topics by their meaning; None: by their words."""
    secrets_dir: str | None = None
    """Folder with a file for each secret; read by the core, closed to project code."""
    integration_attributes: Mapping[str, Any] | None = None
    """What the start function reads as `conv.integration_attributes`."""
    api_mocks: Mapping[str, Any] = field(default_factory=dict)
    """Integration -> operation -> `[{"status", "body", "headers", "repeat"}]`: answers instead of real calls."""
    outside: Outside = field(default_factory=Outside)
    """Where outside programs reach calls; a server has one for all its projects."""
    memory: MemoryStore | None = None
    """Where what a caller leaves is kept; None: nowhere."""
    senders: Mapping[str, MessageSender] = field(default_factory=dict)
    """`sms`, `whatsapp`, `email` -> who sends it; a kind that is not listed is kept in the record only."""
    message_rules: MessageRules = field(default_factory=MessageRules)
    delivery_timeout: float = 10.0
    """Seconds that the end of a call waits for messages being sent."""

    @property
    def pinned(self) -> datetime | None:
        """`at` with its zone."""
        return self.at.replace(tzinfo=UTC) if self.at is not None and self.at.tzinfo is None else self.at
