"""The record of a call: its fields, and for each of them what redaction does with it and who may read it.

Field names are those of the flow format's conversation record, so that reports written for that format fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, TypedDict, TypeVar, get_type_hints

from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, objects_at

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")


class Privacy(Enum):
    """What redaction does with a field. A field that declares nothing holds words: its texts are redacted."""

    STRUCTURE = "structure"
    """Times, callagent's own names, and the numbers that deletion by caller needs: kept unchanged."""
    CONTENT = "content"
    """Filled by projects and callers: its keys are not callagent's, so they are redacted like texts."""
    SIGNALLING = "signalling"
    """SIP messages: routing stays readable, other headers are redacted."""


# A field declares two things separately. `privacy` is about writing: what redaction removes before the record reaches a
# disk. `shown` is about reading: whether an account without the right `personal` sees the field's text.
# A field that declares neither is redacted and hidden, so that one that is added later reveals nothing by accident.
STRUCTURE: Final = MappingProxyType({"privacy": Privacy.STRUCTURE})
CONTENT: Final = MappingProxyType({"privacy": Privacy.CONTENT})
SIGNALLING: Final = MappingProxyType({"privacy": Privacy.SIGNALLING})
SHOWN: Final = MappingProxyType({"shown": True})
"""The text says neither who called nor what was spoken."""
SHOWN_STRUCTURE: Final = MappingProxyType({**STRUCTURE, **SHOWN})
ShownText = Annotated[str, "shown"]
"""A text of an entry in one of the record's lists that is declared as `SHOWN`."""


class PauseEntry(TypedDict):
    """A time in which playout was paused because somebody might have interrupted the agent."""

    at: float
    ended_at: float | None
    resumed: bool | None
    """Whether the agent went on; None: the pause is not over."""


class DigitEntry(TypedDict):
    """A key that the caller pressed."""

    digit: str
    """`•` for a secret one."""
    at: float


class TransferEntry(TypedDict):
    """A transfer that was tried."""

    target: str
    uri: str
    method: ShownText
    status: ShownText
    detail: str
    at: float


class ErrorEntry(TypedDict):
    """Something that failed in the call."""

    what: ShownText
    """The part that failed, such as `voice` or `model`."""
    detail: str
    at: float


class ProviderFailure(TypedDict):
    """A failure of a provider; the next one of the line-up, if there was one, took over."""

    role: ShownText
    provider: ShownText
    error: str
    at: float


class LimitEntry(TypedDict):
    """A call, transfer or message that was refused because of a setting in `limits`, or `messages.recipients`."""

    limit: ShownText
    detail: str
    at: float


class MetricEntry(TypedDict, total=False):
    """A metric that the project wrote."""

    name: ShownText
    value: object
    written_at: ShownText


class MessageEntry(TypedDict, total=False):
    """Those members of a text message or e-mail of the agent that everybody may read."""

    kind: ShownText
    template: ShownText
    status: ShownText


class TransitionEntry(TypedDict, total=False):
    """Where a function sent the conversation."""

    goto_flow: ShownText
    goto_step: ShownText


class SignallingEntry(TypedDict):
    """A SIP message of the call."""

    at: ShownText
    """ISO 8601; in the other entries `at` is a number of seconds."""
    sent: bool
    peer: str
    line: str
    text: str


@dataclass(slots=True)
class FunctionRecord:
    """One function run."""

    number: int = field(default=0, metadata=STRUCTURE)
    name: str = field(default="", metadata=SHOWN)
    arguments: JsonObject = field(default_factory=dict, metadata=CONTENT)
    result: JsonValue = field(default=None, metadata=CONTENT)
    error: str | None = field(default=None, metadata=CONTENT)
    started_at: float = field(default=0.0, metadata=STRUCTURE)
    """Seconds since the call began, as all `…_at` below."""
    duration_ms: float = field(default=0.0, metadata=STRUCTURE)
    logs: Sequence[JsonObject] = field(default_factory=list, metadata=CONTENT)
    state_changes: JsonObject = field(default_factory=dict, metadata=CONTENT)
    transition: JsonObject | None = None
    """A `TransitionEntry`, with further members of the format's engine."""


