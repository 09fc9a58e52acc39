"""The state of one call: position, project state, entities, metrics, history. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from callagent.agents.actions import Action, MetricWritten
from callagent.agents.flows.engine.decision import Decision, Position
from callagent.agents.flows.engine.entity_values import EntityResult
from callagent.agents.flows.engine.history import History
from callagent.agents.flows.engine.references import Scope, resolve_text
from callagent.agents.flows.engine.settings import FlowSettings
from callagent.agents.flows.format import PositionSettings, Project, Step
from callagent.agents.flows.senders import MAX_PER_CALL, Outbox, plain_list, queued_email, queued_message
from callagent.agents.kernel import Vault
from callagent.agents.protocol import MetricWriter
from callagent.call_info import NO_HEADERS, CallInfo
from callagent.log import get_logger

log = get_logger(__name__)
MAX_EVENT_TEXT = 4000
"""Characters of an external event that the model is shown."""
CHANNELS = {"voice": "sip.polyai", "webchat": "webchat.polyai", "sms": "sms.polyai", "whatsapp": "whatsapp.polyai"}
TEXT_CHANNEL = "chat.polyai"


@dataclass(slots=True)
class Conversation:
    """All that changes during one call, and the project and settings that it is interpreted with."""

    info: CallInfo
    project: Project
    settings: FlowSettings
    language: str
    variant: str | None
    metric_writer: MetricWriter
    position: Position = field(default_factory=Position)
    history: History = field(default_factory=History)
    state: dict[str, Any] = field(default_factory=dict)
    """JSON projection of `conv.state`; the live objects are the worker's."""
    entities: dict[str, EntityResult] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    alternatives: tuple[str, ...] = ()
    voice: Mapping[str, Any] | None = None
    keywords: tuple[str, ...] = ()
    """Set by `conv.set_asr_biasing`."""
    disabled_topics: tuple[str, ...] = ()
    topics: list[str] = field(default_factory=list)
    """Names of retrieved topics, newest first."""
    inputs: list[str] = field(default_factory=list)
    """The caller's last words, newest last, for retrieval."""
    silences: int = 0
    interruptions: int = 0
    """Barge-ins so far."""
    functions: int = 0
    """Functions started so far."""
    calls: int = 0
    """Tool calls numbered so far."""
    turns: int = 0
    handoff: dict[str, Any] | None = None
    end_headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    """Of the peer's hang-up."""
    events: list[Action] = field(default_factory=list)
    """Actions not yet emitted; a function that outlives an interrupted turn leaves its own here."""
    outbox: Outbox = field(default_factory=Outbox)
    external_events: list[dict[str, Any]] = field(default_factory=list)
    """Events that other programs sent to this call, oldest first."""
    queued: list[Mapping[str, Any]] = field(default_factory=list)
    """Messages that functions queued in this turn, `{"kind": "text"|"template"|"content"|"email", …}`."""
    vault: Vault = field(default_factory=Vault)
    model_failures: int = 0
    """Turns in a row that ended because the model failed."""
    unfinished: Decision | None = None
    """A handoff or hang-up that a function decided in a turn that was interrupted; the next turn carries it out."""

    @classmethod
    def begin(
        cls, info: CallInfo, project: Project, settings: FlowSettings, metric_writer: MetricWriter
    ) -> Conversation:
        variants = project.variants
        variant = settings.variant if settings.variant in variants.attributes else variants.default
        language = settings.language or project.languages.default
        return cls(
            info,
            project,
            settings,
            language,
            variant,
            metric_writer,
            outbox=Outbox(
                settings.senders,
                settings.outside.opt_outs,
                settings.message_rules,
                info.callee if info.direction == "outbound" else info.caller,
            ),
        )

    @property
    def channel(self) -> str:
        return self.settings.channel or "voice"

    @property
    def channel_type(self) -> str:
        if self.info.wire == "text" and self.channel == "voice":
            return TEXT_CHANNEL
        return CHANNELS.get(self.channel, f"{self.channel}.polyai")

    @property
    def step(self) -> Step | None:
        """The step that asks the model; None outside flows and on a function step."""
        return self.project.step(self.position.flow, self.position.step)

    @property
    def position_settings(self) -> PositionSettings:
        """The experimental settings that hold at the present position and in the present language."""
        return self.project.experimental.at(self.position.flow, self.position.step, self.language)

    def now(self) -> datetime:
        """Return the time as the project sees it: pinned, or the clock's."""
        return self.settings.pinned or datetime.now(UTC).astimezone()

    async def write_metric(self, name: str, value: Any, *, write_once: bool = False) -> bool:
        """Keep a metric and make it durable. Return False for a `write_once` metric that was written before."""
        if write_once and any(metric["name"] == name for metric in self.metrics):
            return False
        self.metrics.append({"name": name, "value": value})
        self.events.append(MetricWritten(name, value))
        await self.metric_writer(name, value)
        return True

    def expect_event(self, *, send_to_llm: bool) -> str:
        """Return an identifier with which another program can send an event to this call. Raises `TooManyEvents`."""
        return self.settings.outside.expect(self.info.call_id, self._take_event, send_to_llm=send_to_llm)

    def _take_event(self, event: Mapping[str, Any]) -> None:
        if len(self.external_events) >= MAX_PER_CALL:
            log.warning("external_event_dropped", reason=f"more than {MAX_PER_CALL} in one call")
            return
        self.external_events.append(dict(event))
        if event["send_to_llm"]:
            text = json.dumps(event["data"], ensure_ascii=False, default=str)
            self.history.note(f"An event from outside arrived: {text[:MAX_EVENT_TEXT]}")

    def queue_messages(self, effects: Mapping[str, Any]) -> list[str]:
        """Queue a function's messages until the turn is over; return the refusals that the model is told."""
        entries = [*plain_list(effects.get("sms"))]
        entries += [{**entry, "kind": "email"} for entry in plain_list(effects.get("emails"))]
        refused = [error for entry in entries if (error := self.queue_message(entry))]
        return list(dict.fromkeys(refused))

    def queue_message(self, entry: Mapping[str, Any]) -> str:
        """Queue a message until the turn is over; return why it is refused, or an empty text."""
        kind = "email" if entry.get("kind") == "email" else "whatsapp" if entry.get("whatsapp") else "sms"
        refused = self.outbox.admit(kind, str(entry.get("to" if kind == "email" else "to_number") or ""))
        if refused is None:
            self.queued.append(entry)
            return ""
        if refused not in self.events:
            self.events.append(refused)
        return f"Error: {refused.detail}."

    def send_messages(self) -> None:
        """Send the queued messages; templates are rendered with the present state."""
        scope = self.scope()
        for entry in self.queued:
            template = str(entry.get("template") or "")
            if entry.get("kind") == "email":
                message = queued_email(entry)
            elif template in self.project.sms_templates:
                message = queued_message(entry, resolve_text(self.project.sms_templates[template].text, scope))
            else:
                message = queued_message(entry, str(entry.get("content") or ""))
            retries = entry.get("retry_count")
            self.outbox.post(message, template=template, retries=retries if isinstance(retries, int) else None)
        self.queued = []

    def scope(self) -> Scope:
        """Return the values that references resolve to now."""
        return Scope(
            state=self.state,
            variants=self.project.variants,
            variant=self.variant,
            entities=self.project.entities,
            collected={name: result.value for name, result in self.entities.items()},
            translations=self.project.translations,
            language=self.language,
            channel=self.channel,
        )

    def next_event(self) -> Action | None:
        """Take the oldest action that has not been emitted; None: there is none."""
        return self.events.pop(0) if self.events else None
