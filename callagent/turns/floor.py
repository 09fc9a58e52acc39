"""Who may speak now: the settings of turn-taking, and a state machine without I/O and clock.

                speech              silence           endpointing passed         final transcript
     LISTENING ────────► HEARING ────────────► PAUSED ◄─────────────────► ENDING ────────────────► THINKING
         ▲                  ▲ ◄───── speech ─────┘  ◄───── speech ───────────┘                       │    ▲
         │ agent's turn     │                                                            first audio │    │ lull
         │ over and heard   │ words                                                                  ▼    │
         └──────────────────┼──────────────────────────────────────────────────────────────────── SPEAKING
                            │                              sure speech (pauses the playout)            │
                        CUTTING_IN ◄───────────────────────────────────────────────────────────────────┤
                            └── silence ──► HALTED ── no words: the playout goes on ───────────────────►┘

Barge-in takes two steps. While the agent has the floor, the caller's speech is transcribed but changes nothing until
it is sure (`BARGE`), which only pauses the playout; words (`WORDS`) take the floor. Noise therefore costs a pause,
never the rest of the reply. `floor_control.py` does not give these two inputs while an uninterruptible utterance is
played.

Every state has at most one deadline. THINKING and SPEAKING have none: they end when the agent's reply does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from callagent.agents import ListenSettings
from callagent.turns.caller_speech import ACKNOWLEDGEMENTS
from callagent.turns.endpointing import EndpointingTimes

DEFAULT_INTER_DIGIT = 2.0
"""Seconds between two digits where the agent gives 0, which in its format stands for the default."""


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """How turns of one call are taken, unless a `Listen` action says otherwise for its turn. Times are in seconds."""

    endpointing: float = 0.5
    """Silence that ends the caller's turn, counted from the caller's last sound."""
    finished: float = 0.35
    """The same, if the turn model finds that the caller has finished."""
    unfinished: float = 1.2
    """The same, if the words or the turn model show that more is to come."""
    turn_threshold: float = 0.5
    """Probability from which on the turn model's answer counts as a yes."""
    no_input: float = 7.0
    """Silence, from the end of the agent's last word, after which the caller's turn is an empty one."""
    final_wait: float = 2.0
    """Longest wait for the final transcript; then the last partial one stands."""
    resume_after: float = 2.0
    """Silence after which an utterance that a noise without words has paused goes on."""
    noise_limit: float = 4.0
    """Length of a noise without words after which the utterance that it has paused goes on all the same."""
    longest_turn: float = 60.0
    """Length of the caller's speech after which the turn is taken although voice activity goes on."""
    answer_window: float = 1.0
    """An acknowledgement ("okay") is an answer if it ends at most so long before the agent's last utterance does."""
    voice_wait: float = 5.0
    """Longest time for the voice to deliver the next piece of audio."""
    barge_in: bool = True
    """Whether the caller may interrupt the agent."""
    allow_on_first_turn: bool = False
    """Whether the caller may do so in the agent's first turn, with its greeting and disclaimer."""
    acknowledgements: frozenset[str] = ACKNOWLEDGEMENTS

    def endpointing_times(self) -> EndpointingTimes:
        """Return how long a silence ends a turn, by what was said before it."""
        return EndpointingTimes(self.endpointing, self.finished, self.unfinished, self.turn_threshold)

    def allows_barge_in(self, listen: ListenSettings, *, first_turn: bool) -> bool:
        """Return whether the caller may interrupt the agent in a turn in which it listens as `listen` says."""
        allowed = self.barge_in if listen.barge_in is None else listen.barge_in
        return allowed and (self.allow_on_first_turn or not first_turn)


class FloorState(Enum):
    """The states of the floor."""

    LISTENING = "listening"
    """The caller has the floor and is silent; the no-input timer runs."""
    HEARING = "hearing"
    """The caller speaks."""
    PAUSED = "paused"
    """The caller has fallen silent; the endpointing timer runs."""
    ENDING = "ending"
    """The caller's silence was long enough; the final transcript is awaited."""
    KEYING = "keying"
    """The caller presses keys; the inter-digit timer runs."""
    THINKING = "thinking"
    """The agent has the floor and nothing of it is being played."""
    SPEAKING = "speaking"
    """The agent has the floor and is being played."""
    CUTTING_IN = "cutting_in"
    """Speech of the caller has paused the playout; whether it has words is not known yet."""
    HALTED = "halted"
    """That speech is over and the playout still paused; the recogniser may yet deliver words."""


