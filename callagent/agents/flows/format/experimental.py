"""`agent_settings/experimental_config.json`: settings with overrides by language, flow and step.

The engine reads typed values: those that depend on the position come from `ExperimentalSettings.at`, all others from
properties. Each is read from the document once for the project, not once for every turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from callagent.agents.flows.format.steps_and_topics import DtmfConfig

Section = Mapping[str, Any]
MAX_POSITIONS = 2000
"""Positions whose values are kept. A function may set any language, so their number has no bound of its own."""
_NO_SECTION: Section = {}


@dataclass(frozen=True, slots=True)
class PositionSettings:
    """The values at one step of one flow, in one language. None: not set."""

    no_input_timeout: float | None
    """Seconds of silence until an empty turn (`asr.initial_timeout`)."""
    max_turn: float | None
    """Seconds after which the caller's turn is taken (`asr.hard_timeout`)."""
    eager_final: bool
    """Whether a turn is answered from the last partial transcript."""
    turn_threshold: float | None
    """Probability from which a turn model's opinion is that the caller has finished (`eot.threshold`)."""
    unfinished_timeout: float | None
    """Seconds of silence that end a turn where more seems to come (`eot.timeout_ms`)."""
    speech_end: float | None
    """Silence that ends the caller's turn, in seconds or milliseconds (`vad.vad_end`)."""
    barge_in: bool | None
    speech_disabled: bool
    """Whether only key presses are taken (`dtmf.disable_speech`)."""
    first_digit_timeout: float | None
    offers_topic_functions: bool
    """Whether functions that topics name are offered inside flows (`llm.include_kb_functions_in_flows`)."""
    model_name: str
    """The platform's name of a model; empty: not set."""
    inference_parameters: Section
    waits_before_functions: bool
    """Whether `smart_vad` is on. The step makes no difference."""


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """The section `ragdoll`: which topics the model is given."""

    threshold: float
    """Least score of a topic outside of flows."""
    in_flow_threshold: float
    cited_threshold: float
    """Least score of a topic that the metric `QA` names."""
    max_matches: int
    """Topics found for one utterance."""
    max_earlier_inputs: int
    """Earlier utterances that are searched together with one that finds nothing."""
    max_topics: int
    """Topics of all turns that the model is given."""
    excluded_by_channel: Section
    not_cited: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BargeInLimits:
    """What the section `barge_in` says for the whole call."""

    on_first_turn: bool
    max_per_call: int
    """0: no limit."""
    disabled: bool


