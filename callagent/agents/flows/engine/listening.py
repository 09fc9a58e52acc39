"""How the caller's next turn is taken: settings of the step, the flow, the project and the function's `listen`.

`smart_vad` belongs to it: a function waits until the caller has surely finished, and continued speech cancels it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callagent.agents.actions import DigitSettings, ListenSettings
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.format import Biasing, DtmfConfig, ProjectFunction, Step, seconds

_EXPECTED = {
    "numeric": "5 5 5 0 1 4 2",
    "single_number": "Four.",
    "party_size": "A table for four.",
    "alphanumeric": "A B 1 2 3 4",
    "name_spelling": "J O H N, S M I T H.",
    "precise_date": "March 15th, 1990.",
    "relative_date": "Next Tuesday.",
    "time": "Half past seven in the evening.",
    "yes_no": "Yes, please.",
    "address": "12 Main Street, Springfield.",
}
"""What is asked for -> an answer of that form."""
_ENTITY_KINDS = {
    "numeric": "numeric",
    "phone_number": "numeric",
    "alphanumeric": "alphanumeric",
    "date": "precise_date",
    "time": "time",
    "address": "address",
}


def listen_settings(conversation: Conversation, listen: Mapping[str, Any] | None = None) -> ListenSettings:
    """`listen` is a function's, for this one turn; it wins over the step."""
    project, position = conversation.project, conversation.position
    step = project.step(position.flow, position.step)
    given = listen or {}
    asr, dtmf = _section(given, "asr"), _section(given, "dtmf")
    digits = _digits(conversation, step)
    if dtmf:
        digits = _listen_digits(dtmf, digits)
    channel = str(given.get("channel") or "").upper()
    place = (position.flow, position.step, conversation.language)
    initial = project.experimental.value("asr", "initial_timeout", *place)
    return ListenSettings(
        no_input_timeout=_positive(asr.get("timeout")) or _positive(initial),
        barge_in=_listen_barge_in(given),
        digits=None if channel == "SPEECH" else digits or (DigitSettings() if channel == "DTMF" else None),
        speech=channel != "DTMF" and not _speech_disabled(conversation),
        endpointing=_endpointing(conversation, step),
        unfinished=_milliseconds(project.experimental.value("eot", "timeout_ms", *place)),
        turn_threshold=_positive(project.experimental.value("eot", "threshold", *place)),
        eager_final=project.experimental.value("asr", "eager_final", *place) is True,
        longest_turn=_positive(project.experimental.value("asr", "hard_timeout", *place)),
        expected=_expected(conversation, step),
        keywords=_keywords(conversation, step, asr),
    )


def interruptible(conversation: Conversation) -> bool:
    """Whether the caller may interrupt what is said now: step, then flow, then project."""
    project, position = conversation.project, conversation.position
    asr = project.voice.asr
    finer = _section(project.experimental.section("barge_in"), "experimental_config")
    most = asr.max_interruptions or int(_positive(finer.get("max_per_call")) or 0)
    if finer.get("force_disable") is True or (most and conversation.interruptions >= most):
        return False
    if conversation.turns == 0:
        return asr.barge_in_on_first_turn or project.experimental.value("barge_in", "enable_on_start_turn") is True
    step = project.step(position.flow, position.step)
    if step is not None and step.barge_in is not None:
        return step.barge_in
    experimental = project.experimental.value("barge_in", "is_enabled", position.flow, position.step)
    if isinstance(experimental, bool):
        return experimental
    return True if asr.barge_in is None else asr.barge_in