class FloorInput(Enum):
    """What happens to the floor."""

    SPEECH = auto()
    """The caller began to speak."""
    SILENCE = auto()
    """The caller fell silent."""
    BARGE = auto()
    """The speech is certain enough to pause the agent, which may be interrupted."""
    WORDS = auto()
    """A transcript has words that count."""
    FINAL = auto()
    """All transcripts are final, and there are words."""
    UNFINISHED = auto()
    """All transcripts are final, and their words show that more is to come."""
    EMPTY = auto()
    """All transcripts are final, and there are no words that count."""
    KEY = auto()
    """The caller pressed a key, and more may follow."""
    KEYED = auto()
    """The digits, or a written message, are complete."""
    AUDIO = auto()
    """The first frame of an utterance has been sent."""
    LULL = auto()
    """All audio has been heard, but the agent's turn is not over."""
    YIELD = auto()
    """All audio has been heard and the agent's turn is over."""
    DEADLINE = auto()
    """The time of `Floor.deadline` has come."""


class FloorEffect(Enum):
    """What `floor_control.py` has to do after a transition."""

    BEGIN = auto()
    """Begin an utterance of the recogniser, unless one is under way."""
    FINISH = auto()
    """Ask the recogniser for the final transcript, unless none is due."""
    GIVE_UP = auto()
    """Stop waiting for the final transcript; give FINAL or EMPTY according to the partial one."""
    PAUSE = auto()
    """Pause the playout."""
    RESUME = auto()
    """Resume the playout."""
    TAKE_FLOOR = auto()
    """Discard the playout and tell the call that its reply is cut."""
    YIELD = auto()
    """Tell the call that the caller has heard everything."""
    END_TURN = auto()
    """Give the caller's turn to the call."""
    NO_INPUT = auto()
    """Give an empty turn to the call."""


_State = FloorState
Row = tuple[FloorState, tuple[FloorEffect, ...]]

