"""`agent_settings/experimental_config.json`: settings of a project, some with overrides by language, flow and step.

The document is read into typed settings when the project is loaded. Settings for a whole call are attributes of
`ExperimentalSettings`; settings that depend on the position in the flows come from `ExperimentalSettings.at`. A value
of the wrong type counts as not set, because the platform does not check these documents either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from callagent.agents.flows.format.steps_and_topics import DtmfConfig
from callagent.json_values import JsonObject, JsonValue, is_true, number_at, object_at, text_at

MAX_POSITIONS = 2000
"""Positions whose values are cached. Functions may set any language, so the cache needs a limit."""
DEFAULT_MAX_SILENCES = 3
"""Silent turns in a row."""
DEFAULT_WAIT, GATED_WAIT = 0.8, 1.0
"""Seconds that `smart_vad` lets a function wait before it starts; `GATED_WAIT`: one that is listed as gated."""
MAX_WAIT = 5.0
"""Seconds. A caller takes a longer silence for a dead line."""
DEFAULT_FILLER_INTERVAL = 5.0
"""Seconds."""
_DECORATOR_SUFFIX = "_decorator"


@dataclass(frozen=True, slots=True)
class PositionSettings:
    """The values at one step of one flow, in one language. None: not set."""

    no_input_timeout: float | None
    """Seconds of silence until an empty turn (`asr.initial_timeout`)."""
    max_turn: float | None
    """Seconds after which the caller's turn ends in any case (`asr.hard_timeout`)."""
    eager_final: bool
    """Whether a turn is answered from the last partial transcript."""
    turn_threshold: float | None
    """Least probability at which the turn model takes the turn for finished (`eot.threshold`)."""
    unfinished_timeout: float | None
    """Seconds of silence that end a turn that the turn model takes for unfinished (`eot.timeout_ms`)."""
    speech_end: float | None
    """Silence that ends the caller's turn, in seconds or milliseconds (`vad.vad_end`)."""
    barge_in: bool | None
    speech_disabled: bool
    """Whether only key presses are taken (`dtmf.disable_speech`)."""
    first_digit_timeout: float | None
    """Seconds."""
    offers_topic_functions: bool
    """Whether functions that topics name are offered inside flows (`llm.include_kb_functions_in_flows`)."""
    model: ModelOverride
    waits_before_functions: bool
    """Whether `smart_vad` is on, which a flow may override, but not a step."""


