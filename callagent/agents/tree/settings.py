"""Settings of the tree engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TreeSettings:
    greeting: str = ""
    """Said when the call is answered; empty: the caller speaks first."""
    function_timeout: float = 10.0
    """Seconds for one request to project code: the callbacks of a point, or the tools of one model answer."""
    tool_timeout: float | None = None
    """Seconds for a tool that says nothing of it; None: as for any request."""
    agent_timeout: float = 60.0
    """Seconds for a run of an agent that is project code, with the agents that it runs."""
    max_model_calls: int = 500
    """Requests to the model in one turn, those of agents that are tools included."""
    max_iterations: int = 500
    """Rounds of a loop that nobody ends."""
    parallel_tools: bool = True
    """Tools of one model answer run at the same time; False: one after the other."""
    no_input_text: str = "(The caller said nothing.)"
    """What the model is told of a silent turn."""
    max_silences: int = 3
    """Silent turns in a row; one more ends the call."""
    hangup_utterance: str = "Thank you for calling. Goodbye."
    """Said when the caller stays silent."""
    fallback_utterance: str = "Sorry, I had a problem just now. Could you say that again, please?"
    """Said when a turn fails."""
    models: Mapping[str, str] = field(default_factory=dict)
    """The project's model names -> ours; a name that is not listed is the configured model."""
    model_name: str = "the configured model"
    """How messages call the model."""
