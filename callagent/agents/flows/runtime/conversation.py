"""The arguments `conv` and `flow`: what project code reads of a call and how it acts on it.

Reads come from the snapshot of the run. Actions are collected as `Effects` and take place after the function returned;
only metrics are sent while it runs, because they must be durable when `write_metric` returns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from callagent.agents.flows.runtime import api_types
from callagent.agents.flows.runtime import state as call_state
from callagent.agents.flows.runtime.clock import Clock
from callagent.agents.flows.runtime.function_calls import FindFunction, FunctionExecutor
from callagent.agents.flows.runtime.integrations import ApiIntegrations
from callagent.agents.flows.runtime.plog import ConversationLogger
from callagent.agents.flows.runtime.utils import EntityValidationResult, Utils
from callagent.agents.kernel import to_json, to_json_or_note
from callagent.json_values import JsonValue, MutableJsonObject
from callagent.workers import AskFailed, Channel, Plain

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects of one call that live as long as the call's worker."""

    state: call_state.State
    log: ConversationLogger
    metrics: Metrics
    utils: Utils
    clock: Clock
    memory: call_state.Memory
    verified_context: call_state.VerifiedContext
    api: Callable[[Callable[..., None]], ApiIntegrations]
    """Makes `conv.api`, given the function that logs a response."""
    expect_event: Callable[[bool], str]
    """Asks the core for the identifier of an external event; True: the model is shown the event."""
    account_id: str
    project_id: str


class Translations:
    """`conv.translations.key`: the text in the conversation's language, or in another one where it is missing."""

    def __init__(self, texts: Mapping[str, Mapping[str, str]], language: Callable[[], str | None]) -> None:
        self._texts = texts
        self._language = language

    def __getattr__(self, key: str) -> str:
        # Pickle and copy look for dunder attributes, which must not be taken for keys.
        if key.startswith("__") or key not in self._texts:
            raise AttributeError(f"the project has no translation '{key}'")
        language = self._language() or ""
        texts = self._texts[key]
        # The language, the language without its region, else any text: a wrong language is better than silence.
        for code in (language, language.partition("-")[0], *texts):
            if code in texts:
                return texts[code]
        return ""

    def __getitem__(self, key: str) -> str:
        try:
            return self.__getattr__(key)
        except AttributeError:
            raise KeyError(key) from None


def build_named(kind: Callable[..., Item], entries: Mapping[str, Plain] | None) -> dict[str, Item]:
    """Build dataclasses by name; keys that the class does not have are left out."""
    known = {item.name for item in fields(kind)} - {"name"}  # type: ignore[arg-type]
    return {
        name: kind(
            name=name, **{key: value for key, value in (entry or {}).items() if key in known and value is not None}
        )
        for name, entry in (entries or {}).items()
    }


def entities_of(entries: Plain) -> call_state.Entities:
    known = {item.name for item in fields(EntityValidationResult)} - {"name"}
    entities = call_state.Entities()
    for name, entry in entries.items():
        # `{"name": "Ada"}` is short for `{"name": {"value": "Ada"}}`, which tests and tools write.
        given = entry if isinstance(entry, Mapping) else {"value": entry}
        values = {key: value for key, value in given.items() if key in known}
        entities[name] = EntityValidationResult(name=name, **values)
    return entities


def find_handoff(handoffs: Mapping[str, api_types.HandoffConfig], destination: str) -> str:
    """Return a handoff's name: exact, else ignoring case; `default` is the default handoff. Raises `MissingHandoff`."""
    if destination in handoffs:
        return destination
    for name in handoffs:
        if name.casefold() == destination.casefold():
            return name
    for name, handoff in handoffs.items():
        # Checked last, because a handoff that is called "default" need not be the default.
        if destination.casefold() == "default" and handoff.is_default:
            return name
    raise api_types.MissingHandoff(
        f"the project has no handoff '{destination}'; it has: {', '.join(handoffs) or 'none'}"
    )