@dataclass(slots=True)
class RequestRecord:
    """One request to the language model and its outcome."""

    flow: str | None = field(default=None, metadata=SHOWN)
    step: str | None = field(default=None, metadata=SHOWN)
    """The position of the call when the model was asked."""
    requested_at: float = 0.0
    duration_ms: float = field(default=0.0, metadata=STRUCTURE)
    input_tokens: int = 0
    """Zero where the provider does not count."""
    output_tokens: int = 0
    calls: Sequence[JsonObject] = field(default_factory=list)
    """`{"name", "arguments"}` of each function call; no arguments if they may hold key presses that are secret."""
    error: str | None = field(default=None, metadata=CONTENT)
    first_token_at: float | None = None


@dataclass(slots=True)
class Spoken:
    """One utterance of the agent, as the caller got it."""

    text: str = ""
    kind: str = field(default="speech", metadata=SHOWN)
    """`speech` or `filler`."""
    started_at: float = field(default=0.0, metadata=STRUCTURE)
    ended_at: float | None = field(default=None, metadata=STRUCTURE)
    heard: str = ""
    """The part of `text` that was played."""
    interrupted: bool = False


@dataclass(slots=True)
class TurnEntry:
    """One turn: what the caller did and what the agent did about it."""

    number: int = field(default=0, metadata=STRUCTURE)
    user_input: str = ""
    user_input_dtmf: str = ""
    user_input_datetime: str = field(default="", metadata=SHOWN_STRUCTURE)
    agent_response: str = ""
    """What the caller heard."""
    agent_response_datetime: str = field(default="", metadata=SHOWN_STRUCTURE)
    barge_in: bool = False
    """Whether the caller interrupted this turn's agent response."""
    is_silence: bool = False
    flow: str | None = field(default=None, metadata=SHOWN)
    step: str | None = field(default=None, metadata=SHOWN)
    latency: dict[str, float | None] = field(default_factory=dict, metadata=STRUCTURE)
    """Seconds: `response` (end of speech to first audio) and its parts `endpointing`, `transcription`, `token`,
    `functions`, `voice`, `wire`; and `barge_in`."""
    instants: dict[str, float | None] = field(default_factory=dict, metadata=STRUCTURE)
    """Seconds since the call began."""
    functions: list[FunctionRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)
    pauses: list[PauseEntry] = field(default_factory=list, metadata=STRUCTURE)