def _section(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = value.get(key)
    return section if isinstance(section, dict) else {}


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else None


def _milliseconds(value: Any) -> float | None:
    number = _positive(value)
    return None if number is None else number / 1000


def _digits(conversation: Conversation, step: Step | None) -> DigitSettings | None:
    experimental, position = conversation.project.experimental, conversation.position
    override = experimental.value("dtmf", "first_digit_timeout", position.flow, position.step)
    config = step.dtmf if step is not None else None
    if config is None:
        section = _section(experimental.section("dtmf"), "global")
        if not section.get("is_enabled"):
            return None
        config = DtmfConfig(
            max_digits=max(0, int(_positive(section.get("max_digits")) or 0)),
            end_key=str(section.get("end_key") or ""),
            while_speaking=bool(section.get("collect_while_agent_speaking")),
        )
    return DigitSettings(
        max_digits=config.max_digits,
        end_key=config.end_key,
        first_digit_timeout=_positive(override) or 5.0,
        inter_digit_timeout=config.inter_digit_timeout,
        while_speaking=config.while_speaking,
        is_pii=config.is_pii,
    )


def _listen_digits(dtmf: Mapping[str, Any], base: DigitSettings | None) -> DigitSettings:
    base = base or DigitSettings()
    return DigitSettings(
        max_digits=max(0, int(_positive(dtmf.get("num_digits")) or base.max_digits)),
        end_key=str(dtmf.get("finish_on_key") or base.end_key),
        first_digit_timeout=_positive(dtmf.get("first_digit_timeout")) or base.first_digit_timeout,
        inter_digit_timeout=_positive(dtmf.get("inter_digit_timeout")) or base.inter_digit_timeout,
        while_speaking=bool(dtmf.get("early_listening", base.while_speaking)),
        is_pii=bool(dtmf.get("is_pii", base.is_pii)),
    )


def _listen_barge_in(given: Mapping[str, Any]) -> bool | None:
    enabled = _section(given, "barge_in").get("is_enabled")
    return enabled if isinstance(enabled, bool) else None


def _speech_disabled(conversation: Conversation) -> bool:
    position = conversation.position
    return conversation.project.experimental.value("dtmf", "disable_speech", position.flow, position.step) is True


def _endpointing(conversation: Conversation, step: Step | None) -> float | None:
    if step is not None and step.speech_end is not None:
        return step.speech_end
    project, position = conversation.project, conversation.position
    vad_end = _positive(project.experimental.value("vad", "vad_end", position.flow, position.step))
    return seconds(vad_end) or project.voice.asr.speech_end


def _biasing(conversation: Conversation, step: Step | None) -> Biasing:
    if step is None:
        return Biasing()
    if step.biasing is not None:
        return step.biasing
    entities = conversation.project.entities
    kinds = (_ENTITY_KINDS.get(entities[name].type) for name in step.entities if name in entities)
    return Biasing(tuple(kind for kind in kinds if kind))


def _expected(conversation: Conversation, step: Step | None) -> str:
    return " ".join(_EXPECTED[kind] for kind in _biasing(conversation, step).kinds)


def _keywords(conversation: Conversation, step: Step | None, asr: Mapping[str, Any]) -> tuple[str, ...]:
    own = asr.get("keywords")
    given = tuple(str(word) for word in own) if isinstance(own, list) else ()
    step_words = _biasing(conversation, step).keywords
    return tuple(dict.fromkeys((*given, *conversation.keywords, *step_words, *conversation.project.voice.keyphrases)))


DEFAULT_WAIT, GATED_WAIT = 0.8, 1.0
LONGEST_WAIT = 5.0
_LISTENS = ("voice",)


def function_wait(conversation: Conversation, function: ProjectFunction) -> float:
    """Seconds between the model's call and the function's start; 0 as text, where nobody goes on speaking."""
    experimental, flow = conversation.project.experimental, conversation.position.flow
    section = experimental.section("smart_vad")
    enabled = experimental.value("smart_vad", "is_enabled", flow) is True
    if not enabled or conversation.channel not in _LISTENS or conversation.info.wire == "text":
        return 0.0
    if _listed(section.get("nongated_functions"), flow, function.name):
        return 0.0
    if _listed(section.get("gated_functions"), flow, function.name):
        return _seconds(section.get("max_extension_duration"), GATED_WAIT)
    return _seconds(section.get("default_function_wait"), DEFAULT_WAIT)


def leaves_no_trace(conversation: Conversation, function: str) -> bool:
    """It ran at once; when the caller goes on speaking, the model is to know nothing of it. What it did stands."""
    table = conversation.project.experimental.section("smart_vad").get("nongated_functions")
    # The function may have led elsewhere: the flow it ran in is not where the call is now.
    flows = table if isinstance(table, dict) else ("",)
    return any(_listed(table, flow, function) for flow in flows)


def _listed(table: Any, flow: str | None, name: str) -> bool:
    """By flow, `""` outside of flows; a plain list holds everywhere."""
    if isinstance(table, dict):
        table = table.get(flow or "")
    return isinstance(table, list) and name in table


def _seconds(value: Any, default: float) -> float:
    """A number, or a text such as `0.8s`."""
    try:
        seconds = float(str(value).removesuffix("s"))
    except ValueError:
        return default
    return min(LONGEST_WAIT, seconds) if seconds >= 0 else default