class Messaging:
    """The methods of `conv` that send messages, and those that show something in a webchat."""

    sms_templates: dict[str, api_types.SMSTemplate]
    webchat: api_types.WebchatInterface
    attachments: list[object]
    response_suggestions: list[object]
    _effects: Effects

    def send_sms(self, to_number: str, from_number: str, content: str, retry_count: int | None = None) -> None:
        self._queue_sms("text", to_number, retry_count, from_number=from_number, content=content)

    def send_sms_template(self, to_number: str, template: str, retry_count: int | None = None) -> None:
        """Queue a text message from a template. Raises `MissingTemplate`."""
        if template not in self.sms_templates:
            raise api_types.MissingTemplate(f"the project has no SMS template '{template}'")
        sender = self.sms_templates[template].phone_number
        self._queue_sms("template", to_number, retry_count, from_number=sender, template=template)

    def send_whatsapp(
        self, to_number: str, from_number: str, content_id: str, content: str = "", retry_count: int | None = None
    ) -> None:
        self._queue_sms("content", to_number, retry_count, from_number=from_number, content_id=content_id,
                        content=content, whatsapp=True)  # fmt: skip

    def send_content_template(self, messaging_service_id: str, to_number: str, content_id: str, **more: object) -> None:
        retry_count = more.pop("retry_count", None)
        retry_count = retry_count if isinstance(retry_count, int) else None
        self._queue_sms("content", to_number, retry_count, messaging_service_id=messaging_service_id,
                        content_id=content_id, **more)  # fmt: skip

    def _queue_sms(self, kind: str, to_number: str, retry_count: int | None, **more: object) -> None:
        self._effects.sms.append({"kind": kind, "to_number": to_number, "retry_count": retry_count, **more})

    def send_email(self, to: str, body: str, subject: str = "") -> None:
        self._effects.emails.append({"to": to, "subject": subject, "body": body})

    def add_attachments(self, attachments: Sequence[object]) -> None:
        self.attachments.extend(attachments)

    def set_response_suggestions(self, suggestions: Sequence[object]) -> None:
        self.response_suggestions = list(suggestions)

    def _take_shown(self) -> dict[str, object] | None:
        """Return and clear what this run has queued to be shown; None: nothing."""
        shown = {
            "attachments": self.attachments,
            "suggestions": self.response_suggestions,
            "call_actions": self.webchat.chat_call_actions,
        }
        self.attachments, self.response_suggestions = [], []
        self.webchat.chat_call_actions = []
        return shown if any(shown.values()) else None


