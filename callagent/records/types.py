"""What is kept of a call. Field names are those of the flow format's conversation record, so that reports fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Privacy(Enum):
    """What redaction does with a field. A field that declares nothing holds words: its texts are redacted."""

    STRUCTURE = "structure"
    """Times, names of ours and what deletion by caller needs: kept as it is."""
    CONTENT = "content"
    """Filled by projects and callers: no name in it is ours, so names of keys are redacted like texts."""
    SIGNALLING = "signalling"
    """SIP messages: routing stays readable, other headers are redacted."""


STRUCTURE: Final = MappingProxyType({"privacy": Privacy.STRUCTURE})
CONTENT: Final = MappingProxyType({"privacy": Privacy.CONTENT})
SIGNALLING: Final = MappingProxyType({"privacy": Privacy.SIGNALLING})


@dataclass(slots=True)
class FunctionRecord:
    """One function run."""

    number: int = field(metadata=STRUCTURE)
    name: str
    arguments: dict[str, Any] = field(metadata=CONTENT)
    result: Any = field(default=None, metadata=CONTENT)
    error: str | None = field(default=None, metadata=CONTENT)
    started_at: float = field(default=0.0, metadata=STRUCTURE)
    """Seconds since the call began, as all `…_at` below."""
    duration_ms: float = field(default=0.0, metadata=STRUCTURE)
    logs: list[dict[str, Any]] = field(default_factory=list, metadata=CONTENT)
    state_changes: dict[str, Any] = field(default_factory=dict, metadata=CONTENT)
    transition: dict[str, Any] | None = None


@dataclass(slots=True)
class RequestRecord:
    """One request to the language model and what came of it."""

    flow: str | None
    step: str | None
    """Where the call stood when the model was asked."""
    requested_at: float
    duration_ms: float = field(metadata=STRUCTURE)
    input_tokens: int = 0
    """Zero where the provider does not count."""
    output_tokens: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    """`{"name", "arguments"}`; without arguments where the caller's key presses are not to be kept."""
    error: str | None = field(default=None, metadata=CONTENT)
    first_token_at: float | None = None


@dataclass(slots=True)
class Spoken:
    """One utterance of the agent, as the caller got it."""

    text: str
    kind: str
    """`speech`, `filler`."""
    started_at: float = field(metadata=STRUCTURE)
    ended_at: float | None = field(default=None, metadata=STRUCTURE)
    heard: str = ""
    interrupted: bool = False


@dataclass(slots=True)
class TurnEntry:
    """One turn: what the caller did and what the agent did about it."""

    number: int = field(metadata=STRUCTURE)
    user_input: str = ""
    user_input_dtmf: str = ""
    user_input_datetime: str = field(default="", metadata=STRUCTURE)
    agent_response: str = ""
    """What the caller heard."""
    agent_response_datetime: str = field(default="", metadata=STRUCTURE)
    barge_in: bool = False
    """The caller interrupted this turn's agent response."""
    is_silence: bool = False
    flow: str | None = None
    step: str | None = None
    latency: dict[str, float | None] = field(default_factory=dict, metadata=STRUCTURE)
    """Seconds: `response` (end of speech to first audio) and its parts `endpointing`, `transcription`, `token`,
    `functions`, `voice`, `wire`; and `barge_in`."""
    instants: dict[str, float | None] = field(default_factory=dict, metadata=STRUCTURE)
    """Seconds since the call began."""
    functions: list[FunctionRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)
    pauses: list[dict[str, Any]] = field(default_factory=list, metadata=STRUCTURE)
    """Playout pauses: `{"at", "ended_at", "resumed"}`."""