@dataclass(frozen=True)
class ExperimentalSettings:
    """The document, and what the engine reads of it. Has no slots, because the properties are kept in the instance."""

    data: Section = field(default_factory=dict)
    _positions: dict[tuple[str | None, str | None, str | None], PositionSettings] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def section(self, name: str) -> Section:
        return _inner(self.data, name)

    def value(
        self, section: str, key: str, flow: str | None = None, step: str | None = None, language: str | None = None
    ) -> Any:
        """Return the value of a key: the step's, else the flow's, the language's or the base's. None: not set.

        A language with overrides of its own takes nothing from the flows and steps of the base.
        """
        base = self.section(section)
        own = _inner(_inner(base, "language_overrides"), language)
        layers = (*_layers(own or base, flow, step), base)
        return next((layer[key] for layer in layers if layer.get(key) is not None), None)

    def at(self, flow: str | None, step: str | None, language: str | None) -> PositionSettings:
        """Return the values at a position."""
        found = self._positions.get((flow, step, language))
        if found is None:
            if len(self._positions) >= MAX_POSITIONS:
                self._positions.clear()
            found = self._positions[flow, step, language] = self._read_position(flow, step, language)
        return found

    def _read_position(self, flow: str | None, step: str | None, language: str | None) -> PositionSettings:
        value = self.value
        barge_in = value("barge_in", "is_enabled", flow, step)
        unfinished = positive(value("eot", "timeout_ms", flow, step, language))
        parameters = value("llm", "inference_parameters", flow, step)
        return PositionSettings(
            no_input_timeout=positive(value("asr", "initial_timeout", flow, step, language)),
            max_turn=positive(value("asr", "hard_timeout", flow, step, language)),
            eager_final=value("asr", "eager_final", flow, step, language) is True,
            turn_threshold=positive(value("eot", "threshold", flow, step, language)),
            unfinished_timeout=None if unfinished is None else unfinished / 1000,
            speech_end=positive(value("vad", "vad_end", flow, step)),
            barge_in=barge_in if isinstance(barge_in, bool) else None,
            speech_disabled=value("dtmf", "disable_speech", flow, step) is True,
            first_digit_timeout=positive(value("dtmf", "first_digit_timeout", flow, step)),
            offers_topic_functions=value("llm", "include_kb_functions_in_flows", flow, step) is True,
            model_name=str(value("llm", "provider_model_id", flow, step) or ""),
            inference_parameters=parameters if isinstance(parameters, dict) else _NO_SECTION,
            waits_before_functions=value("smart_vad", "is_enabled", flow) is True,
        )

    @cached_property
    def retrieval(self) -> RetrievalSettings:
        section = self.section("ragdoll")
        return RetrievalSettings(
            threshold=_number(section, "threshold", 0.4),
            in_flow_threshold=_number(section, "in_flow_threshold", 0.35),
            cited_threshold=_number(section, "qa_metric_threshold", 0.33),
            max_matches=int(_number(section, "top_k", 5)),
            max_earlier_inputs=int(_number(section, "previous_user_inputs_len", 2)),
            max_topics=int(_number(section, "history_len", 7)),
            excluded_by_channel=_inner(section, "channel_topic_exclusions"),
            not_cited=_names(section.get("qa_metric_exclusions")),
        )

    @cached_property
    def barge_in(self) -> BargeInLimits:
        limits = _inner(self.section("barge_in"), "experimental_config")
        return BargeInLimits(
            on_first_turn=self.value("barge_in", "enable_on_start_turn") is True,
            max_per_call=int(positive(limits.get("max_per_call")) or 0),
            disabled=limits.get("force_disable") is True,
        )

    @cached_property
    def digits(self) -> DtmfConfig | None:
        """How key presses are collected where the step says nothing (`dtmf.global`); None: they are not."""
        section = _inner(self.section("dtmf"), "global")
        if not section.get("is_enabled"):
            return None
        return DtmfConfig(
            max_digits=max(0, int(positive(section.get("max_digits")) or 0)),
            end_key=str(section.get("end_key") or ""),
            while_speaking=bool(section.get("collect_while_agent_speaking")),
        )

    @cached_property
    def max_silences(self) -> int | None:
        """Silent turns in a row after which the call is ended; None: not set."""
        value = self.section("conversation_control").get("max_silence_count")
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @cached_property
    def repeat_caller(self) -> Section:
        """What is remembered of a caller (`memory.repeat_caller`); empty: nothing."""
        return _inner(self.section("memory"), "repeat_caller")

    def model_overrides(self, channel_type: str, variant: str | None) -> tuple[Section, Section]:
        """Return the parts of the section `llm` for a channel and for a variant; the later one wins."""
        llm = self.section("llm")
        return (
            _inner(_inner(llm, "channel_overrides"), channel_type),
            _inner(_inner(llm, "variant_overrides"), variant or ""),
        )

    def prompt(self, name: str, default: str = "") -> str:
        return self._prompts.get(name, default)

    @cached_property
    def _prompts(self) -> Mapping[str, str]:
        return {name: text for name, text in self.section("prompts").items() if isinstance(text, str)}

    def hangup_utterance(self, language: str | None, default: str) -> str:
        """Return what is said before the call is ended for silence: one text, or one for each language."""
        value = self.section("conversation_control").get("hangup_utterance")
        if isinstance(value, dict):
            short = (language or "").split("-")[0]
            value = value.get(language) or value.get(short) or next(iter(value.values()), None)
        return value if isinstance(value, str) and value else default

    def disclaimer(self, channel_type: str, configured: str) -> str:
        """Return the disclaimer of a channel: `configured`, unless the channel has an override."""
        overrides = _inner(self.section("conversation_control"), "channel_overrides")
        message = _inner(overrides, channel_type).get("disclaimer_message")
        if not isinstance(message, dict):
            return configured
        return str(message.get("message") or configured) if message.get("is_enabled") else ""


def positive(value: Any) -> float | None:
    """Return a number above 0, or None for everything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else None


def _number(section: Section, key: str, default: float) -> float:
    value = section.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(name) for name in value) if isinstance(value, list | dict) else ()


def _layers(section: Section, flow: str | None, step: str | None) -> tuple[Section, ...]:
    in_flow = _inner(_inner(section, "flow_overrides"), flow)
    return _inner(_inner(in_flow, "steps"), step), in_flow, section


def _inner(section: Section, key: str | None) -> Section:
    value = section.get(key) if key is not None else None
    return value if isinstance(value, dict) else _NO_SECTION
