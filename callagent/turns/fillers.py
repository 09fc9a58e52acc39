"""Fillers: which ones are said while the caller waits, and when. Decided here alone, without I/O and without a clock.

               a wait begins                       a filler's time, and the agent is silent
        QUIET ─────────────────────────► WAITING ──────────────────────────────────────────► SAYING
          ▲    no wait is left, answer     │ ▲ ◄──────────────── heard to its end ─────────────┤
          └────────────────────────────────┘ │                                                 │ answer, or
                                             └────── heard to its end ────── FINISHING ◄───────┘ wait over

A wait is a function that runs or a model that is slow; each has a schedule of responses. Schedules run side by side,
but one response is said at a time, a function's before the turn's own if both are due, and responses of different waits
keep their distance. Once the answer is ready, or the wait of a response is over, a response that is being said is said
to its end, and one that has not begun is withdrawn: a filler never delays or cuts the answer. The thinking sound, which
has no words to end, is wanted only in WAITING and stops at once.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from callagent.agents import DelayResponse, LatencyControl

MIN_DISTANCE = 1.0
"""Seconds of silence at least between the responses of two waits."""
TURN_WAIT = 0
"""Number of the agent's whole turn as a wait. Its responses are the server's own fillers: they are said only after
silence, and not if a response of another wait is due within `OTHER_RESPONSE_WITHIN`."""
OTHER_RESPONSE_WITHIN = 2.5
"""Seconds of silence within which a response of another wait takes the place of the server's own fillers."""

_AUDIO_TAGS = re.compile(r"\s*(\[[^\]]*\]\s*)+")


class WaitState(Enum):
    QUIET = "quiet"
    """Nothing is waited for, or the answer has begun."""
    WAITING = "waiting"
    SAYING = "saying"
    """A response is being synthesised or said."""
    FINISHING = "finishing"
    """The same, but its wait is over."""


class FillerInput(Enum):
    """What happens to the fillers."""

    WAIT_BEGAN = auto()
    DUE = auto()
    """The time of a response has come."""
    RESPONSE_ENDED = auto()
    """The response was heard to its end, could not be said, or was withdrawn."""
    WAIT_ENDED = auto()
    """The wait of the response that is being said is over."""
    NO_WAIT_LEFT = auto()
    DISCARDED = auto()
    """All speech of the agent is discarded, or its turn is over."""


class FillerEffect(Enum):
    """What is to be done after a transition."""

    SAY = auto()
    WITHDRAW = auto()
    """Do not say the response, unless some of it was heard."""


_State = WaitState
TRANSITIONS: dict[tuple[WaitState, FillerInput], tuple[WaitState, FillerEffect | None]] = {
    (_State.QUIET, FillerInput.WAIT_BEGAN): (_State.WAITING, None),
    (_State.WAITING, FillerInput.DUE): (_State.SAYING, FillerEffect.SAY),
    (_State.WAITING, FillerInput.NO_WAIT_LEFT): (_State.QUIET, None),
    (_State.WAITING, FillerInput.DISCARDED): (_State.QUIET, None),
    (_State.SAYING, FillerInput.RESPONSE_ENDED): (_State.WAITING, None),
    (_State.SAYING, FillerInput.WAIT_ENDED): (_State.FINISHING, FillerEffect.WITHDRAW),
    (_State.SAYING, FillerInput.DISCARDED): (_State.QUIET, None),
    (_State.FINISHING, FillerInput.RESPONSE_ENDED): (_State.WAITING, None),
    (_State.FINISHING, FillerInput.DISCARDED): (_State.QUIET, None),
}
"""An input that is not in the table changes nothing in that state."""


class _Schedule:
    """The responses of one wait (`@func_latency_control`). Each is said once, in order.

    The first starts `delay_before_start` seconds after the wait did, each further one `silence_after_each` seconds
    after the one before it has ended.
    """

    def __init__(self, control: LatencyControl, started: float) -> None:
        self._delay = control.delay_before_start
        self._silence = control.silence_after_each
        self.responses_left = list(control.responses)
        self.due = started + control.delay_before_start

    def response_ended(self, response: DelayResponse, started: float | None, now: float) -> None:
        """Set the time of the next response. A sound effect counts as lasting at least its stated `duration`."""
        if started is not None and is_sound(response.text):
            now = max(now, started + response.duration)
        self.due = now + self._silence

    def put_off(self, now: float) -> None:
        """Count the delay anew, because something else was heard until now."""
        self.due = max(self.due, now + self._delay)