@dataclass(frozen=True, slots=True)
class ModelOverride:
    """A model and its parameters from one part of the section `llm`."""

    name: str = ""
    """The platform's name of a model; empty: not set."""
    parameters: JsonObject = field(default_factory=dict)
    """`temperature` and `max_tokens`."""


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The section `prompts`: texts of the request to the model that a project may replace. Empty: left out."""

    silence: str = "The user is silent."
    """The caller's words in a silent turn."""
    step_header: str = ""
    step_footer: str = ""
    context_information_precursor: str = (
        "Use the context below to answer the caller. Follow faq_instructions; "
        "state as facts only what faq_description says."
    )
    context_information: str = "CONTEXT_INFORMATION:\n{topics_prompt}"
    function_not_found: str = "There is no function of that name. Use only the functions you were given."
    language_switching_instructions: str = ""
    non_english_rag: str = ""
    non_english_system: str = "Speak to the caller in {language_name} only."
    decorators: Mapping[str, str] = field(default_factory=dict)
    """Channel (`voice`, `webchat` …) -> a text that is added to the system message on that channel."""


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
    """Earlier utterances that are searched together with one that finds nothing; 0: none."""
    max_topics: int
    """Topics of all turns that the model is given."""
    excluded_by_channel: Mapping[str, tuple[str, ...]]
    not_cited: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BargeInLimits:
    """The settings in the section `barge_in` that hold for the whole call."""

    on_first_turn: bool
    max_per_call: int
    """0: no limit."""
    disabled: bool


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """A list of functions in the section `smart_vad`: one that holds everywhere, or one for each flow."""

    everywhere: frozenset[str] = frozenset()
    by_flow: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Flow -> functions; the key of the functions outside of flows is empty."""

    def lists(self, flow: str | None, name: str) -> bool:
        """Return whether the function is listed for a flow; None: outside of flows."""
        return name in self.everywhere or name in self.by_flow.get(flow or "", ())

    def lists_anywhere(self, name: str) -> bool:
        """Return whether the function is listed for any flow."""
        return name in self.everywhere or any(name in names for names in self.by_flow.values())


@dataclass(frozen=True, slots=True)
class FunctionWaits:
    """The section `smart_vad`: how long functions wait, so that a caller who goes on speaking can cancel them."""

    gated: FunctionTable
    """Functions that wait for `gated_wait`."""
    nongated: FunctionTable
    """Functions that start at once."""
    gated_wait: float
    """Seconds."""
    default_wait: float
    """Seconds for functions that neither table lists."""


@dataclass(frozen=True, slots=True)
class OlderFillers:
    """The section `filler_utterances`, which `filler_phrases` of `voice/configuration.yaml` replaces."""

    utterances: tuple[str, ...]
    """For all languages; if it is empty, `by_language` is used."""
    by_language: Mapping[str, tuple[str, ...]]
    randomize: bool
    initial_interval: float
    """Seconds, as `interval`."""
    interval: float

    def in_language(self, language: str | None) -> tuple[str, ...]:
        """Return the utterances in a language, else in the same language without its region."""
        code = language or ""
        return self.utterances or self.by_language.get(code) or self.by_language.get(code.split("-")[0]) or ()


@dataclass(frozen=True, slots=True)
class RepeatCaller:
    """The section `memory`: what is stored of a caller for later calls, and what identifies the caller in them."""

    enabled: bool
    state_keys: tuple[str, ...]
    """Keys of `conv.state` that are stored."""
    excluded: tuple[str, ...]
    """Identifiers for which nothing is stored, such as the number of a switchboard."""
    identifier_source: str
    """`sip_headers:NAME`, `integration_attributes:NAME` or `state:NAME`; else the caller's number."""


