"""Settings of the tree engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TreeSettings:
    greeting: str = ""
    """Spoken when the call is answered; empty: the caller speaks first."""
    function_timeout: float = 10.0
    """Seconds for one request to project code: the callbacks of a point, or the tools of one model answer."""
    tool_timeout: float | None = None
    """Seconds for a tool that declares no timeout; None: `function_timeout`."""
    agent_timeout: float = 60.0
    """Seconds for a run of an agent that is project code, including the agents that it runs."""
    max_model_calls: int = 500
    """Requests to the model in one turn, including those of agents that run as tools."""
    max_iterations: int = 500
    """Rounds of a loop that declares no limit; reaching it fails the turn."""
    parallel_tools: bool = True
    """Tools of one model answer run at the same time; False: one after the other."""
    no_input_text: str = "(The caller said nothing.)"
    """What the model is sent in place of a silent turn."""
    max_silences: int = 3
    """Silent turns in a row; one more ends the call."""
    hangup_utterance: str = "Thank you for calling. Goodbye."
    """Spoken before hanging up on a caller who stays silent."""
    fallback_utterance: str = "Sorry, I had a problem just now. Could you say that again, please?"
    """Spoken when a turn fails."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Maps the project's model names to configured ones; an unlisted name means the configured model."""
    model_name: str = "the configured model"
    """The model's name in error messages."""
