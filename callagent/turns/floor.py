"""Who may speak now.

                speech              silence           endpointing passed         final transcript
     LISTENING ────────► HEARING ────────────► PAUSED ◄─────────────────► ENDING ────────────────► THINKING
         ▲                  ▲ ◄───── speech ─────┘  ◄───── speech ───────────┘                       │    ▲
         │ agent's turn     │                                                            first audio │    │ lull
         │ over and heard   │ words                                                                  ▼    │
         └──────────────────┼──────────────────────────────────────────────────────────────────── SPEAKING
                            │                              sure speech (pauses the playout)            │
                        CUTTING_IN ◄───────────────────────────────────────────────────────────────────┤
                            └── silence ──► HALTED ── no words: the playout goes on ───────────────────►┘

While the agent has the floor, speech is kept and transcribed but changes nothing until it is sure (`BARGE`) or has
words (`WORDS`); the caller of this machine does not feed those two while an uninterruptible utterance is played.
Every state has at most one deadline; THINKING and SPEAKING have none, they end with the agent's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class FloorState(Enum):
    LISTENING = "listening"
    """The caller may speak and does not; the no-input time runs."""
    HEARING = "hearing"
    """The caller speaks."""
    PAUSED = "paused"
    """The caller fell silent; endpointing runs."""
    ENDING = "ending"
    """The caller is done; the final transcript is waited for."""
    KEYING = "keying"
    """The caller presses keys; the time between two runs."""
    THINKING = "thinking"
    """The agent has the floor and is not heard."""
    SPEAKING = "speaking"
    """The agent is heard."""
    CUTTING_IN = "cutting_in"
    """Sound from the caller paused the agent; whether it is words is not known."""
    HALTED = "halted"
    """The sound is over, the agent still paused; words may yet come from the recogniser."""


class Input(Enum):
    SPEECH = auto()
    SILENCE = auto()
    BARGE = auto()
    """The speech is sure and the agent may be interrupted."""
    WORDS = auto()
    """A transcript with words that count."""
    FINAL = auto()
    """No transcript is owed any more, and there are words."""
    UNFINISHED = auto()
    """None is owed any more, and the words show that more is to come."""
    EMPTY = auto()
    """No transcript is owed any more, and there are no words that count."""
    KEY = auto()
    KEYED = auto()
    """The digits are complete."""
    AUDIO = auto()
    """The first frame of an utterance went out."""
    LULL = auto()
    """All audio was heard; the agent's turn is not over."""
    YIELD = auto()
    """All audio was heard and the agent's turn is over."""
    DEADLINE = auto()


class Effect(Enum):
    BEGIN = auto()
    """Transcribe what comes; nothing where it is being done."""
    FINISH = auto()
    """Ask for the final transcript; nothing where none is due."""
    GIVE_UP = auto()
    """Wait for no final transcript: input FINAL or EMPTY by what is there."""
    PAUSE = auto()
    RESUME = auto()
    TAKE_FLOOR = auto()
    """Discard the playout and tell the call that its reply is over."""
    YIELD = auto()
    """Tell the call that all was heard."""
    END_TURN = auto()
    NO_INPUT = auto()


_State = FloorState
Row = tuple[FloorState, tuple[Effect, ...]]

