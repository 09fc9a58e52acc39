"""What is kept of a call. Field names are those of the flow format's conversation record, so that reports fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class FunctionRecord:
    """One function run."""

    number: int
    name: str
    arguments: dict[str, Any]
    result: Any = None
    error: str | None = None
    started_at: float = 0.0
    """Seconds since the call began, as all `…_at` below."""
    duration_ms: float = 0.0
    logs: list[dict[str, Any]] = field(default_factory=list)
    state_changes: dict[str, Any] = field(default_factory=dict)
    transition: dict[str, Any] | None = None


@dataclass(slots=True)
class RequestRecord:
    """One request to the language model and what came of it."""

    flow: str | None
    step: str | None
    """Where the call stood when the model was asked."""
    requested_at: float
    duration_ms: float
    input_tokens: int = 0
    """Zero where the provider does not count."""
    output_tokens: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    """`{"name", "arguments"}`; without arguments where the caller's key presses are not to be kept."""
    error: str | None = None
    first_token_at: float | None = None


@dataclass(slots=True)
class Spoken:
    """One utterance of the agent, as the caller got it."""

    text: str
    kind: str
    """`speech`, `filler`."""
    started_at: float
    ended_at: float | None = None
    heard: str = ""
    interrupted: bool = False


@dataclass(slots=True)
class TurnEntry:
    """One turn: what the caller did and what the agent did about it."""

    number: int
    user_input: str = ""
    user_input_dtmf: str = ""
    user_input_datetime: str = ""
    agent_response: str = ""
    """What the caller heard."""
    agent_response_datetime: str = ""
    barge_in: bool = False
    """The caller interrupted this turn's agent response."""
    is_silence: bool = False
    flow: str | None = None
    step: str | None = None
    latency: dict[str, float | None] = field(default_factory=dict)
    """Seconds: `response` (end of speech to first audio) and its parts `endpointing`, `transcription`, `token`,
    `functions`, `voice`, `wire`; and `barge_in`."""
    instants: dict[str, float | None] = field(default_factory=dict)
    """Seconds since the call began."""
    functions: list[FunctionRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)
    pauses: list[dict[str, Any]] = field(default_factory=list)
    """Playout pauses: `{"at", "ended_at", "resumed"}`."""


@dataclass(slots=True)
class CallRecord:
    id: str
    project_id: str = ""
    account_id: str = ""
    environment: str = "sandbox"
    channel: str = "VOICE-SIP"
    direction: str = "inbound"
    wire: str = ""
    peer_call_id: str | None = None
    from_number: str | None = None
    to_number: str | None = None
    started_at: str = ""
    answered_at: str | None = None
    ended_at: str | None = None
    in_progress: bool = True
    total_duration: float = 0.0
    end_reason: str | None = None
    hang_up_headers: dict[str, str] = field(default_factory=dict)
    """Of the BYE, CANCEL or refusal by which a trusted peer ended the call."""
    hang_up_causes: list[str] = field(default_factory=list)
    """What its Reason headers say (RFC 3326): `Q.850 16`, `SIP 200`."""
    variant_name: str | None = None
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
    metrics: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    entities: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Text messages and e-mails that the agent sent."""
    turns: list[TurnEntry] = field(default_factory=list)
    digits: list[dict[str, Any]] = field(default_factory=list)
    transfers: list[dict[str, Any]] = field(default_factory=list)
    """`{"target", "method", "status", "detail", "at"}`, tried in this order."""
    media: dict[str, Any] = field(default_factory=dict)
    recording: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    provider_failures: list[dict[str, Any]] = field(default_factory=list)
    """`{"role", "provider", "error", "at"}`: what was done by the next of the line-up, if there was one."""
    limits_reached: list[dict[str, Any]] = field(default_factory=list)
    """`{"limit", "detail", "at"}`: what was refused because of a setting below `limits`, or `messages.recipients`."""
    underruns: int = 0
    """Gaps within the agent's utterances because a voice was too slow."""
    signalling: list[dict[str, Any]] = field(default_factory=list)
    """SIP messages: `{"at", "sent", "peer", "line", "text"}`; `at` is ISO 8601."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallRecord:
        """The record that `to_json` gave, also one of another version: fields that it lacks have their defaults."""
        turns = [_turn(turn) for turn in data["turns"]]
        return _known(cls, {**data, "turns": turns})


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
