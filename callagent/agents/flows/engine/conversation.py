"""The state of one call (position, project state, entities, history) and the settings that it runs with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from callagent.agents.actions import Action, MetricWritten
from callagent.agents.flows import format
from callagent.agents.flows.engine.decision import Decision, Position
from callagent.agents.flows.engine.entity_values import EntityResult
from callagent.agents.flows.engine.memory import MemoryStore
from callagent.agents.flows.external_events import MAX_PER_CALL, ExternalExchange
from callagent.agents.flows.messages import MessageRules, MessageSender, Outbox
from callagent.agents.kernel import Vault
from callagent.agents.protocol import Emit, MetricWriter
from callagent.call_info import NO_HEADERS, CallInfo
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, objects_at
from callagent.log import get_logger
from callagent.models import Embedder, Message, MessageCall, ToolCall

log = get_logger(__name__)
NOT_EXECUTED = "Not executed."
"""Answer that the model is shown for a tool call that was not executed."""
CUT_MARK = "…"
"""End of an utterance that the caller heard in part."""


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Settings of the flow engine, the same for all calls of a project."""

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
    """Seconds for a tool of a CX app that declares no timeout."""
    start_timeout: float = 10.0
    """Seconds for the start function."""
    end_timeout: float = 30.0
    """Seconds for the end function."""
    model_timeout: float = 30.0
    """Seconds for `prompt_llm`."""
    max_rounds: int = 10
    """Requests to the model in one turn."""
    max_function_steps: int = 20
    """Function steps in one chain."""
    max_failures: int = 3
    """Unusable return values in one turn."""
    max_filter_hits: int = 3
    """Times that phrase filters may act in one turn."""
    fallback_utterance: str = "Sorry, I had a problem just now. Could you say that again, please?"
    """Said when the model fails, or needs more than `max_rounds` requests."""
    max_model_failures: int = 3
    """Turns in a row in which the model may fail; after the last of them the agent gives the call up."""
    failure_utterance: str = "I am sorry, I cannot help you at the moment."
    """Said when the agent gives the call up."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Maps the project's model names to configured ones; an unlisted name means the configured model."""
    embedder: Embedder | None = None
    """Model that finds topics by their meaning; None: they are found by their words."""
    secrets_dir: str | None = None
    """Folder with a file for each secret; the core reads it, project code cannot."""
    integration_attributes: Mapping[str, object] | None = None
    """What the start function reads as `conv.integration_attributes`."""
    api_mocks: Mapping[str, object] = field(default_factory=dict)
    """Integration -> operation -> `[{"status", "body", "headers", "repeat"}]`: answers instead of real calls."""
    external: ExternalExchange = field(default_factory=ExternalExchange)
    """The exchange of events and handoff data with other programs; a server has one for all its projects."""
    memory: MemoryStore | None = None
    """Store of what the project remembers of a caller for later calls; None: it remembers nothing."""
    senders: Mapping[str, MessageSender] = field(default_factory=dict)
    """Senders of messages by kind (`sms`, `whatsapp`, `email`); other kinds are kept in the record only."""
    message_rules: MessageRules = field(default_factory=MessageRules)
    delivery_timeout: float = 10.0
    """Seconds that the end of a call waits for messages being sent."""

    @property
    def pinned(self) -> datetime | None:
        """`at` with its time zone."""
        return self.at.replace(tzinfo=UTC) if self.at is not None and self.at.tzinfo is None else self.at


@dataclass(frozen=True, slots=True)
class UserSaid:
    text: str
    """Empty: a silent turn."""


@dataclass(frozen=True, slots=True)
class AgentSaid:
    text: str
    utterance: int
    """Number of the utterance, which the sentences of one streamed answer share."""


@dataclass(frozen=True, slots=True)
class ToolsCalled:
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    call_id: str
    content: str
    """The function's result, unresolved: references in it are resolved with each request."""


@dataclass(frozen=True, slots=True)
class Note:
    """A system message at its place in the conversation."""

    text: str


Entry = UserSaid | AgentSaid | ToolsCalled | ToolAnswered | Note


