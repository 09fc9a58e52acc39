"""The documents of steps and topics: `flows/<flow>/steps/*.yaml`, `topics/` and `child_topics/`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from callagent.agents.kernel import Reader

BIAS_KINDS = (
    "address", "alphanumeric", "name_spelling", "numeric", "party_size", "precise_date", "relative_date",
    "single_number", "time", "yes_no",
)  # fmt: skip
_STEP_NAME = re.compile(r"[\w ,/.&-]+")


@dataclass(frozen=True, slots=True)
class Biasing:
    """What the recogniser should expect at a step."""

    kinds: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DtmfConfig:
    """How key presses (DTMF) are collected at a step."""

    max_digits: int = 0
    """0: any number."""
    end_key: str = ""
    inter_digit_timeout: float = 2.0
    """Seconds after a digit in which the next one may come."""
    while_speaking: bool = False
    is_pii: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    name: str
    description: str
    exits: bool
    """True: leaves the flow; False: goes to `child_step`."""
    child_step: str | None
    required_entities: tuple[str, ...]
    line: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    prompt: str
    is_default: bool
    """True: a default step (entities and conditions); False: an advanced step."""
    file: str
    prompt_line: int = 1
    biasing: Biasing | None = None
    dtmf: DtmfConfig | None = None
    barge_in: bool | None = None
    speech_end: float | None = None
    """Seconds of silence that end the caller's turn (`vad.vad_end`)."""
    ignored: tuple[str, ...] = ()
    """Settings of the step that this server ignores, such as `asr.provider`."""
    model: str = ""
    """The platform's model name; empty: the project's."""
    entities: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()


def load_step(root: Reader) -> Step:
    kind = root.text("step_type")
    if kind not in ("advanced_step", "default_step"):
        root.error(f"'step_type' should be advanced_step or default_step, not '{kind}'.", "step_type")
    name = root.required_text("name")
    if name and not _STEP_NAME.fullmatch(name):
        root.error(f"Step name '{name}' may hold letters, digits, space and _ & , / . - only.", "name")
    is_default = kind == "default_step"
    return Step(
        name=name,
        prompt=root.required_text("prompt"),
        is_default=is_default,
        file=root.document.file,
        prompt_line=root.text_line("prompt"),
        biasing=_read_biasing(root.map("asr_biasing")),
        dtmf=_read_dtmf(root.map("dtmf_config")),
        # None is not False: a step that says nothing leaves the decision to its flow.
        barge_in=root.map("barge_in").flag("is_enabled") if "barge_in" in root else None,
        speech_end=as_seconds(root.map("vad").number("vad_end")),
        ignored=tuple(_ignored_settings(root)),
        model=root.map("llm").text("provider_model_id"),
        # These fields have no effect in an advanced step, which collects nothing by itself.
        entities=root.texts("extracted_entities") if is_default else (),
        conditions=tuple(_read_condition(each) for each in root.maps("conditions")) if is_default else (),
    )


def _ignored_settings(root: Reader) -> Iterator[str]:
    for section, honoured in (("asr", ()), ("vad", ("vad_end",)), ("llm", ("provider_model_id",))):
        values = root.map(section)
        yield from (f"{section}.{key}" for key in values.names() if key not in honoured and key in values)


def as_seconds(value: float | None, milliseconds_over: float = 20.0) -> float | None:
    """Return a duration in seconds; None: not set.

    Projects write seconds in one place and milliseconds in another: a value above `milliseconds_over` is milliseconds.
    """
    if not value or value < 0:
        return None
    return value / 1000 if value > milliseconds_over else value


def _read_biasing(reader: Reader) -> Biasing | None:
    if not reader.flag("is_enabled", True) or not any(True for _ in reader.names()):
        return None
    return Biasing(tuple(kind for kind in BIAS_KINDS if reader.flag(kind)), reader.texts("custom_keywords"))


def _read_dtmf(reader: Reader) -> DtmfConfig | None:
    for key in ("inter_digit_timeout", "max_digits"):
        # -1 stands for any number of digits.
        if (reader.number(key) or 0) < 0 and not (key == "max_digits" and reader.number(key) == -1):
            reader.error(f"'{key}' should not be negative.", key)
    if not reader.flag("is_enabled"):
        return None
    return DtmfConfig(
        max_digits=max(0, int(reader.number("max_digits") or 0)),
        # YAML reads `end_key: 0` as a number.
        end_key=str(reader.raw("end_key") if reader.raw("end_key") is not None else ""),
        inter_digit_timeout=as_seconds(reader.number("inter_digit_timeout"), 60.0) or 2.0,
        while_speaking=reader.flag("collect_while_agent_speaking"),
        is_pii=reader.flag("is_pii"),
    )


def _read_condition(reader: Reader) -> Condition:
    kind = reader.text("condition_type", "step_condition")
    if kind not in ("step_condition", "exit_flow_condition"):
        reader.error(
            f"'condition_type' should be step_condition or exit_flow_condition, not '{kind}'.", "condition_type"
        )
    exits = kind == "exit_flow_condition"
    if not exits and not reader.text("child_step"):
        reader.error("A step_condition needs 'child_step'.", "name")
    return Condition(
        name=reader.required_text("name"),
        description=reader.text("description"),
        exits=exits,
        child_step=None if exits else reader.text("child_step") or None,
        required_entities=reader.texts("required_entities"),
        line=reader.line(),
    )


MAX_EXAMPLES = 20
"""Example queries of one topic."""


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    content: str
    actions: str
    examples: tuple[str, ...]
    file: str
    actions_line: int = 1
    variant: str | None = None
    """The only variant in which a child topic exists; None: not a child topic."""


def load_topic(root: Reader, variant: str | None = None) -> Topic | None:
    """Read a topic; return None if it is disabled. `variant` is given for a child topic."""
    file = root.document.file
    examples = root.texts("example_queries")
    if len(examples) > MAX_EXAMPLES:
        remedy = f"This one has {len(examples)}: keep those that differ most."
        root.error(f"A topic has at most {MAX_EXAMPLES} example queries. {remedy}", "example_queries")
    if variant is not None and "tags" in root:
        root.error("Child topics cannot have tags. Remove 'tags'.", "tags")
    topic = Topic(
        # A topic without a name is called by its path below `topics/`.
        name=root.text("name") or str(PurePosixPath(*PurePosixPath(file).parts[1:]).with_suffix("")),
        content=root.text("content"),
        actions=root.text("actions"),
        examples=examples,
        file=file,
        actions_line=root.text_line("actions"),
        variant=variant,
    )
    return topic if root.flag("enabled", True) else None
