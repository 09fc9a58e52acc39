"""What an agent asks of the call: the actions that `Agent.start` and `Agent.reply` yield, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from callagent.call_info import NO_HEADERS, EndReason, RecordingWish


@dataclass(frozen=True, slots=True)
class DelayResponse:
    """One filler of a slow function."""

    text: str
    duration: float
    """Expected seconds; paces sound effects. Speech takes its true length."""


@dataclass(frozen=True, slots=True)
class LatencyControl:
    """What is said while a function runs (`@func_latency_control`)."""

    delay_before_start: float
    """Seconds from the start of the function to the first response."""
    silence_after_each: float
    responses: tuple[DelayResponse, ...]


@dataclass(frozen=True, slots=True)
class DigitSettings:
    """How key presses are collected in the next turn."""

    max_digits: int = 0
    """0: no limit."""
    end_key: str = ""
    """Empty: none. The key itself is not part of the digits."""
    end_key_alone: bool = False
    """The end key before any digit is an answer of its own; otherwise it answers nothing."""
    first_digit_timeout: float = 5.0
    inter_digit_timeout: float = 2.0
    while_speaking: bool = False
    """Keys pressed while the agent speaks count (and stop it)."""
    is_pii: bool = False
    """Digits are kept out of log, transcript and record."""


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """How the caller's next turn is taken. None: the call's default."""

    no_input_timeout: float | None = None
    """Seconds of silence until an empty turn."""
    barge_in: bool | None = None
    digits: DigitSettings | None = None
    speech: bool = True
    """False: only key presses."""
    endpointing: float | None = None
    """Seconds of silence that end the caller's turn."""
    unfinished: float | None = None
    """The same where more seems to come: a trailing "and", fewer digits than asked for."""
    turn_threshold: float | None = None
    """Probability from which a turn model's opinion is that the caller has finished."""
    eager_final: bool = False
    """The turn is answered from the last partial transcript; the final one is not waited for."""
    longest_turn: float | None = None
    """Seconds after which the caller's turn is taken, though the caller goes on."""
    expected: str = ""
    """An example of the expected answer, for recognisers that take one."""
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Say:
    """Words for the caller: a whole utterance or one sentence of a streamed answer."""

    text: str
    interruptible: bool = True
    channel: str = "speech"
    """`speech`, or `dtmf`: the text is digits to send."""
    pcm: bytes | None = None
    """A recording that is played in the place of a voice: 16-bit mono samples at the call's rate."""
    cancellable: bool = False
    """It covers a wait: what is said next takes its place, at the next one's first sound."""


@dataclass(frozen=True, slots=True)
class Listen:
    """The agent is done: the caller has the floor. The last action of every turn that does not end the call."""

    settings: ListenSettings = ListenSettings()


@dataclass(frozen=True, slots=True)
class FunctionStarted:
    number: int
    """Counts the call's functions from 1; FunctionEnded has the same."""
    name: str
    arguments: Mapping[str, Any]
    latency: LatencyControl | None = None


@dataclass(frozen=True, slots=True)
class FunctionEnded:
    number: int
    name: str
    arguments: Mapping[str, Any]
    result: Any
    """What the function returned, as JSON data."""
    error: str | None
    duration_ms: float
    logs: Sequence[Mapping[str, Any]] = ()
    state_changes: Mapping[str, Any] = field(default_factory=dict)
    """`{"added": {…}, "updated": {…}, "removed": […]}`"""
    transition: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class WaitStarted:
    """The agent waits for its model; what is said meanwhile follows the rules of a slow function's fillers."""

    number: int
    """Counts down from -1, so that no function has it; WaitEnded has the same."""
    latency: LatencyControl


@dataclass(frozen=True, slots=True)
class WaitEnded:
    number: int


@dataclass(frozen=True, slots=True)
class StepEntered:
    flow: str | None
    step: str | None


@dataclass(frozen=True, slots=True)
class MetricWritten:
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """One request to the language model is done; instants are the loop's monotonic seconds."""

    requested: float
    first_token: float | None
    finished: float
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    """The provider failed: the class of the error and its text."""
    calls: Sequence[Mapping[str, Any]] = ()
    """What the model asked for, `{"name", "arguments"}` each."""


@dataclass(frozen=True, slots=True)
class LimitReached:
    """Something that the agent wanted was refused because of a limit; the agent knows already."""

    limit: str
    """The setting below `limits`, such as `messages`."""
    detail: str


@dataclass(frozen=True, slots=True)
class Handoff:
    """After the words said so far have been played, give the call to somebody else."""

    destination: str
    """Name of a handoff of the project."""
    reason: str
    method: str = "bye"
    """`refer`, `invite` or `bye`."""
    number: str | None = None
    """As the project's configuration or code gives it; the server decides whether it may be called."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


@dataclass(frozen=True, slots=True)
class HangUp:
    """After the words said so far have been played, end the call."""

    reason: EndReason = EndReason.AGENT_HANGUP


@dataclass(frozen=True, slots=True)
class ControlRecording:
    """Of this call; it holds even if the caller has interrupted the reply."""

    wish: RecordingWish


@dataclass(frozen=True, slots=True)
class SetVoice:
    provider: str
    name: str


@dataclass(frozen=True, slots=True)
class SetLanguage:
    code: str


@dataclass(frozen=True, slots=True)
class SetBackground:
    """A sound under all that is said, from now on, also while the caller speaks."""

    name: str
    """Empty: none."""
    loudness: float = -40.0
    """Decibels of full scale, root mean square."""


@dataclass(frozen=True, slots=True)
class SetThinkingSound:
    """What the caller hears while the agent thinks and says nothing; it stops when the answer is ready."""

    name: str
    """Empty: silence."""
    loudness: float = -40.0


@dataclass(frozen=True, slots=True)
class Attach:
    """What goes with the turn's words where there is a screen; on the telephone nobody sees it."""

    attachments: Sequence[Mapping[str, Any]] = ()
    suggestions: Sequence[str] = ()
    """Answers that the caller may choose from."""
    call_actions: Sequence[Mapping[str, Any]] = ()


Action = (
    Say
    | Listen
    | FunctionStarted
    | FunctionEnded
    | StepEntered
    | MetricWritten
    | ModelAnswered
    | LimitReached
    | Handoff
    | HangUp
    | ControlRecording
    | SetVoice
    | SetLanguage
    | SetBackground
    | SetThinkingSound
    | Attach
    | WaitStarted
    | WaitEnded
)