class ExperimentalSettings:
    """The document, and the settings that were read from it."""

    def __init__(self, data: JsonObject | None = None) -> None:
        self.data: JsonObject = {} if data is None else data
        self.prompts = _read_prompt_texts(self.section("prompts"))
        self.retrieval = _read_retrieval(self.section("ragdoll"))
        self.barge_in = _read_barge_in_limits(self.section("barge_in"))
        self.digits = _read_digits(object_at(self.data, "dtmf", "global"))
        self.function_waits = _read_function_waits(self.section("smart_vad"))
        self.older_fillers = _read_older_fillers(self.section("filler_utterances"))
        self.repeat_caller = _read_repeat_caller(self.section("memory"))
        self.max_silences = int(
            number_at(self.section("conversation_control"), "max_silence_count", DEFAULT_MAX_SILENCES)
        )
        """Silent turns in a row that are tolerated; one more ends the call."""
        self.models_by_channel = _read_model_overrides(self.section("llm"), "channel_overrides")
        self.models_by_variant = _read_model_overrides(self.section("llm"), "variant_overrides")
        """These win over those of the channel."""
        self._positions: dict[tuple[str | None, str | None, str | None], PositionSettings] = {}

    def section(self, name: str) -> JsonObject:
        return object_at(self.data, name)

    def value(
        self, section: str, key: str, flow: str | None = None, step: str | None = None, language: str | None = None
    ) -> JsonValue:
        """Return the value of a key: the step's, else the flow's, the language's or the base's. None: not set.

        A language with overrides of its own takes nothing from the flows and steps of the base.
        """
        base = self.section(section)
        own = object_at(base, "language_overrides", language) if language is not None else {}
        in_flow = object_at(own or base, "flow_overrides", flow) if flow is not None else {}
        in_step = object_at(in_flow, "steps", step) if step is not None else {}
        # The innermost value counts. `null` counts as not set, so it does not hide a value of an outer layer.
        layers = (in_step, in_flow, own or base, base)
        return next((layer[key] for layer in layers if layer.get(key) is not None), None)

    def at(self, flow: str | None, step: str | None, language: str | None) -> PositionSettings:
        """Return the values at a position."""
        found = self._positions.get((flow, step, language))
        if found is None:
            if len(self._positions) >= MAX_POSITIONS:
                # Cleared values are read again when they are next needed, so clearing costs time only.
                self._positions.clear()
            found = self._positions[flow, step, language] = self._read_position(flow, step, language)
        return found

    def _read_position(self, flow: str | None, step: str | None, language: str | None) -> PositionSettings:
        value = self.value
        barge_in = value("barge_in", "is_enabled", flow, step)
        unfinished = positive_or_none(value("eot", "timeout_ms", flow, step, language))
        parameters = value("llm", "inference_parameters", flow, step)
        return PositionSettings(
            no_input_timeout=positive_or_none(value("asr", "initial_timeout", flow, step, language)),
            max_turn=positive_or_none(value("asr", "hard_timeout", flow, step, language)),
            eager_final=value("asr", "eager_final", flow, step, language) is True,
            turn_threshold=positive_or_none(value("eot", "threshold", flow, step, language)),
            unfinished_timeout=None if unfinished is None else unfinished / 1000,
            speech_end=positive_or_none(value("vad", "vad_end", flow, step)),
            barge_in=barge_in if isinstance(barge_in, bool) else None,
            speech_disabled=value("dtmf", "disable_speech", flow, step) is True,
            first_digit_timeout=positive_or_none(value("dtmf", "first_digit_timeout", flow, step)),
            offers_topic_functions=value("llm", "include_kb_functions_in_flows", flow, step) is True,
            model=ModelOverride(
                str(value("llm", "provider_model_id", flow, step) or ""),
                parameters if isinstance(parameters, Mapping) else {},
            ),
            waits_before_functions=value("smart_vad", "is_enabled", flow) is True,
        )

    def hangup_utterance(self, language: str | None, default: str) -> str:
        """Return the words that are said before a call is ended for silence; a project may set them by language."""
        value = self.section("conversation_control").get("hangup_utterance")
        if isinstance(value, Mapping):
            short = (language or "").split("-")[0]
            value = value.get(language or "") or value.get(short) or next(iter(value.values()), None)
        return value if isinstance(value, str) and value else default

    def disclaimer(self, channel_type: str, configured: str) -> str:
        """Return the disclaimer of a channel: `configured`, unless the channel has an override."""
        overrides = object_at(self.data, "conversation_control", "channel_overrides", channel_type)
        message = overrides.get("disclaimer_message")
        if not isinstance(message, Mapping):
            return configured
        return str(message.get("message") or configured) if message.get("is_enabled") else ""


def positive_or_none(value: object) -> float | None:
    """Return a number above 0, or None for everything else."""
    # bool is a subclass of int, but `true` is not a number here.
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if value > 0 else None


def _read_prompt_texts(section: JsonObject) -> PromptTexts:
    names = {each.name for each in fields(PromptTexts)} - {"decorators"}
    texts = {name: text for name, text in section.items() if isinstance(text, str)}
    decorators = {
        name.removesuffix(_DECORATOR_SUFFIX): text for name, text in texts.items() if name.endswith(_DECORATOR_SUFFIX)
    }
    return PromptTexts(**{name: text for name, text in texts.items() if name in names}, decorators=decorators)


def _read_retrieval(section: JsonObject) -> RetrievalSettings:
    excluded = object_at(section, "channel_topic_exclusions")
    return RetrievalSettings(
        threshold=number_at(section, "threshold", 0.4),
        in_flow_threshold=number_at(section, "in_flow_threshold", 0.35),
        cited_threshold=number_at(section, "qa_metric_threshold", 0.33),
        max_matches=int(number_at(section, "top_k", 5)),
        max_earlier_inputs=max(0, int(number_at(section, "previous_user_inputs_len", 2))),
        max_topics=int(number_at(section, "history_len", 7)),
        excluded_by_channel={channel: _names(names) for channel, names in excluded.items()},
        not_cited=_names(section.get("qa_metric_exclusions")),
    )