_WHEN_AGENT_HAS_THE_FLOOR: dict[FloorInput, Row] = {
    FloorInput.BARGE: (_State.CUTTING_IN, (FloorEffect.PAUSE,)),
    FloorInput.WORDS: (_State.PAUSED, (FloorEffect.TAKE_FLOOR,)),
    FloorInput.KEY: (_State.KEYING, (FloorEffect.TAKE_FLOOR,)),
    FloorInput.KEYED: (_State.THINKING, (FloorEffect.TAKE_FLOOR, FloorEffect.END_TURN)),
    FloorInput.YIELD: (_State.LISTENING, (FloorEffect.YIELD,)),
}
_WHEN_CALLER_HAS_THE_FLOOR: dict[FloorInput, Row] = {
    FloorInput.KEY: (_State.KEYING, ()),
    FloorInput.KEYED: (_State.THINKING, (FloorEffect.END_TURN,)),
}
_ROWS: dict[FloorState, dict[FloorInput, Row]] = {
    _State.LISTENING: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        FloorInput.SPEECH: (_State.HEARING, (FloorEffect.BEGIN,)),
        # Words of speech that is over: it was transcribed late, or was too soft for the voice activity gate.
        FloorInput.WORDS: (_State.PAUSED, ()),
        FloorInput.DEADLINE: (_State.THINKING, (FloorEffect.NO_INPUT,)),
    },
    _State.HEARING: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        FloorInput.SILENCE: (_State.PAUSED, ()),
        # The caller has spoken for `longest_turn`: the turn is taken without a silence.
        FloorInput.DEADLINE: (_State.ENDING, (FloorEffect.FINISH,)),
    },
    _State.PAUSED: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        FloorInput.SPEECH: (_State.HEARING, (FloorEffect.BEGIN,)),
        FloorInput.DEADLINE: (_State.ENDING, (FloorEffect.FINISH,)),
    },
    _State.ENDING: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        FloorInput.SPEECH: (_State.HEARING, (FloorEffect.BEGIN,)),
        FloorInput.FINAL: (_State.THINKING, (FloorEffect.END_TURN,)),
        FloorInput.UNFINISHED: (_State.PAUSED, ()),
        FloorInput.EMPTY: (_State.LISTENING, ()),
        # GIVE_UP is followed by FINAL or EMPTY, which leads out of this state.
        FloorInput.DEADLINE: (_State.ENDING, (FloorEffect.GIVE_UP,)),
    },
    _State.KEYING: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        FloorInput.DEADLINE: (_State.THINKING, (FloorEffect.END_TURN,)),
    },
    _State.THINKING: {
        **_WHEN_AGENT_HAS_THE_FLOOR,
        # Speech is transcribed from its first frame, whoever has the floor. If it turns out to be a barge-in, or a
        # caller who goes on with the last turn, no word of it is missing.
        FloorInput.SPEECH: (_State.THINKING, (FloorEffect.BEGIN,)),
        FloorInput.SILENCE: (_State.THINKING, (FloorEffect.FINISH,)),
        FloorInput.AUDIO: (_State.SPEAKING, ()),
    },
    _State.SPEAKING: {
        **_WHEN_AGENT_HAS_THE_FLOOR,
        FloorInput.SPEECH: (_State.SPEAKING, (FloorEffect.BEGIN,)),
        FloorInput.SILENCE: (_State.SPEAKING, (FloorEffect.FINISH,)),
        FloorInput.LULL: (_State.THINKING, ()),
    },
    _State.CUTTING_IN: {
        FloorInput.SILENCE: (_State.HALTED, (FloorEffect.FINISH,)),
        FloorInput.WORDS: (_State.HEARING, (FloorEffect.TAKE_FLOOR,)),
        FloorInput.KEY: (_State.KEYING, (FloorEffect.TAKE_FLOOR,)),
        FloorInput.KEYED: (_State.THINKING, (FloorEffect.TAKE_FLOOR, FloorEffect.END_TURN)),
        # The agent had nothing left to say when it was paused: the speech belongs to the caller's turn.
        FloorInput.YIELD: (_State.HEARING, (FloorEffect.YIELD,)),
        # A noise without words lasts for `noise_limit`: the agent goes on over it.
        FloorInput.DEADLINE: (_State.SPEAKING, (FloorEffect.RESUME,)),
    },
    _State.HALTED: {
        FloorInput.SPEECH: (_State.CUTTING_IN, (FloorEffect.BEGIN,)),
        FloorInput.WORDS: (_State.PAUSED, (FloorEffect.TAKE_FLOOR,)),
        # The recogniser has found no words: the agent goes on without waiting for the deadline.
        FloorInput.EMPTY: (_State.SPEAKING, (FloorEffect.RESUME,)),
        FloorInput.KEY: (_State.KEYING, (FloorEffect.TAKE_FLOOR,)),
        FloorInput.KEYED: (_State.THINKING, (FloorEffect.TAKE_FLOOR, FloorEffect.END_TURN)),
        FloorInput.YIELD: (_State.PAUSED, (FloorEffect.YIELD,)),
        FloorInput.DEADLINE: (_State.SPEAKING, (FloorEffect.RESUME,)),
    },
}
TRANSITIONS: dict[tuple[FloorState, FloorInput], Row] = {
    (state, floor_input): row for state, rows in _ROWS.items() for floor_input, row in rows.items()
}
"""An input that is not in the table changes nothing in that state."""

_WITHIN_A_TURN = frozenset({_State.HEARING, _State.PAUSED, _State.ENDING})
AGENT_HAS_THE_FLOOR = frozenset({_State.THINKING, _State.SPEAKING, _State.CUTTING_IN, _State.HALTED})


@dataclass(frozen=True, slots=True)
class FloorTimes:
    """How long each state may last, in seconds. `TurnSettings` says what each time means."""

    no_input: float
    endpointing: float
    final_wait: float
    resume_after: float
    noise_limit: float
    longest_turn: float
    inter_digit: float