class Conversation(Messaging):
    """The argument `conv`: one object for all function runs of a call."""

    def __init__(self, parts: Parts, find: FindFunction) -> None:
        self.state: call_state.State = parts.state
        self.log = parts.log
        self.utils = parts.utils
        self.clock = parts.clock
        self.memory = parts.memory
        self.verified_context = parts.verified_context
        self.account_id = parts.account_id
        self.project_id = parts.project_id
        self.functions = FunctionExecutor(find, self, None)
        self.knowledge_base = call_state.KnowledgeBase()
        self.webchat = api_types.WebchatInterface()
        self.api = parts.api(self.log_api_response)
        # On the platform this is a proxy to the same services; here both call them directly.
        self.connectors = self.api
        self.integrations = api_types.Unavailable("conv.integrations")
        self.agentic_dial = api_types.Unavailable("conv.agentic_dial")
        self.cxone = api_types.Unavailable("conv.cxone")
        self.attachments = []
        self.response_suggestions = []
        self.generic_external_events: list[dict[str, Any]] = []
        self.integration_attributes: dict[str, Any] | None = None
        self.outbound_campaign: dict[str, Any] | None = None
        self._analytics_events: list[object] = []
        self._metrics: Metrics = parts.metrics
        self._expect_event = parts.expect_event
        self._variant_values: dict[str, call_state.Variant] = {}
        self.end_attempt = 1
        self._snapshot: Plain = {}
        self._begin({}, Effects())

    def _begin(self, snapshot: Plain, effects: Effects) -> None:
        """Start a run with its snapshot; a key that is absent keeps its value of the run before."""
        self._snapshot = {**self._snapshot, **snapshot}
        self._effects = effects
        self.voice_change: api_types.TTSVoice | None = None
        get = self._snapshot.get
        self.id: str = get("id") or ""
        self.env: str = get("env") or "sandbox"
        self.channel_type: str = get("channel_type") or "chat.polyai"
        self.caller_number: str | None = get("caller_number")
        self.callee_number: str | None = get("callee_number")
        self.current_flow: str | None = get("current_flow")
        self.current_step: str | None = get("current_step")
        self.language: str | None = get("language")
        self.integration_attributes = get("integration_attributes")
        self.end_attempt = get("attempt") or 1
        self.provider_voice_id: str = (get("voice") or {}).get("provider_voice_id") or ""
        self._begin_collections()

    def _begin_collections(self) -> None:
        get = self._snapshot.get
        self.sip_headers: dict[str, str] = dict(get("sip_headers") or {})
        self.end_headers: dict[str, str] = dict(get("end_headers") or {})
        self.entities: call_state.Entities = entities_of(get("entities") or {})
        self.transcript_alternatives: list[str] = list(get("transcript_alternatives") or ())
        self.generic_external_events = [dict(event) for event in get("generic_external_events") or ()]
        self.real_time_config = call_state.ReadOnlyDict(get("real_time_config") or {})
        self.history: list[api_types.UserInput | api_types.AgentResponse] = api_types.history_of(get("history") or ())
        self.handoffs: dict[str, api_types.HandoffConfig] = build_named(api_types.HandoffConfig, get("handoffs"))
        self.sms_templates: dict[str, api_types.SMSTemplate] = build_named(api_types.SMSTemplate, get("sms_templates"))
        self.translations = Translations(get("translations") or {}, lambda: self.language)
        # A variant that is there is not replaced by the snapshot's, because projects assign to its attributes.
        for name, values in (get("variants") or {}).items():
            self._variant_values.setdefault(name, call_state.Variant(values or {}))
        self.variant_name: str | None = get("variant_name")
        self._metrics.begin(get("metric_events") or ())

    # Reading ------------------------------------------------------------------------------------------------------

    @property
    def variants(self) -> dict[str, call_state.Variant]:
        return self._variant_values

    @property
    def variant(self) -> call_state.Variant:
        """The active variant; empty and falsy when the project has no variants."""
        return self._variant_values.get(self.variant_name or "", call_state.Variant())

    @property
    def metric_events(self) -> list[api_types.MetricEvent]:
        return self._metrics.events

    @property
    def metrics_queue(self) -> list[api_types.MetricEvent]:
        return [api_types.MetricEvent(str(entry["name"]), entry["value"]) for entry in self._effects.metrics]

    @property
    def sms_queue(self) -> list[dict[str, Any]]:
        return self._effects.sms

    # Speaking and moving ------------------------------------------------------------------------------------------

    def say(self, utterance: str) -> None:
        self._effects.say = str(utterance)

    def goto_flow(self, flow_name: str) -> None:
        self._effects.goto_flow = str(flow_name)

    def exit_flow(self) -> None:
        # A warning and not an exception, because functions outside of flows may share code with those inside.
        if self.current_flow is None:
            self.log.warning("exit_flow outside of a flow does nothing")
            return
        self._effects.exit_flow = True

    def goto_csat_flow(self) -> None:
        self._effects.goto_csat_flow = True

    def call_handoff(
        self,
        destination: str,
        reason: str | None = None,
        utterance: str | None = None,
        sip_headers: dict[str, str] | None = None,
        route: str | None = None,
    ) -> None:
        """Queue a handoff; raises `MissingHandoff`."""
        # Checked here, so that the exception is raised in the function that wrote the name.
        name = find_handoff(self.handoffs, str(destination))
        headers = {**self.handoffs[name].sip_headers, **(sip_headers or {})}
        self._effects.handoff = {
            "destination": name,
            "reason": reason or destination,
            "utterance": utterance,
            "sip_headers": {str(header): str(value) for header, value in headers.items()},
            "route": route,
        }

    # Voice, language, variant -------------------------------------------------------------------------------------

    def set_variant(self, variant: str) -> None:
        # Logged and ignored, because a wrong name must not fail the function.
        if variant not in self._variant_values:
            self.log.error(f"the project has no variant '{variant}'")
            return
        self.variant_name = self._effects.variant = variant

    def set_language(self, code: str) -> None:
        self.language = self._effects.language = str(code)

    def set_voice(self, voice: api_types.TTSVoice) -> None:
        self.voice_change = voice
        self.provider_voice_id = voice.provider_voice_id
        self._effects.voice = to_json_or_note(voice.to_dict(), 4096)

    def randomize_voice(self, voices: list[api_types.VoiceWeighting]) -> None:
        """Choose a voice at random by weight. Raises ValueError unless the weights sum to 1."""
        self.set_voice(random.choices([choice.voice for choice in voices], api_types.voice_probabilities(voices))[0])

    def set_asr_biasing(self, keywords: list[str] | None = None, custom_biases: dict[str, float] | None = None) -> None:
        """Bias speech recognition. Raises ValueError unless the arguments are a list and a dict."""
        if not isinstance(keywords or [], list) or not isinstance(custom_biases or {}, dict):
            raise ValueError("keywords must be a list and custom_biases a dict")
        self._effects.asr_biasing = {"keywords": list(keywords or ()), "custom_biases": dict(custom_biases or {})}

    def clear_asr_biasing(self) -> None:
        self._effects.asr_biasing = {"keywords": [], "custom_biases": {}}

    def set_background_track(self, name: str, loudness: float = -40) -> None:
        self._effects.background_track = {"name": str(name), "loudness": loudness}

    # Knowledge ----------------------------------------------------------------------------------------------------

    def disable_kb_topics(self, topics: list[str]) -> None:
        self.knowledge_base.enable_all_topics()
        self.knowledge_base.disable_topics(topics)

    def clear_disabled_kb_topics(self) -> None:
        self.knowledge_base.enable_all_topics()

    # Metrics and records ------------------------------------------------------------------------------------------

    def write_metric(self, name: str, value: object = None, *, write_once: bool = False) -> None:
        """Write a metric; it is durable when this returns."""
        self._metrics.write(name, value, write_once, self._effects)

    def log_api_response(self, response: object, override_url: str | None = None) -> None:
        """Log address, status and duration of a `requests.Response`, and the text of a failure."""
        request = getattr(response, "request", None)
        status = getattr(response, "status_code", None)
        # By getattr: a project may pass the response of another library than `requests`.
        elapsed = getattr(response, "elapsed", None)
        failed = status is None or status >= 400
        self.log.info(
            "api response",
            url=override_url or getattr(response, "url", None),
            method=getattr(request, "method", None),
            status=status,
            elapsed=elapsed.total_seconds() if elapsed is not None else None,
            # The text of a success may hold data of callers, and is not needed to find a fault.
            error=str(getattr(response, "text", ""))[:2000] if failed else None,
        )

    def discard_recording(self) -> None:
        self._effects.discard_recording = True

    def set_csat_eligibility(self, eligible: bool, reason: str | None = None) -> None:
        self.write_metric("CSAT_ELIGIBLE", bool(eligible))
        if reason is not None:
            self.write_metric("CSAT_ELIGIBILITY_REASON", reason)

    def set_csat_phone_number(self, number: str) -> None:
        self.write_metric("CSAT_PHONE_NUMBER", number)

    def set_csat_score(self, score: int) -> None:
        self.write_metric("CSAT_SCORE", score)

    def set_csat_survey_entered(self) -> None:
        self.write_metric("CSAT_SURVEY_ENTERED", True)

    def generate_external_event(self, *, send_to_llm: bool = False) -> str:
        """Return an identifier: events posted with it during the next hour are in `generic_external_events`."""
        return self._expect_event(bool(send_to_llm))