class FillerSchedule:
    """The fillers of one call. Call `take_due` at `deadline` if the agent is silent then."""

    def __init__(self) -> None:
        self.state = WaitState.QUIET
        self._schedules: dict[int, _Schedule] = {}
        """The waits that are going on, by number."""
        self._current: tuple[int, DelayResponse] | None = None
        """The response that is being said, with the number of its wait."""
        self._silent_since = 0.0

    def begin_wait(self, number: int, control: LatencyControl | None, now: float) -> None:
        """Begin a wait. Numbers of functions count up from 1, those of requests to a model down from -1."""
        self._schedules[number] = _Schedule(control or LatencyControl(0.0, 0.0, ()), now)
        if number == TURN_WAIT:
            self._silent_since = now
        self._apply(FillerInput.WAIT_BEGAN)

    def end_wait(self, number: int) -> FillerEffect | None:
        """End a wait: none of its responses starts any more."""
        self._schedules.pop(number, None)
        current = self._current is not None and self._current[0] == number
        effect = self._apply(FillerInput.WAIT_ENDED) if current else None
        self._check_waits()
        return effect

    def begin_answer(self) -> FillerEffect | None:
        """End the waits of functions and models, because the answer has begun. Fillers of the turn may still start."""
        # An answer may stop after its first sentence, while the model or a function takes its time: the silence that
        # follows is covered by the turn's own fillers, so their schedule outlives the other waits.
        turn = self._schedules.get(TURN_WAIT)
        effect = self.end_answer()
        if turn is not None and turn.responses_left:
            self._schedules[TURN_WAIT] = turn
            self._apply(FillerInput.WAIT_BEGAN)
        return effect

    def end_answer(self) -> FillerEffect | None:
        """End all waits, because the answer is complete: no response starts before the next wait."""
        self._schedules.clear()
        effect = self._apply(FillerInput.WAIT_ENDED)
        self._check_waits()
        return effect

    def agent_fell_silent(self, now: float) -> None:
        """Count the silence of the turn's own fillers from now, because everything that was said has been heard."""
        self._silent_since = now
        if TURN_WAIT in self._schedules:
            self._schedules[TURN_WAIT].put_off(now)

    def discard(self) -> None:
        """Forget all waits, because the agent's speech is discarded or its turn is over."""
        self._schedules.clear()
        self._current = None
        self._apply(FillerInput.DISCARDED)

    @property
    def deadline(self) -> float | None:
        """When the next response may start; None while one is being said, and if none is left."""
        if self.state is not WaitState.WAITING:
            return None
        return min((schedule.due for schedule in self._candidates().values()), default=None)

    def take_due(self, now: float) -> DelayResponse | None:
        """Return the response to say now. `filler_ended` has to be called once it was heard."""
        deadline = self.deadline
        if deadline is None or now < deadline or self._apply(FillerInput.DUE) is not FillerEffect.SAY:
            return None
        # The turn and requests to a model have numbers up to 0: functions come first, then whatever was due earliest.
        due = [(number <= 0, schedule.due, number) for number, schedule in self._candidates().items()]
        number = min(entry for entry in due if entry[1] <= now)[2]
        response = self._schedules[number].responses_left.pop(0)
        self._current = (number, response)
        return response

    def filler_ended(self, started: float | None, now: float) -> None:
        """Time the next responses from the end of the latest one; `started` is None if nothing of it was heard."""
        if self._current is None:
            return
        (number, response), self._current = self._current, None
        # The turn's own fillers count from the end of any response; those of other waits only keep their distance.
        for other, schedule in self._schedules.items():
            if other in (number, TURN_WAIT):
                schedule.response_ended(response, started, now)
            else:
                schedule.due = max(schedule.due, now + MIN_DISTANCE)
        self._apply(FillerInput.RESPONSE_ENDED)
        self._check_waits()

    @property
    def wants_thinking_sound(self) -> bool:
        return self.state is WaitState.WAITING

    # private

    def _candidates(self) -> dict[int, _Schedule]:
        """Return the schedules whose next response may be said, by number; see `TURN_WAIT`."""
        candidates = {number: schedule for number, schedule in self._schedules.items() if schedule.responses_left}
        others = [schedule.due for number, schedule in candidates.items() if number != TURN_WAIT]
        if others and min(others) <= self._silent_since + OTHER_RESPONSE_WITHIN:
            candidates.pop(TURN_WAIT, None)
        return candidates

    def _check_waits(self) -> None:
        if not self._schedules:
            self._apply(FillerInput.NO_WAIT_LEFT)

    def _apply(self, filler_input: FillerInput) -> FillerEffect | None:
        """Change the state, which nothing else does, and return what is to be done."""
        self.state, effect = TRANSITIONS.get((self.state, filler_input), (self.state, None))
        return effect


def is_sound(text: str) -> bool:
    """Return whether a response is one or more audio tags (`[Ring]`) without words."""
    return _AUDIO_TAGS.fullmatch(text) is not None
