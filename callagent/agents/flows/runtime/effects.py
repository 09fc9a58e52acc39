"""What a function run wants done, collected until it returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from callagent.agents.kernel.runtime import project

EFFECTS_LIMIT = 1024 * 1024


@dataclass(slots=True)
class Effects:
    """The last call of a kind wins; lists keep their order."""

    say: str | None = None
    goto_flow: str | None = None
    goto_step: str | None = None
    exit_flow: bool = False
    goto_csat_flow: bool = False
    handoff: dict[str, Any] | None = None
    variant: str | None = None
    language: str | None = None
    voice: dict[str, Any] | None = None
    asr_biasing: dict[str, Any] | None = None
    background_track: dict[str, Any] | None = None
    disabled_topics: list[str] | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    sms: list[dict[str, Any]] = field(default_factory=list)
    emails: list[dict[str, Any]] = field(default_factory=list)
    discard_recording: bool = False
    shown: dict[str, Any] | None = None
    """`{"attachments", "suggestions", "call_actions"}`, when one of them changed."""

    def plain(self) -> dict[str, Any]:
        """Raises `TooLarge` when project code queued absurd amounts."""
        shown: dict[str, Any] = project(asdict(self), EFFECTS_LIMIT)
        return shown
