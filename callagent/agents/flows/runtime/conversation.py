"""The `conv` argument: what project code reads of a call and how it acts on it.

Reads come from the snapshot of the run; actions are collected as effects and take place after the function returned.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from callagent.agents.flows.runtime.conversation_parts import Parts, Translations, entities_of, find_handoff, named
from callagent.agents.flows.runtime.effects import Effects
from callagent.agents.flows.runtime.executors import Find, FunctionExecutor
from callagent.agents.flows.runtime.failures import Unavailable
from callagent.agents.flows.runtime.history import AgentResponse, UserInput, history_of
from callagent.agents.flows.runtime.knowledge import KnowledgeBase
from callagent.agents.flows.runtime.messages import HandoffConfig, MetricEvent, SMSTemplate, WebchatInterface
from callagent.agents.flows.runtime.messaging import Messaging
from callagent.agents.flows.runtime.metrics import Metrics
from callagent.agents.flows.runtime.state import Entities, ReadOnlyDict, State, Variant
from callagent.agents.flows.runtime.voices import TTSVoice, VoiceWeighting, weights
from callagent.agents.kernel.runtime import project_or_note


class Conversation(Messaging):
    def __init__(self, parts: Parts, find: Find) -> None:
        self.state: State = parts.state
        self.log = parts.log
        self.utils = parts.utils
        self.clock = parts.clock
        self.memory = parts.memory
        self.verified_context = parts.verified_context
        self.account_id = parts.account_id
        self.project_id = parts.project_id
        self.functions = FunctionExecutor(find, self, None)
        self.knowledge_base = KnowledgeBase()
        self.webchat = WebchatInterface()
        self.api = parts.api(self.log_api_response)
        # The platform's proxy to the same services; here both call them directly.
        self.connectors = self.api
        self.integrations = Unavailable("conv.integrations")
        self.agentic_dial = Unavailable("conv.agentic_dial")
        self.cxone = Unavailable("conv.cxone")
        self.attachments = []
        self.response_suggestions = []
        self.generic_external_events: list[dict[str, Any]] = []
        self.integration_attributes: dict[str, Any] | None = None
        self.outbound_campaign: dict[str, Any] | None = None
        self._analytics_events: list[Any] = []
        self._metrics: Metrics = parts.metrics
        self._expect_event = parts.expect_event
        self._variant_values: dict[str, Variant] = {}
        self.end_attempt = 1
        self._snapshot: dict[str, Any] = {}
        self._begin({}, Effects())

    def _begin(self, snapshot: Mapping[str, Any], effects: Effects) -> None:
        """Start a run: keys that are absent keep their value of the run before."""
        self._snapshot = {**self._snapshot, **snapshot}
        self._effects = effects
        self.voice_change: TTSVoice | None = None
        text = self._snapshot.get
        self.id: str = text("id") or ""
        self.env: str = text("env") or "sandbox"
        self.channel_type: str = text("channel_type") or "chat.polyai"
        self.caller_number: str | None = text("caller_number")
        self.callee_number: str | None = text("callee_number")
        self.current_flow: str | None = text("current_flow")
        self.current_step: str | None = text("current_step")
        self.language: str | None = text("language")
        self.integration_attributes = text("integration_attributes")
        self.end_attempt = text("attempt") or 1
        self.provider_voice_id: str = (text("voice") or {}).get("provider_voice_id") or ""
        self._begin_collections()

    def _begin_collections(self) -> None:
        get = self._snapshot.get
        self.sip_headers: dict[str, str] = dict(get("sip_headers") or {})
        self.end_headers: dict[str, str] = dict(get("end_headers") or {})
        self.entities: Entities = entities_of(get("entities") or {})
        self.transcript_alternatives: list[str] = list(get("transcript_alternatives") or ())
        self.generic_external_events = [dict(event) for event in get("generic_external_events") or ()]
        self.real_time_config = ReadOnlyDict(get("real_time_config") or {})
        self.history: list[UserInput | AgentResponse] = history_of(get("history") or ())
        self.handoffs: dict[str, HandoffConfig] = named(HandoffConfig, get("handoffs"))
        self.sms_templates: dict[str, SMSTemplate] = named(SMSTemplate, get("sms_templates"))
        self.translations = Translations(get("translations") or {}, lambda: self.language)
        # Projects assign to a variant's attributes: an unchanged snapshot must not undo that.
        for name, values in (get("variants") or {}).items():
            self._variant_values.setdefault(name, Variant(values or {}))
        self.variant_name: str | None = get("variant_name")
        self._metrics.begin(get("metric_events") or ())

    # Reading ------------------------------------------------------------------------------------------------------

    @property
    def variants(self) -> dict[str, Variant]:
        return self._variant_values

    @property
    def variant(self) -> Variant:
        """Empty (and falsy) when the project has no variants."""
        return self._variant_values.get(self.variant_name or "", Variant())

    @property
    def metric_events(self) -> list[MetricEvent]:
        return self._metrics.events

    @property
    def metrics_queue(self) -> list[MetricEvent]:
        return [MetricEvent(entry["name"], entry["value"]) for entry in self._effects.metrics]

    @property
    def sms_queue(self) -> list[dict[str, Any]]:
        return self._effects.sms

    # Speaking and moving ------------------------------------------------------------------------------------------

    def say(self, utterance: str) -> None:
        self._effects.say = str(utterance)

    def goto_flow(self, flow_name: str) -> None:
        self._effects.goto_flow = str(flow_name)

    def exit_flow(self) -> None:
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
        found = find_handoff(self.handoffs, str(destination))
        headers = {**self.handoffs[found].sip_headers, **(sip_headers or {})}
        self._effects.handoff = {
            "destination": found,
            "reason": reason or destination,
            "utterance": utterance,
            "sip_headers": {str(name): str(value) for name, value in headers.items()},
            "route": route,
        }

    # Voice, language, variant -------------------------------------------------------------------------------------

    def set_variant(self, variant: str) -> None:
        if variant not in self._variant_values:
            self.log.error(f"the project has no variant '{variant}'")
            return
        self.variant_name = self._effects.variant = variant

    def set_language(self, code: str) -> None:
        self.language = self._effects.language = str(code)

    def set_voice(self, voice: TTSVoice) -> None:
        self.voice_change = voice
        self.provider_voice_id = voice.provider_voice_id
        self._effects.voice = project_or_note(voice.to_dict(), 4096)

    def randomize_voice(self, voices: list[VoiceWeighting]) -> None:
        """Raises ValueError unless the weights sum to 1."""
        self.set_voice(random.choices([choice.voice for choice in voices], weights(voices))[0])

    def set_asr_biasing(self, keywords: list[str] | None = None, custom_biases: dict[str, float] | None = None) -> None:
        """Raises ValueError for anything but a list and a dict."""
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

    def write_metric(self, name: str, value: Any = None, *, write_once: bool = False) -> None:
        """The metric is durable when this returns."""
        self._metrics.write(name, value, write_once, self._effects)

    def log_api_response(self, response: Any, override_url: str | None = None) -> None:
        """Log what a `requests.Response` says of itself."""
        request = getattr(response, "request", None)
        status = getattr(response, "status_code", None)
        elapsed = getattr(response, "elapsed", None)
        failed = status is None or status >= 400
        self.log.info(
            "api response",
            url=override_url or getattr(response, "url", None),
            method=getattr(request, "method", None),
            status=status,
            elapsed=elapsed.total_seconds() if elapsed is not None else None,
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
        """An identifier: what is posted with it during the next hour is in `generic_external_events`."""
        return self._expect_event(bool(send_to_llm))
