"""What may be said, and when, while the caller waits: the one place where fillers are chosen.

               something is waited for             a filler's time, nothing else is heard
        QUIET ─────────────────────────► WAITING ──────────────────────────────────────────► SAYING
          ▲    nothing any more, answer    │ ▲ ◄──────────────── heard to its end ─────────────┤
          └────────────────────────────────┘ │                                                 │ answer, or
                                             └────── heard to its end ────── FINISHING ◄───────┘ wait over

Functions' delay responses and the phrases for a slow model are schedules side by side; one response is said at a time,
a function's before the turn's own where both are due, and the others keep their distance. When the answer is ready, or
what a response was for is over, one that has begun ends its words and one that has not is taken back. The thinking
sound is wanted only while waiting: it has no words to end, so it stops at once.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from callagent.agents import DelayResponse, LatencyControl

DISTANCE = 1.0
"""Seconds of silence at least between the responses of two waits."""
TURN = 0
"""Number of the agent's turn as a wait of its own. Its responses are the server's words of patience: they are said
after silence only, and not where a response of another wait comes in time."""
IN_TIME = 2.5
"""Seconds of silence before which the other response has to come."""

_AUDIO_TAGS = re.compile(r"\s*(\[[^\]]*\]\s*)+")


class WaitState(Enum):
    QUIET = "quiet"
    """Nothing is waited for, or the answer is there."""
    WAITING = "waiting"
    SAYING = "saying"
    """A response is being said, or made by the voice."""
    FINISHING = "finishing"
    """The same, and what it was for is over."""


class Input(Enum):
    BEGUN = auto()
    """A function, or a request to the model, began."""
    DUE = auto()
    HEARD = auto()
    """The response was heard to its end, could not be said, or was taken back."""
    ENOUGH = auto()
    """What the response was said for is over."""
    NOTHING_LEFT = auto()
    """Nothing is waited for any more."""
    CUT = auto()
    """All that was to be said is discarded."""


class Effect(Enum):
    SAY = auto()
    TAKE_BACK = auto()
    """The response is not to be said if nothing of it was heard yet."""


_State = WaitState
TRANSITIONS: dict[tuple[WaitState, Input], tuple[WaitState, Effect | None]] = {
    (_State.QUIET, Input.BEGUN): (_State.WAITING, None),
    (_State.WAITING, Input.DUE): (_State.SAYING, Effect.SAY),
    (_State.WAITING, Input.NOTHING_LEFT): (_State.QUIET, None),
    (_State.WAITING, Input.CUT): (_State.QUIET, None),
    (_State.SAYING, Input.HEARD): (_State.WAITING, None),
    (_State.SAYING, Input.ENOUGH): (_State.FINISHING, Effect.TAKE_BACK),
    (_State.SAYING, Input.CUT): (_State.QUIET, None),
    (_State.FINISHING, Input.HEARD): (_State.WAITING, None),
    (_State.FINISHING, Input.CUT): (_State.QUIET, None),
}
"""What is not in the table changes nothing."""


class _Schedule:
    """The responses of one wait (`@func_latency_control`): each is said once, in order.

    The first starts `delay_before_start` after the wait did, each further one `silence_after_each` after the one before
    it has ended.
    """

    def __init__(self, control: LatencyControl, started: float) -> None:
        self._delay = control.delay_before_start
        self._silence = control.silence_after_each
        self.waiting = list(control.responses)
        self.due = started + control.delay_before_start

    def after(self, said: DelayResponse, started: float | None, now: float) -> None:
        """`said` is over; a sound effect counts at least as long as the agent says that it is."""
        if started is not None and is_sound(said.text):
            now = max(now, started + said.duration)
        self.due = now + self._silence

    def put_off(self, now: float) -> None:
        """Something else was heard until now: the silence counts anew."""
        self.due = max(self.due, now + self._delay)


class FillerSchedule:
    """One call's. No clock, no I/O; ask `due` at `deadline` when nothing is being said."""

    def __init__(self) -> None:
        self.state = WaitState.QUIET
        self._schedules: dict[int, _Schedule] = {}
        """Of what is waited for, by number."""
        self._said: tuple[int, DelayResponse] | None = None
        self._silent_since = 0.0

    def begin(self, number: int, control: LatencyControl | None, now: float) -> None:
        """A wait began. Functions count up from 1, requests to the model down from -1."""
        self._schedules[number] = _Schedule(control or LatencyControl(0.0, 0.0, ()), now)
        if number == TURN:
            self._silent_since = now
        self._input(Input.BEGUN)

    def end(self, number: int) -> Effect | None:
        """It is over: none of its responses starts any more."""
        self._schedules.pop(number, None)
        effect = self._input(Input.ENOUGH) if self._said is not None and self._said[0] == number else None
        self._look_whether_over()
        return effect

    def answer(self) -> Effect | None:
        """The answer is complete: nothing starts before the next wait."""
        self._schedules.clear()
        effect = self._input(Input.ENOUGH)
        self._look_whether_over()
        return effect

    def speak(self) -> Effect | None:
        """Words of the answer are there: until the next wait, only responses of the turn itself may start."""
        turn = self._schedules.get(TURN)
        effect = self.answer()
        if turn is not None and turn.waiting:
            self._schedules[TURN] = turn
            self._input(Input.BEGUN)
        return effect

    def fell_silent(self, now: float) -> None:
        """All that was said is heard."""
        self._silent_since = now
        if TURN in self._schedules:
            self._schedules[TURN].put_off(now)

    def cut(self) -> None:
        self._schedules.clear()
        self._said = None
        self._input(Input.CUT)

    @property
    def deadline(self) -> float | None:
        """When the next response may start; None while one is said and when none is left."""
        if self.state is not WaitState.WAITING:
            return None
        return min((schedule.due for schedule in self._candidates().values()), default=None)

    def _candidates(self) -> dict[int, _Schedule]:
        """Those that have a response to say, without the turn's own where another one comes in time."""
        waiting = {number: schedule for number, schedule in self._schedules.items() if schedule.waiting}
        others = [schedule.due for number, schedule in waiting.items() if number != TURN]
        if others and min(others) <= self._silent_since + IN_TIME:
            waiting.pop(TURN, None)
        return waiting

    def due(self, now: float) -> DelayResponse | None:
        """The response to say now. Tell with `heard` when it has been heard."""
        deadline = self.deadline
        if deadline is None or now < deadline or self._input(Input.DUE) is not Effect.SAY:
            return None
        due = [(number <= 0, one.due, number) for number, one in self._candidates().items()]
        number = min(entry for entry in due if entry[1] <= now)[2]
        response = self._schedules[number].waiting.pop(0)
        self._said = (number, response)
        return response

    def heard(self, started: float | None, now: float) -> None:
        """The response said last was heard to its end; `started` None: nothing of it was."""
        if self._said is None:
            return
        (number, response), self._said = self._said, None
        for other, schedule in self._schedules.items():
            if other in (number, TURN):
                schedule.after(response, started, now)
            else:
                schedule.due = max(schedule.due, now + DISTANCE)
        self._input(Input.HEARD)
        self._look_whether_over()

    @property
    def wants_sound(self) -> bool:
        """The thinking sound may be heard."""
        return self.state is WaitState.WAITING

    def _look_whether_over(self) -> None:
        if not self._schedules:
            self._input(Input.NOTHING_LEFT)

    def _input(self, given: Input) -> Effect | None:
        """The one place where the state changes."""
        self.state, effect = TRANSITIONS.get((self.state, given), (self.state, None))
        return effect


def is_sound(text: str) -> bool:
    """It is an audio tag (`[Ring]`), or several, and no words."""
    return _AUDIO_TAGS.fullmatch(text) is not None