def _read_barge_in_limits(section: JsonObject) -> BargeInLimits:
    limits = object_at(section, "experimental_config")
    return BargeInLimits(
        on_first_turn=is_true(section, "enable_on_start_turn"),
        max_per_call=int(positive_or_none(limits.get("max_per_call")) or 0),
        disabled=is_true(limits, "force_disable"),
    )


def _read_digits(section: JsonObject) -> DtmfConfig | None:
    """Read how key presses are collected at steps without `dtmf_config` (`dtmf.global`); None: they are not."""
    if not section.get("is_enabled"):
        return None
    return DtmfConfig(
        max_digits=int(positive_or_none(section.get("max_digits")) or 0),
        end_key=str(section.get("end_key") or ""),
        while_speaking=bool(section.get("collect_while_agent_speaking")),
    )


def _read_function_waits(section: JsonObject) -> FunctionWaits:
    return FunctionWaits(
        gated=_read_function_table(section.get("gated_functions")),
        nongated=_read_function_table(section.get("nongated_functions")),
        gated_wait=_read_wait(section.get("max_extension_duration"), GATED_WAIT),
        default_wait=_read_wait(section.get("default_function_wait"), DEFAULT_WAIT),
    )


def _read_function_table(table: JsonValue) -> FunctionTable:
    if isinstance(table, Mapping):
        return FunctionTable(by_flow={flow: frozenset(_as_texts(names)) for flow, names in table.items()})
    return FunctionTable(everywhere=frozenset(_as_texts(table)))


def _read_wait(value: JsonValue, default: float) -> float:
    """Read a number of seconds, or a text such as `0.8s`; at most `MAX_WAIT`."""
    try:
        seconds = float(str(value).removesuffix("s"))
    except ValueError:
        return default
    return min(MAX_WAIT, seconds) if seconds >= 0 else default


def _read_older_fillers(section: JsonObject) -> OlderFillers | None:
    if not is_true(section, "is_enabled"):
        return None
    utterances = section.get("utterances")
    # Either one list for all languages, or a list for each language.
    by_language = utterances if isinstance(utterances, Mapping) else {}
    interval = positive_or_none(section.get("interval_sec")) or DEFAULT_FILLER_INTERVAL
    return OlderFillers(
        utterances=_nonblank_texts(utterances),
        by_language={language: _nonblank_texts(texts) for language, texts in by_language.items()},
        randomize=is_true(section, "randomize"),
        initial_interval=positive_or_none(section.get("initial_interval_sec")) or interval,
        interval=interval,
    )


def _nonblank_texts(texts: JsonValue) -> tuple[str, ...]:
    return tuple(text for text in _as_texts(texts) if text.strip())


def _read_repeat_caller(section: JsonObject) -> RepeatCaller:
    details = object_at(section, "repeat_caller")
    return RepeatCaller(
        enabled=bool(details),
        state_keys=_names(details.get("state_keys")),
        excluded=_names(details.get("identifier_blacklist")),
        identifier_source=text_at(section, "identifier_source"),
    )


def _read_model_overrides(section: JsonObject, key: str) -> dict[str, ModelOverride]:
    overrides = {name: object_at(section, key, name) for name in object_at(section, key)}
    return {
        name: ModelOverride(str(each.get("provider_model_id") or ""), object_at(each, "inference_parameters"))
        for name, each in overrides.items()
    }


def _as_texts(value: JsonValue) -> tuple[str, ...]:
    """Return the items of a list as texts; nothing where the value is no list."""
    return tuple(str(item) for item in value) if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _names(value: JsonValue) -> tuple[str, ...]:
    """Return one name, the names of a list, or the keys of a map."""
    if isinstance(value, str):
        return (value,)
    return tuple(str(name) for name in value) if isinstance(value, Mapping) else _as_texts(value)