EFFECTS_LIMIT = 1024 * 1024
"""Bytes of JSON."""


@dataclass(slots=True)
class Effects:
    """The effects of one function run. The last call of a kind wins; lists keep their order."""

    say: str | None = None
    goto_flow: str | None = None
    goto_step: str | None = None
    exit_flow: bool = False
    goto_csat_flow: bool = False
    handoff: dict[str, object] | None = None
    variant: str | None = None
    language: str | None = None
    voice: JsonValue = None
    asr_biasing: dict[str, object] | None = None
    background_track: dict[str, object] | None = None
    disabled_topics: list[str] | None = None
    metrics: list[dict[str, object]] = field(default_factory=list)
    sms: list[dict[str, Any]] = field(default_factory=list)
    emails: list[dict[str, object]] = field(default_factory=list)
    discard_recording: bool = False
    shown: dict[str, object] | None = None
    """`{"attachments", "suggestions", "call_actions"}`, when one of them changed."""

    def plain(self) -> MutableJsonObject:
        """Return the effects as plain data. Raises `TooLarge` when project code queued more than `EFFECTS_LIMIT`."""
        effects: dict[str, object] = asdict(self)
        return to_json(effects, EFFECTS_LIMIT)


NAME_LIMIT = 128
"""Characters of a metric's name."""
VALUE_LIMIT = 8 * 1024
"""Bytes of a metric's value as JSON."""


class Metrics:
    """The metrics of one call."""

    def __init__(self, channel: Channel, log: ConversationLogger) -> None:
        self._channel = channel
        self._log = log
        self.events: list[api_types.MetricEvent] = []
        """The metrics written in this call, including those of this run."""

    def begin(self, written: Iterable[Mapping[str, object]]) -> None:
        self.events = [api_types.MetricEvent(str(entry.get("name")), entry.get("value")) for entry in written]

    def write(self, name: object, value: object, write_once: bool, effects: Effects) -> None:
        name = str(name)
        # The name is cut and the metric not refused, because its value is worth more than the end of its name.
        if len(name) > NAME_LIMIT:
            self._log.error(f"metric name of {len(name)} characters cut to {NAME_LIMIT}")
            name = name[:NAME_LIMIT]
        if write_once and any(event.name == name for event in self.events):
            return
        value = to_json_or_note(value, VALUE_LIMIT)
        message = {"type": "metric", "name": name, "value": value, "write_once": bool(write_once), "ask": True}
        try:
            # Waits until the core has stored the metric, which then survives a kill of the worker.
            self._channel.ask(message)
        except AskFailed as error:
            self._log.error(f"metric '{name}' was not written: {error}")
            return
        self.events.append(api_types.MetricEvent(name, value))
        effects.metrics.append({"name": name, "value": value})


class Flow:
    """The argument `flow` of one function run."""

    def __init__(self, conv: object, find: FindFunction, current_step: str | None, effects: Effects) -> None:
        self.current_step = current_step
        self.functions = FunctionExecutor(find, conv, self)
        self._effects = effects

    def goto_step(self, step_name: str, label: str | None = None) -> None:
        """Queue a move to a step; the last call wins."""
        del label  # decoration of the editor's graph
        self._effects.goto_step = str(step_name)