_WHEN_AGENT_HAS_THE_FLOOR: dict[Input, Row] = {
    Input.BARGE: (_State.CUTTING_IN, (Effect.PAUSE,)),
    Input.WORDS: (_State.PAUSED, (Effect.TAKE_FLOOR,)),
    Input.KEY: (_State.KEYING, (Effect.TAKE_FLOOR,)),
    Input.KEYED: (_State.THINKING, (Effect.TAKE_FLOOR, Effect.END_TURN)),
    Input.YIELD: (_State.LISTENING, (Effect.YIELD,)),
}
_WHEN_CALLER_HAS_THE_FLOOR: dict[Input, Row] = {
    Input.KEY: (_State.KEYING, ()),
    Input.KEYED: (_State.THINKING, (Effect.END_TURN,)),
}
_ROWS: dict[FloorState, dict[Input, Row]] = {
    _State.LISTENING: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        Input.SPEECH: (_State.HEARING, (Effect.BEGIN,)),
        Input.WORDS: (_State.PAUSED, ()),
        Input.DEADLINE: (_State.THINKING, (Effect.NO_INPUT,)),
    },
    _State.HEARING: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        Input.SILENCE: (_State.PAUSED, ()),
        Input.DEADLINE: (_State.ENDING, (Effect.FINISH,)),
    },
    _State.PAUSED: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        Input.SPEECH: (_State.HEARING, (Effect.BEGIN,)),
        Input.DEADLINE: (_State.ENDING, (Effect.FINISH,)),
    },
    _State.ENDING: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        Input.SPEECH: (_State.HEARING, (Effect.BEGIN,)),
        Input.FINAL: (_State.THINKING, (Effect.END_TURN,)),
        Input.UNFINISHED: (_State.PAUSED, ()),
        Input.EMPTY: (_State.LISTENING, ()),
        Input.DEADLINE: (_State.ENDING, (Effect.GIVE_UP,)),
    },
    _State.KEYING: {
        **_WHEN_CALLER_HAS_THE_FLOOR,
        Input.DEADLINE: (_State.THINKING, (Effect.END_TURN,)),
    },
    _State.THINKING: {
        **_WHEN_AGENT_HAS_THE_FLOOR,
        Input.SPEECH: (_State.THINKING, (Effect.BEGIN,)),
        Input.SILENCE: (_State.THINKING, (Effect.FINISH,)),
        Input.AUDIO: (_State.SPEAKING, ()),
    },
    _State.SPEAKING: {
        **_WHEN_AGENT_HAS_THE_FLOOR,
        Input.SPEECH: (_State.SPEAKING, (Effect.BEGIN,)),
        Input.SILENCE: (_State.SPEAKING, (Effect.FINISH,)),
        Input.LULL: (_State.THINKING, ()),
    },
    _State.CUTTING_IN: {
        Input.SILENCE: (_State.HALTED, (Effect.FINISH,)),
        Input.WORDS: (_State.HEARING, (Effect.TAKE_FLOOR,)),
        Input.KEY: (_State.KEYING, (Effect.TAKE_FLOOR,)),
        Input.KEYED: (_State.THINKING, (Effect.TAKE_FLOOR, Effect.END_TURN)),
        Input.YIELD: (_State.HEARING, (Effect.YIELD,)),
        Input.DEADLINE: (_State.SPEAKING, (Effect.RESUME,)),
    },
    _State.HALTED: {
        Input.SPEECH: (_State.CUTTING_IN, (Effect.BEGIN,)),
        Input.WORDS: (_State.PAUSED, (Effect.TAKE_FLOOR,)),
        Input.EMPTY: (_State.SPEAKING, (Effect.RESUME,)),
        Input.KEY: (_State.KEYING, (Effect.TAKE_FLOOR,)),
        Input.KEYED: (_State.THINKING, (Effect.TAKE_FLOOR, Effect.END_TURN)),
        Input.YIELD: (_State.PAUSED, (Effect.YIELD,)),
        Input.DEADLINE: (_State.SPEAKING, (Effect.RESUME,)),
    },
}
TRANSITIONS: dict[tuple[FloorState, Input], Row] = {
    (state, given): row for state, rows in _ROWS.items() for given, row in rows.items()
}
"""What is not in the table changes nothing."""

_WITHIN_A_TURN = frozenset({_State.HEARING, _State.PAUSED, _State.ENDING})
AGENT_HAS_THE_FLOOR = frozenset({_State.THINKING, _State.SPEAKING, _State.CUTTING_IN, _State.HALTED})


@dataclass(frozen=True, slots=True)
class FloorTimes:
    """Seconds of each state's deadline."""

    no_input: float
    endpointing: float
    final_wait: float
    resume_after: float
    noise_limit: float
    longest_turn: float
    inter_digit: float


class Floor:
    """The machine. The agent has the floor at the start of a call."""

    LEAST_WAIT = 1.0
    """Silence still given after a noise that turned out to be no words."""

    def __init__(self, times: FloorTimes) -> None:
        self.state = FloorState.THINKING
        self.times = times
        """May be replaced; it counts from the next change of state."""
        self.deadline: float | None = None
        """When DEADLINE is to be input; None: never."""
        self._no_input_left = times.no_input
        self._turn_started = 0.0
        self.silent_since = 0.0
        """Of the silence in PAUSED and ENDING."""

    def input(self, given: Input, now: float, since: float | None = None) -> tuple[Effect, ...]:
        """Change the state; what is to be done, in order. `since`: when the input truly happened, if before `now`."""
        row = TRANSITIONS.get((self.state, given))
        if row is None:
            return ()
        old, (self.state, effects) = self.state, row
        if self.state is not old or given is Input.KEY:
            self._set_deadline(old, given, now if since is None else since, now)
        elif given is Input.DEADLINE:
            self.deadline = None
        return effects

    def be_patient(self, seconds: float) -> None:
        """The silence that ends the caller's turn, of the one that is now."""
        if self.state is FloorState.PAUSED:
            self.deadline = self.silent_since + seconds

    def _set_deadline(self, old: FloorState, given: Input, since: float, now: float) -> None:
        if old is FloorState.LISTENING and self.deadline is not None:
            self._no_input_left = self.deadline - since
        if given is Input.YIELD:
            self._no_input_left = self.times.no_input
        elif old in AGENT_HAS_THE_FLOOR:
            # Words that took the floor and then prove to be none leave both silent: the agent is to speak again soon.
            self._no_input_left = 0.0
        if self.state is FloorState.HEARING and old not in _WITHIN_A_TURN:
            self._turn_started = since
        match self.state:
            case FloorState.LISTENING:
                self.deadline = now + max(self._no_input_left, min(self.LEAST_WAIT, self.times.no_input))
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
                self.deadline = since + self.times.resume_after
            case FloorState.THINKING | FloorState.SPEAKING:
                self.deadline = None
