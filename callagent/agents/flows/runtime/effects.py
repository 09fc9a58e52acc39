"""What a function run wants done: effects, collected until it returns, and metrics, which the core acknowledges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from callagent.agents.flows.runtime.api_types import MetricEvent
from callagent.agents.flows.runtime.logs import ConversationLogger
from callagent.agents.kernel.runtime import project, project_or_note
from callagent.workers import AskFailed, Channel

EFFECTS_LIMIT = 1024 * 1024


@dataclass(slots=True)
class Effects:
    """The effects of one function run. The last call of a kind wins; lists keep their order."""

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
        """Return the effects as plain data. Raises `TooLarge` when project code queued more than `EFFECTS_LIMIT`."""
        shown: dict[str, Any] = project(asdict(self), EFFECTS_LIMIT)
        return shown


NAME_LIMIT = 128
VALUE_LIMIT = 8 * 1024


class Metrics:
    def __init__(self, channel: Channel, log: ConversationLogger) -> None:
        self._channel = channel
        self._log = log
        self.events: list[MetricEvent] = []
        """The metrics written in this call, including those of this run."""

    def begin(self, written: Iterable[Mapping[str, Any]]) -> None:
        self.events = [MetricEvent(str(entry.get("name")), entry.get("value")) for entry in written]

    def write(self, name: Any, value: Any, write_once: bool, effects: Effects) -> None:
        name = str(name)
        if len(name) > NAME_LIMIT:
            self._log.error(f"metric name of {len(name)} characters cut to {NAME_LIMIT}")
            name = name[:NAME_LIMIT]
        if write_once and any(event.name == name for event in self.events):
            return
        value = project_or_note(value, VALUE_LIMIT)
        message = {"type": "metric", "name": name, "value": value, "write_once": bool(write_once), "ask": True}
        try:
            self._channel.ask(message)
        except AskFailed as error:
            self._log.error(f"metric '{name}' was not written: {error}")
            return
        self.events.append(MetricEvent(name, value))
        effects.metrics.append({"name": name, "value": value})