@dataclass(slots=True)
class History:
    """The entries of one call in order. Words that the caller did not hear after an interruption are removed."""

    entries: list[Entry] = field(default_factory=list)
    _utterances: int = 0

    def add_user(self, text: str) -> None:
        self.entries.append(UserSaid(text))

    def new_utterance(self) -> int:
        """Return the number that the sentences of one utterance share."""
        self._utterances += 1
        return self._utterances

    def add_agent(self, text: str, utterance: int | None = None) -> None:
        self.entries.append(AgentSaid(text, self.new_utterance() if utterance is None else utterance))

    def add_calls(self, calls: tuple[ToolCall, ...]) -> None:
        self.entries.append(ToolsCalled(calls))

    def add_answer(self, call_id: str, content: str) -> None:
        """Add the answer to a tool call, unless `reopen()` has removed that call meanwhile."""
        if any(call.id == call_id for each in self.entries if isinstance(each, ToolsCalled) for call in each.calls):
            self.entries.append(ToolAnswered(call_id, content))

    def add_note(self, text: str) -> None:
        self.entries.append(Note(text))

    def cut_to_heard(self, heard_text: str) -> None:
        """Shorten the agent's last words to the heard text, after an interruption."""
        # `heard_text` covers the last turn only; earlier turns were cut in their time. Words are counted and not
        # compared as text, because the heard text may have other spaces.
        start = self._last_turn_start()
        left = len(heard_text.split())
        shortened: list[Entry] = []
        for entry in self.entries[start:]:
            if not isinstance(entry, AgentSaid):
                shortened.append(entry)
                continue
            words = entry.text.split()
            if left >= len(words):
                shortened.append(entry)
            # The mark tells the model that the caller did not hear the rest, so that the model may say it again.
            elif left > 0:
                shortened.append(AgentSaid(" ".join(words[:left]) + CUT_MARK, entry.utterance))
            left -= min(left, len(words))
        self.entries[start:] = shortened

    def reopen(self, is_hidden: Callable[[str], bool] = lambda function: False) -> None:
        """Remove the last turn, because the caller goes on speaking: a new turn will contain all of its words.

        A turn that called functions stays, unless `is_hidden` returns True for all of their names: the model must not
        see those calls.
        """
        start = max((at for at, entry in enumerate(self.entries) if isinstance(entry, UserSaid)), default=None)
        if start is None:
            return
        called = [call.name for each in self.entries[start:] if isinstance(each, ToolsCalled) for call in each.calls]
        if all(is_hidden(name) for name in called):
            # A tool call is removed with its answer: providers refuse one without the other.
            del self.entries[start:]

    def plain(self) -> list[dict[str, str]]:
        """Return `[{"role": "user"|"agent", "text"}]`, one agent entry for each utterance."""
        found: list[dict[str, str]] = []
        utterance: int | None = None
        for entry in self.entries:
            if isinstance(entry, UserSaid):
                found.append({"role": "user", "text": entry.text})
                utterance = None
            # Sentences of one streamed answer are one entry: project code reads whole answers.
            elif isinstance(entry, AgentSaid) and entry.utterance == utterance:
                found[-1]["text"] += f" {entry.text}"
            elif isinstance(entry, AgentSaid):
                found.append({"role": "agent", "text": entry.text})
                utterance = entry.utterance
        return found

    def recent_contents(self, turns: int) -> Iterator[str]:
        """Yield the function results and notes of the last turns, newest first; the present turn counts as one."""
        seen = 0
        for entry in reversed(self.entries):
            seen += isinstance(entry, UserSaid)
            if seen >= turns:
                return
            if isinstance(entry, ToolAnswered | Note):
                yield entry.content if isinstance(entry, ToolAnswered) else entry.text

    def messages(self, resolve: Callable[[str], str], silence: str) -> list[Message]:
        """Return the conversation as a model reads it: every tool call is followed by exactly one answer."""
        # Providers refuse a request with an unanswered tool call: one that was not executed gets `NOT_EXECUTED`.
        answers = {e.call_id: e.content for e in self.entries if isinstance(e, ToolAnswered)}
        messages: list[Message] = []
        for entry in self.entries:
            match entry:
                case UserSaid(text):
                    messages.append({"role": "user", "content": text or silence})
                case AgentSaid(text):
                    _add_words(messages, text)
                case Note(text):
                    messages.append({"role": "system", "content": resolve(text)})
                case ToolsCalled(calls):
                    _add_calls(messages, calls)
                    for call in calls:
                        content = resolve(answers.get(call.id, NOT_EXECUTED))
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
                # The answer has been added above, right after its call.
                case ToolAnswered():
                    pass
        return messages

    def _last_turn_start(self) -> int:
        """Return the index of the first entry after the caller's last words."""
        for index in range(len(self.entries) - 1, -1, -1):
            if isinstance(self.entries[index], UserSaid):
                return index + 1
        return 0