@dataclass(slots=True)
class CallRecord:
    id: str = field(metadata=STRUCTURE)
    project_id: str = field(default="", metadata=STRUCTURE)
    account_id: str = field(default="", metadata=STRUCTURE)
    environment: str = field(default="sandbox", metadata=STRUCTURE)
    channel: str = field(default="VOICE-SIP", metadata=STRUCTURE)
    direction: str = field(default="inbound", metadata=STRUCTURE)
    wire: str = field(default="", metadata=STRUCTURE)
    peer_call_id: str | None = field(default=None, metadata=STRUCTURE)
    from_number: str | None = field(default=None, metadata=STRUCTURE)
    to_number: str | None = field(default=None, metadata=STRUCTURE)
    started_at: str = field(default="", metadata=STRUCTURE)
    answered_at: str | None = field(default=None, metadata=STRUCTURE)
    ended_at: str | None = field(default=None, metadata=STRUCTURE)
    in_progress: bool = True
    total_duration: float = field(default=0.0, metadata=STRUCTURE)
    end_reason: str | None = field(default=None, metadata=STRUCTURE)
    hang_up_headers: dict[str, str] = field(default_factory=dict)
    """Of the BYE, CANCEL or refusal by which a trusted peer ended the call."""
    hang_up_causes: list[str] = field(default_factory=list)
    """What its Reason headers say (RFC 3326): `Q.850 16`, `SIP 200`."""
    variant_name: str | None = field(default=None, metadata=STRUCTURE)
    language: str | None = None
    flow: str | None = None
    step: str | None = None
    handoff: bool = False
    handoff_reason: str | None = None
    handoff_destination: str | None = None
    handoff_outcome: str | None = None
    num_turns: int = 0
    num_silences: int = 0
    end_function: str = "none"
    """`none`, `done`, `failed`."""
    metrics: list[dict[str, Any]] = field(default_factory=list, metadata=CONTENT)
    state: dict[str, Any] = field(default_factory=dict, metadata=CONTENT)
    entities: dict[str, Any] = field(default_factory=dict, metadata=CONTENT)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Text messages and e-mails that the agent sent."""
    turns: list[TurnEntry] = field(default_factory=list)
    digits: list[dict[str, Any]] = field(default_factory=list, metadata=STRUCTURE)
    transfers: list[dict[str, Any]] = field(default_factory=list, metadata=STRUCTURE)
    """`{"target", "method", "status", "detail", "at"}`, tried in this order."""
    media: dict[str, Any] = field(default_factory=dict, metadata=STRUCTURE)
    recording: str | None = field(default=None, metadata=STRUCTURE)
    errors: list[dict[str, Any]] = field(default_factory=list)
    provider_failures: list[dict[str, Any]] = field(default_factory=list)
    """`{"role", "provider", "error", "at"}`: what was done by the next of the line-up, if there was one."""
    limits_reached: list[dict[str, Any]] = field(default_factory=list)
    """`{"limit", "detail", "at"}`: what was refused because of a setting below `limits`, or `messages.recipients`."""
    underruns: int = 0
    """Gaps within the agent's utterances because a voice was too slow."""
    signalling: list[dict[str, Any]] = field(default_factory=list, metadata=SIGNALLING)
    """SIP messages: `{"at", "sent", "peer", "line", "text"}`; `at` is ISO 8601."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallRecord:
        """The record that `to_json` gave, also one of another version: fields that it lacks have their defaults."""
        turns = [_turn(turn) for turn in data["turns"]]
        return _known(cls, {**data, "turns": turns})


def _declared_privacy() -> dict[str, Privacy]:
    declared = {"at": Privacy.STRUCTURE}
    for kind in (CallRecord, TurnEntry, FunctionRecord, RequestRecord, Spoken):
        for one in fields(kind):
            if "privacy" in one.metadata:
                declared[one.name] = one.metadata["privacy"]
    return declared


PRIVACY: Final = MappingProxyType(_declared_privacy())
"""Privacy by name of field, wherever it stands in a record as JSON; `at` is the time in the entries of its lists."""


def _turn(data: Mapping[str, Any]) -> TurnEntry:
    nested: dict[str, list[Any]] = {
        "functions": [_known(FunctionRecord, one) for one in data["functions"]],
        "requests": [_known(RequestRecord, one) for one in data["requests"]],
        "spoken": [_known(Spoken, one) for one in data["spoken"]],
    }
    return _known(TurnEntry, {**data, **nested})


def _known(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass made of those of `data` that are fields of it."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in data.items() if name in names})
