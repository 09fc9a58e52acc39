"""How the caller's next turn is taken: settings of the step, the flow, the project and the function's `listen`.

The section `smart_vad` is one of them: functions wait in case the caller goes on speaking, which cancels them.
"""

from __future__ import annotations

from callagent.agents.actions import DigitSettings, ListenSettings
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.format import Biasing, ProjectFunction, Step, as_seconds, positive_or_none
from callagent.json_values import JsonObject, list_at, object_at

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
"""Kind of expected answer -> an example, for recognisers that take one."""
_ENTITY_KINDS = {
    "numeric": "numeric",
    "phone_number": "numeric",
    "alphanumeric": "alphanumeric",
    "date": "precise_date",
    "time": "time",
    "address": "address",
}


def listen_settings(conversation: Conversation, listen: JsonObject | None = None) -> ListenSettings:
    """Return how the next turn is taken. `listen`, from a function, holds for this turn and wins over the step."""
    settings, step = conversation.position_settings, conversation.step
    listen = listen or {}
    asr, dtmf = object_at(listen, "asr"), object_at(listen, "dtmf")
    digits = _digits(conversation, step)
    if dtmf:
        digits = _listen_digits(dtmf, digits)
    channel = str(listen.get("channel") or "").upper()
    return ListenSettings(
        no_input_timeout=positive_or_none(asr.get("timeout")) or settings.no_input_timeout,
        barge_in=_listen_barge_in(listen),
        # `channel` turns the other way of answering off: SPEECH takes no keys, DTMF no words.
        digits=None if channel == "SPEECH" else digits or (DigitSettings() if channel == "DTMF" else None),
        speech=channel != "DTMF" and not settings.speech_disabled,
        endpointing=_endpointing(conversation, step),
        unfinished=settings.unfinished_timeout,
        turn_threshold=settings.turn_threshold,
        eager_final=settings.eager_final,
        longest_turn=settings.max_turn,
        expected=_expected(conversation, step),
        keywords=_keywords(conversation, step, asr),
    )


def is_interruptible(conversation: Conversation) -> bool:
    """Return whether the caller may interrupt the words said now: the step decides, else the flow, else the project."""
    asr, limits = conversation.project.voice.asr, conversation.project.experimental.barge_in
    # `voice/` replaces the experimental setting of the same meaning, and 0 means no limit in both.
    maximum = asr.max_interruptions or limits.max_per_call
    if limits.disabled or (maximum and conversation.interruptions >= maximum):
        return False
    # The words before the caller's first turn have switches of their own, which decide alone.
    if conversation.turns == 0:
        return asr.barge_in_on_first_turn or limits.on_first_turn
    step = conversation.step
    candidates = (step.barge_in if step else None, conversation.position_settings.barge_in, asr.barge_in)
    return next((wish for wish in candidates if wish is not None), True)


def _digits(conversation: Conversation, step: Step | None) -> DigitSettings | None:
    # A step without `dtmf_config` takes keys as the project does (`dtmf.global`), where that is enabled.
    config = (step.dtmf if step is not None else None) or conversation.project.experimental.digits
    if config is None:
        return None
    return DigitSettings(
        max_digits=config.max_digits,
        end_key=config.end_key,
        first_digit_timeout=conversation.position_settings.first_digit_timeout or 5.0,
        inter_digit_timeout=config.inter_digit_timeout,
        while_speaking=config.while_speaking,
        is_pii=config.is_pii,
    )


def _listen_digits(dtmf: JsonObject, base: DigitSettings | None) -> DigitSettings:
    base = base or DigitSettings()
    return DigitSettings(
        # A function names only what it changes; everything else stays as the step or the project has it.
        max_digits=max(0, int(positive_or_none(dtmf.get("num_digits")) or base.max_digits)),
        end_key=str(dtmf.get("finish_on_key") or base.end_key),
        first_digit_timeout=positive_or_none(dtmf.get("first_digit_timeout")) or base.first_digit_timeout,
        inter_digit_timeout=positive_or_none(dtmf.get("inter_digit_timeout")) or base.inter_digit_timeout,
        while_speaking=bool(dtmf.get("early_listening", base.while_speaking)),
        is_pii=bool(dtmf.get("is_pii", base.is_pii)),
    )


def _listen_barge_in(listen: JsonObject) -> bool | None:
    enabled = object_at(listen, "barge_in").get("is_enabled")
    return enabled if isinstance(enabled, bool) else None


def _endpointing(conversation: Conversation, step: Step | None) -> float | None:
    """Return the seconds of silence that end the caller's turn; None: not set."""
    if step is not None and step.speech_end is not None:
        return step.speech_end
    # The experimental value may be in milliseconds: as_seconds() recognises them by the size.
    return as_seconds(conversation.position_settings.speech_end) or conversation.project.voice.asr.speech_end


def _biasing(conversation: Conversation, step: Step | None) -> Biasing:
    if step is None:
        return Biasing()
    if step.biasing is not None:
        return step.biasing
    entities = conversation.project.entities
    # A default step has no recognition settings, but the entities that it collects tell what answer to expect.
    kinds = (_ENTITY_KINDS.get(entities[name].type) for name in step.entities if name in entities)
    return Biasing(tuple(kind for kind in kinds if kind))


def _expected(conversation: Conversation, step: Step | None) -> str:
    return " ".join(_EXPECTED[kind] for kind in _biasing(conversation, step).kinds)


def _keywords(conversation: Conversation, step: Step | None, asr: JsonObject) -> tuple[str, ...]:
    listen_words = tuple(str(word) for word in list_at(asr, "keywords"))
    words = (*listen_words, *conversation.keywords, *_biasing(conversation, step).keywords)
    # The most specific keywords come first, because recognisers take a bounded number and drop the rest.
    return tuple(dict.fromkeys((*words, *conversation.project.voice.keyphrases)))


_SPOKEN_CHANNELS = ("voice",)
"""Channels on which a caller can go on speaking while a function waits."""


def seconds_before_function(conversation: Conversation, function: ProjectFunction) -> float:
    """Return the seconds between the model's tool call and the function's start; 0 for text conversations."""
    if not conversation.position_settings.waits_before_functions:
        return 0.0
    # A written message is complete when it arrives, so a wait would only delay the answer.
    if conversation.channel not in _SPOKEN_CHANNELS or conversation.info.wire == "text":
        return 0.0
    waits, flow = conversation.project.experimental.function_waits, conversation.position.flow
    if waits.nongated.lists(flow, function.name):
        return 0.0
    return waits.gated_wait if waits.gated.lists(flow, function.name) else waits.default_wait


def is_hidden_when_reopened(conversation: Conversation, function: str) -> bool:
    """Return whether a function's call is removed from the history when the caller goes on with the turn.

    This holds for functions that ran without waiting; their effects stand.
    """
    # The function may have moved the call to another flow than it ran in, so the lists of all flows count.
    return conversation.project.experimental.function_waits.nongated.lists_anywhere(function)