def _add_words(messages: list[Message], text: str) -> None:
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and "tool_calls" not in last:
        last["content"] = f"{last['content']} {text}"
    else:
        messages.append({"role": "assistant", "content": text})


def _add_calls(messages: list[Message], calls: tuple[ToolCall, ...]) -> None:
    tool_calls: list[MessageCall] = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
    ]
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and "tool_calls" not in last:
        last["tool_calls"] = tool_calls
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": tool_calls})


MAX_EVENT_TEXT = 4000
"""Characters of an external event that the model is shown."""
CHANNELS = {"voice": "sip.polyai", "webchat": "webchat.polyai", "sms": "sms.polyai", "whatsapp": "whatsapp.polyai"}
"""Channel -> its type as `conv.channel_type` has it."""
TEXT_CHANNEL = "chat.polyai"
"""Type of the channel `voice` in a conversation by text."""
DEFAULT_CHANNEL = "voice"


@dataclass(frozen=True, slots=True)
class _PositionData:
    """The step and the settings for one position and language."""

    position: Position
    language: str
    step: format.Step | None
    function_step: format.ProjectFunction | None
    settings: format.PositionSettings
    fillers: format.FillerPhrases


@dataclass(slots=True)
class Conversation:
    """The state of one call, with its project and settings."""

    info: CallInfo
    project: format.Project
    settings: FlowSettings
    language: str
    variant: str | None
    metric_writer: MetricWriter
    position: Position = field(default_factory=Position)
    history: History = field(default_factory=History)
    state: MutableJsonObject = field(default_factory=dict)
    """`conv.state` as JSON; the worker has the Python objects."""
    entities: dict[str, EntityResult] = field(default_factory=dict)
    metrics: list[MutableJsonObject] = field(default_factory=list)
    """`{"name", "value"}` in the order written."""
    alternatives: tuple[str, ...] = ()
    """Other transcripts of the caller's last words, as `conv.transcript_alternatives` has them."""
    voice: JsonObject | None = None
    """`{"provider", "provider_voice_id", "config"}`, set by `conv.set_voice`."""
    keywords: tuple[str, ...] = ()
    """Set by `conv.set_asr_biasing`."""
    disabled_topics: tuple[str, ...] = ()
    topics: list[str] = field(default_factory=list)
    """Names of retrieved topics, newest first."""
    inputs: list[str] = field(default_factory=list)
    """The caller's last utterances, newest last: those that are searched together with the next one."""
    silences: int = 0
    """Silent turns in a row."""
    interruptions: int = 0
    """Barge-ins so far."""
    functions: int = 0
    """Functions started so far."""
    waits: int = 0
    """Waits for the model so far that fillers were to cover."""
    calls: int = 0
    """Tool calls so far; each call's identifier contains its number."""
    turns: int = 0
    """The caller's turns so far."""
    handoff: MutableJsonObject | None = None
    """`{"destination", "reason"}` of the handoff that is being carried out; None again once it has failed."""
    end_headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    """SIP headers of the peer's hang-up, as `conv` has them for the end function."""
    events: list[Action] = field(default_factory=list)
    """Actions not yet emitted. A function that goes on after its turn was interrupted leaves them to the next turn."""
    outbox: Outbox = field(default_factory=Outbox)
    external_events: list[JsonObject] = field(default_factory=list)
    """Events that other programs sent to this call, oldest first."""
    unsent_messages: list[JsonObject] = field(default_factory=list)
    """Messages that functions queued in this turn, `{"kind": "text"|"template"|"content"|"email", …}`."""
    vault: Vault = field(default_factory=Vault)
    model_failures: int = 0
    """Turns in a row that ended because the model failed."""
    unfinished: Decision | None = None
    """A handoff or hang-up that a function decided in a turn that was interrupted; the next turn carries it out."""
    emitted_ending: Decision | None = None
    """The handoff or hang-up that was emitted last. If the caller has another turn, the call has dropped it."""
    safety: format.SafetyFilters | None = None
    """The safety filters of the call's channel; None: it has none."""
    _position_data: _PositionData | None = None

    @classmethod
    def begin(
        cls, info: CallInfo, project: format.Project, settings: FlowSettings, metric_writer: MetricWriter
    ) -> Conversation:
        variants = project.variants
        # Loading the project refuses an unknown variant, so the default in its place is a safeguard only.
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
                settings.external.opt_outs,
                settings.message_rules,
                info.callee if info.direction == "outbound" else info.caller,
            ),
            safety=project.safety_of(settings.channel or DEFAULT_CHANNEL),
        )

    @property
    def channel(self) -> str:
        return self.settings.channel or DEFAULT_CHANNEL

    @property
    def channel_type(self) -> str:
        if self.info.wire == "text" and self.channel == "voice":
            return TEXT_CHANNEL
        # Other channels get a type of the same form, so that projects can have settings for it.
        return CHANNELS.get(self.channel, f"{self.channel}.polyai")

    @property
    def step(self) -> format.Step | None:
        """The step that asks the model; None outside flows and on a function step."""
        return self._position_values().step

    @property
    def function_step(self) -> format.ProjectFunction | None:
        """The function step at the present position; None outside flows and on a step that asks the model."""
        return self._position_values().function_step

    @property
    def position_settings(self) -> format.PositionSettings:
        """The experimental settings for the present position and language."""
        return self._position_values().settings

    @property
    def fillers(self) -> format.FillerPhrases:
        """The fillers, in the present language, that cover a wait for the model."""
        return self._position_values().fillers

    def _position_values(self) -> _PositionData:
        # Cached until the position or language changes, because these are read dozens of times in a turn.
        data = self._position_data
        if data is None or data.position != self.position or data.language != self.language:
            data = self._position_data = self._read_position()
        return data

    def _read_position(self) -> _PositionData:
        project, flow, step = self.project, self.position.flow, self.position.step
        return _PositionData(
            self.position,
            self.language,
            project.step(flow, step),
            project.function_step(flow, step),
            project.experimental.at(flow, step, self.language),
            format.filler_phrases(project.voice.fillers, project.experimental, self.language),
        )

    def now(self) -> datetime:
        """Return the time as the project sees it: pinned, or the clock's."""
        return self.settings.pinned or datetime.now(UTC).astimezone()

    async def write_metric(self, name: str, value: JsonValue, *, write_once: bool = False) -> bool:
        """Add a metric and make it durable. Return False for a `write_once` metric that was written before."""
        # Checked here and not in the worker, which may have been replaced since the metric was written.
        if write_once and any(metric["name"] == name for metric in self.metrics):
            return False
        self.metrics.append({"name": name, "value": value})
        # `conv.write_metric` promises that the metric is durable when it returns, so the function waits for the writer.
        self.events.append(MetricWritten(name, value))
        await self.metric_writer(name, value)
        return True

    def expect_event(self, *, send_to_llm: bool) -> str:
        """Return an identifier with which another program can send an event to this call. Raises `TooManyEvents`."""
        return self.settings.external.expect(self.info.call_id, self._add_event, send_to_llm=send_to_llm)

    def _add_event(self, event: JsonObject) -> None:
        # Each function call sends the events to the worker, so their number is limited.
        if len(self.external_events) >= MAX_PER_CALL:
            log.warning("external_event_dropped", reason=f"more than {MAX_PER_CALL} in one call")
            return
        self.external_events.append(dict(event))
        if event["send_to_llm"]:
            # The model sees the event as a note, cut to a limit, because another program decides how long it is.
            text = json.dumps(event["data"], ensure_ascii=False, default=str)
            self.history.add_note(f"An event from outside arrived: {text[:MAX_EVENT_TEXT]}")

    def queue_messages(self, effects: JsonObject) -> list[str]:
        """Queue a function's messages until the turn is over; return reasons of refusals as texts for the model."""
        entries = objects_at(effects, "sms")
        entries += [{**entry, "kind": "email"} for entry in objects_at(effects, "emails")]
        refused = [error for entry in entries if (error := self.queue_message(entry))]
        return list(dict.fromkeys(refused))

    def queue_message(self, entry: JsonObject) -> str:
        """Queue a message until the turn is over; return the reason if it is refused, else an empty text."""
        # WhatsApp messages are queued as text messages with a flag.
        kind = "email" if entry.get("kind") == "email" else "whatsapp" if entry.get("whatsapp") else "sms"
        refused = self.outbox.admit(kind, str(entry.get("to" if kind == "email" else "to_number") or ""))
        if refused is None:
            self.unsent_messages.append(entry)
            return ""
        # One action for each reason: a function in a loop must not flood the record.
        if refused not in self.events:
            self.events.append(refused)
        return f"Error: {refused.detail}."

    def emit_events(self, emit: Emit) -> None:
        """Emit the actions that have not been emitted, oldest first."""
        while self.events:
            emit(self.events.pop(0))