@dataclass(slots=True)
class CallRecord:
    """The record of a call. It is filled while the call runs, and final when `in_progress` is false."""

    id: str = field(metadata=SHOWN_STRUCTURE)
    project_id: str = field(default="", metadata=SHOWN_STRUCTURE)
    account_id: str = field(default="", metadata=SHOWN_STRUCTURE)
    environment: str = field(default="sandbox", metadata=SHOWN_STRUCTURE)
    channel: str = field(default="VOICE-SIP", metadata=SHOWN_STRUCTURE)
    direction: str = field(default="inbound", metadata=SHOWN_STRUCTURE)
    wire: str = field(default="", metadata=SHOWN_STRUCTURE)
    peer_call_id: str | None = field(default=None, metadata=SHOWN_STRUCTURE)
    # The numbers are kept as they are: deletion by caller finds its calls by them. To readers they are masked.
    from_number: str | None = field(default=None, metadata=STRUCTURE)
    to_number: str | None = field(default=None, metadata=STRUCTURE)
    started_at: str = field(default="", metadata=SHOWN_STRUCTURE)
    answered_at: str | None = field(default=None, metadata=SHOWN_STRUCTURE)
    ended_at: str | None = field(default=None, metadata=SHOWN_STRUCTURE)
    in_progress: bool = True
    total_duration: float = field(default=0.0, metadata=STRUCTURE)
    end_reason: str | None = field(default=None, metadata=SHOWN_STRUCTURE)
    hang_up_headers: dict[str, str] = field(default_factory=dict)
    """Headers of the BYE, CANCEL or refusal by which a trusted peer ended the call."""
    hang_up_causes: list[str] = field(default_factory=list)
    """Causes in that message's Reason headers (RFC 3326), such as `Q.850 16` or `SIP 200`."""
    variant_name: str | None = field(default=None, metadata=SHOWN_STRUCTURE)
    language: str | None = field(default=None, metadata=SHOWN)
    flow: str | None = field(default=None, metadata=SHOWN)
    step: str | None = field(default=None, metadata=SHOWN)
    handoff: bool = False
    handoff_reason: str | None = None
    handoff_destination: str | None = None
    handoff_outcome: str | None = field(default=None, metadata=SHOWN)
    num_turns: int = 0
    num_silences: int = 0
    end_function: str = field(default="none", metadata=SHOWN)
    """`none`, `done` or `failed`."""
    metrics: Sequence[JsonObject] = field(default_factory=list, metadata=CONTENT)
    """Each a `MetricEntry`, in the order written."""
    state: JsonObject = field(default_factory=dict, metadata=CONTENT)
    entities: JsonObject = field(default_factory=dict, metadata=CONTENT)
    messages: Sequence[JsonObject] = field(default_factory=list)
    """Text messages and e-mails that the agent sent; each a `MessageEntry` with its addresses and words."""
    turns: list[TurnEntry] = field(default_factory=list)
    digits: list[DigitEntry] = field(default_factory=list, metadata=STRUCTURE)
    transfers: list[TransferEntry] = field(default_factory=list, metadata=STRUCTURE)
    """In the order in which they were tried."""
    media: JsonObject = field(default_factory=dict, metadata=STRUCTURE)
    """`MediaStatistics` of the caller's leg; empty: there was no media."""
    recording: str | None = field(default=None, metadata=STRUCTURE)
    errors: list[ErrorEntry] = field(default_factory=list)
    provider_failures: list[ProviderFailure] = field(default_factory=list)
    limits_reached: list[LimitEntry] = field(default_factory=list)
    underruns: int = 0
    """Gaps within the agent's utterances because a voice was too slow."""
    signalling: Sequence[JsonObject] = field(default_factory=list, metadata=SIGNALLING)
    """Each a `SignallingEntry`."""

    def to_json(self) -> MutableJsonObject:
        """Return the record as JSON data: a copy that later events of the call do not change."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: JsonObject) -> CallRecord:
        """Return the record of which `to_json` returned `data`.

        `data` may be of another version: a field that it lacks gets its default, an unknown one is left out.
        """
        turns = [_turn_from_json(turn) for turn in objects_at(data, "turns")]
        return _of_known_fields(CallRecord, {**data, "turns": turns})


def _turn_from_json(data: JsonObject) -> TurnEntry:
    nested = {
        "functions": [_of_known_fields(FunctionRecord, one) for one in objects_at(data, "functions")],
        "requests": [_of_known_fields(RequestRecord, one) for one in objects_at(data, "requests")],
        "spoken": [_of_known_fields(Spoken, one) for one in objects_at(data, "spoken")],
    }
    return _of_known_fields(TurnEntry, {**data, **nested})


def _of_known_fields(kind: type[D], data: Mapping[str, object]) -> D:
    """Return a `kind` made of the members of `data` that are its fields. Raises `TypeError` if one is missing."""
    make: Callable[..., D] = kind
    names = {one.name for one in fields(kind)}
    return make(**{name: value for name, value in data.items() if name in names})


_TYPES: Final = (CallRecord, TurnEntry, FunctionRecord, RequestRecord, Spoken)
_ENTRIES: Final = (
    *(PauseEntry, DigitEntry, TransferEntry, ErrorEntry, ProviderFailure, LimitEntry),
    *(MetricEntry, MessageEntry, TransitionEntry, SignallingEntry),
)


def _declared_privacy() -> dict[str, Privacy]:
    # Redaction walks through a record as JSON, where a value has a name but no type. So a name must mean the same in
    # every type; a test checks this.
    declared = {"at": Privacy.STRUCTURE}
    for one in (each for kind in _TYPES for each in fields(kind)):
        if "privacy" in one.metadata:
            declared[one.name] = one.metadata["privacy"]
    return declared


PRIVACY: Final = MappingProxyType(_declared_privacy())
"""Privacy by field name, at any depth of a record as JSON; `at` is the time in the entries of its lists."""


def _declared_shown() -> Iterator[str]:
    for one in (each for kind in _TYPES for each in fields(kind)):
        if one.metadata.get("shown"):
            yield one.name
    for kind in _ENTRIES:
        hints = get_type_hints(kind, include_extras=True)
        yield from (name for name, hint in hints.items() if hint == ShownText)


SHOWN_TEXTS: Final = frozenset(_declared_shown())
"""Names of the fields whose texts an account without the right `personal` may read, too."""