def floor_times(settings: TurnSettings, listen: ListenSettings) -> FloorTimes:
    """Return the times of a turn in which the agent listens as `listen` says."""
    return FloorTimes(
        no_input=_no_input(settings, listen),
        endpointing=settings.endpointing if listen.endpointing is None else listen.endpointing,
        final_wait=settings.final_wait,
        resume_after=settings.resume_after,
        noise_limit=settings.noise_limit,
        longest_turn=settings.longest_turn if listen.longest_turn is None else listen.longest_turn,
        inter_digit=(listen.digits.inter_digit_timeout if listen.digits else 0.0) or DEFAULT_INTER_DIGIT,
    )


def _no_input(settings: TurnSettings, listen: ListenSettings) -> float:
    default = settings.no_input
    if listen.digits is not None:
        first = listen.digits.first_digit_timeout
        default = max(default, first) if listen.speech else first
    return default if listen.no_input_timeout is None else listen.no_input_timeout


class Floor:
    """The state of one call's floor. The agent has the floor at the start of a call."""

    MIN_NO_INPUT = 1.0
    """Shortest silence, in seconds, between a noise that turned out to have no words and an empty turn."""

    def __init__(self, times: FloorTimes) -> None:
        self.state = FloorState.THINKING
        self.times = times
        """May be replaced; new times apply from the next change of state."""
        self.deadline: float | None = None
        """When to give DEADLINE; None: never."""
        self._no_input_left = times.no_input
        """What is left of the no-input time: a noise without words stops it, but does not start it anew."""
        self._turn_started = 0.0
        self.silent_since = 0.0
        """When the silence of PAUSED and ENDING began."""

    def apply(self, floor_input: FloorInput, now: float, since: float | None = None) -> tuple[FloorEffect, ...]:
        """Change the state and return what is to be done, in this order.

        `since`: when the input truly happened, if before `now`. The end of speech is certain only some frames later.
        """
        row = TRANSITIONS.get((self.state, floor_input))
        if row is None:
            return ()
        old, (self.state, effects) = self.state, row
        # A key starts the inter-digit time anew; no other input without a change of state moves the deadline.
        if self.state is not old or floor_input is FloorInput.KEY:
            self._set_deadline(old, floor_input, now if since is None else since, now)
        elif floor_input is FloorInput.DEADLINE:
            self.deadline = None
        return effects

    def set_endpointing(self, seconds: float) -> None:
        """Let the present silence end the caller's turn once it has lasted for `seconds`."""
        if self.state is FloorState.PAUSED:
            self.deadline = self.silent_since + seconds

    def _set_deadline(self, old: FloorState, floor_input: FloorInput, since: float, now: float) -> None:
        # A noise interrupts the no-input time, but does not start it anew.
        if old is FloorState.LISTENING and self.deadline is not None:
            self._no_input_left = self.deadline - since
        if floor_input is FloorInput.YIELD:
            self._no_input_left = self.times.no_input
        elif old in AGENT_HAS_THE_FLOOR:
            # The words that took the floor may turn out to be none in the final transcript. Then both are silent, and
            # the agent is to speak again soon.
            self._no_input_left = 0.0
        # Pauses within a turn do not start `longest_turn` anew.
        if self.state is FloorState.HEARING and old not in _WITHIN_A_TURN:
            self._turn_started = since
        match self.state:
            case FloorState.LISTENING:
                self.deadline = now + max(self._no_input_left, min(self.MIN_NO_INPUT, self.times.no_input))
            case FloorState.HEARING:
                self.deadline = self._turn_started + self.times.longest_turn
            case FloorState.PAUSED:
                self.silent_since = since
                self.deadline = since + self.times.endpointing
            case FloorState.ENDING:
                self.deadline = now + self.times.final_wait
            case FloorState.KEYING:
                self.deadline = now + self.times.inter_digit
            case FloorState.CUTTING_IN:
                self.deadline = now + self.times.noise_limit
            case FloorState.HALTED:
                # The pause is counted from the caller's last sound, not from the frame that made its end certain.
                self.deadline = since + self.times.resume_after
            case FloorState.THINKING | FloorState.SPEAKING:
                self.deadline = None
