"""What an agent asks of the call: the actions that `Agent.start` and `Agent.reply` emit, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from callagent.call_info import NO_HEADERS, EndReason, RecordingWish
from callagent.json_values import JsonObject, JsonValue

# Settings that actions carry -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DelayResponse:
    """One filler of a slow function: its text and how long it lasts."""

    text: str
    duration: float
    """Seconds for which a sound effect is played; ignored for words."""


@dataclass(frozen=True, slots=True)
class LatencyControl:
    """The fillers that are said while a function runs (`@func_latency_control`)."""

    delay_before_start: float
    """Seconds from the start of the function to the first response."""
    silence_after_each: float
    """Seconds of silence after each response."""
    responses: tuple[DelayResponse, ...]


@dataclass(frozen=True, slots=True)
class DigitSettings:
    """How key presses are collected in the next turn. Timeouts are in seconds."""

    max_digits: int = 0
    """0: no limit."""
    end_key: str = ""
    """Empty: none. The key itself is not part of the digits."""
    end_key_alone: bool = False
    """Whether the end key before any digit is an answer; otherwise it is ignored."""
    first_digit_timeout: float = 5.0
    inter_digit_timeout: float = 2.0
    while_speaking: bool = False
    """Whether keys pressed while the agent speaks count, and stop its speech."""
    is_pii: bool = False
    """Whether the digits are kept out of log, transcript and record."""


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """How the caller's next turn is taken. A field that is None has the call's default."""

    no_input_timeout: float | None = None
    """Seconds of silence until an empty turn."""
    barge_in: bool | None = None
    digits: DigitSettings | None = None
    speech: bool = True
    """False: only key presses."""
    endpointing: float | None = None
    """Seconds of silence that end the caller's turn."""
    unfinished: float | None = None
    """Seconds of silence that end a turn that seems unfinished: a trailing "and", fewer digits than asked for."""
    turn_threshold: float | None = None
    """Probability, given by the turn model, from which the caller counts as finished."""
    eager_final: bool = False
    """Whether the turn is answered from the last partial transcript, without waiting for the final one."""
    longest_turn: float | None = None
    """Seconds after which the turn ends although the caller goes on speaking."""
    expected: str = ""
    """An example of the expected answer, for recognisers that take one."""
    keywords: tuple[str, ...] = ()


# Words, and the caller's next turn ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Words for the caller: a whole utterance, or one sentence of a streamed answer."""

    text: str
    interruptible: bool = True
    channel: str = "speech"
    """`speech`, or `dtmf`: the text is digits to send."""
    pcm: bytes | None = None
    """A recording that is played instead of synthesising `text`: 16-bit mono samples at the call's rate."""
    cancellable: bool = False
    """Whether it only covers a wait: the first sound of the next words cuts it off."""


@dataclass(frozen=True, slots=True)
class Listen:
    """The agent is done: the caller has the floor. The last action of every turn that does not end the call."""

    settings: ListenSettings = ListenSettings()


# Events of the turn: the call records them and plays fillers during the waits -----------------------------------------


@dataclass(frozen=True, slots=True)
class FunctionStarted:
    """A function of the project begins to run."""

    number: int
    """Counts the call's functions from 1; FunctionEnded has the same."""
    name: str
    arguments: JsonObject
    latency: LatencyControl | None = None


@dataclass(frozen=True, slots=True)
class FunctionEnded:
    """A function has ended, with what it returned and what it did to the state."""

    number: int
    name: str
    arguments: JsonObject
    result: JsonValue
    """What the function returned, as JSON data."""
    error: str | None
    duration_ms: float
    logs: Sequence[JsonObject] = ()
    state_changes: JsonObject = field(default_factory=dict)
    """`{"added": {…}, "updated": {…}, "removed": […]}`"""
    transition: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class WaitStarted:
    """The agent waits for its model; fillers are spoken meanwhile as for a slow function."""

    number: int
    """Counts down from -1, so that it differs from every function's; WaitEnded has the same."""
    latency: LatencyControl


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The wait for the model is over."""

    number: int


@dataclass(frozen=True, slots=True)
class StepEntered:
    """The conversation has moved to another step of a flow, or to another agent of a tree."""

    flow: str | None
    step: str | None


@dataclass(frozen=True, slots=True)
class MetricWritten:
    """The project has written a metric of the call."""

    name: str
    value: JsonValue


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """One request to the language model is over; its times are the event loop's monotonic seconds."""

    requested: float
    first_token: float | None
    finished: float
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    """Class and text of the provider's error; None: the provider answered."""
    calls: Sequence[JsonObject] = ()
    """The model's tool calls, `{"name", "arguments"}` each."""


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A limit refused something that the agent wanted; the agent has been told."""

    limit: str
    """The setting below `limits`, such as `messages`."""
    detail: str


# How the call goes on -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handoff:
    """Give the call to somebody else once the words said so far have been played."""

    destination: str
    """Name of a handoff of the project."""
    reason: str
    method: str = "bye"
    """`refer`, `invite` or `bye`."""
    number: str | None = None
    """Telephone number from the project's configuration or code; the server decides whether it may be called."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the call once the words said so far have been played."""

    reason: EndReason = EndReason.AGENT_HANGUP


@dataclass(frozen=True, slots=True)
class ControlRecording:
    """Change the recording of this call. It takes effect even if the caller has interrupted the reply."""

    wish: RecordingWish


# Changes of voice, language and background sound; things to show on a screen ------------------------------------------


@dataclass(frozen=True, slots=True)
class SetVoice:
    """Speak with another voice."""

    provider: str
    name: str


@dataclass(frozen=True, slots=True)
class SetLanguage:
    """Speak and listen in another language."""

    code: str


@dataclass(frozen=True, slots=True)
class SetBackground:
    """Play a sound from now on, under the agent's words and while the caller speaks."""

    name: str
    """Empty: none."""
    loudness: float = -40.0
    """Decibels of full scale, root mean square."""


@dataclass(frozen=True, slots=True)
class SetThinkingSound:
    """Play a sound while the agent thinks and says nothing; it stops when the answer is ready."""

    name: str
    """Empty: silence."""
    loudness: float = -40.0


@dataclass(frozen=True, slots=True)
class Attach:
    """Show something beside the turn's words where there is a screen; the telephone ignores it."""

    attachments: Sequence[JsonObject] = ()
    suggestions: Sequence[str] = ()
    """Answers that the caller may choose from."""
    call_actions: Sequence[JsonObject] = ()
    """Telephone numbers that a webchat offers to call, `{"contact_number", "title"}` each."""


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
