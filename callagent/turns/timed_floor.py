"""The floor in real time: its one timer, and its inputs one after another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from callagent.log import get_logger
from callagent.turns.floor import Effect, Floor, FloorState, FloorTimes, Input

log = get_logger(__name__)


class FloorClock:
    """Gives the machine what happens and the passing of time, and has its effects done."""

    def __init__(
        self, times: FloorTimes, do: Callable[[Effect, float], None], entered: Callable[[float], None]
    ) -> None:
        """`do` an effect, and look about when another state was `entered`; both at a time of the loop."""
        self._loop = asyncio.get_running_loop()
        self._floor = Floor(times)
        self._do = do
        self._entered = entered
        self._inputs: deque[tuple[Input, float | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def state(self) -> FloorState:
        return self._floor.state

    @property
    def silent_since(self) -> float:
        """Of the silence in PAUSED and ENDING."""
        return self._floor.silent_since

    def set_times(self, times: FloorTimes) -> None:
        """They count from the next change of state."""
        self._floor.times = times

    def input(self, given: Input, since: float | None = None) -> None:
        """Give the floor an input and do what follows. What the effects themselves input comes after them."""
        if self._closed:
            return
        self._inputs.append((given, since))
        if len(self._inputs) > 1:
            return
        while self._inputs:
            given, since = self._inputs[0]
            old, now = self._floor.state, self._loop.time()
            for effect in self._floor.input(given, now, since):
                self._do(effect, now)
            if self._floor.state is not old:
                log.debug("floor", old=old.value, new=self._floor.state.value, input=given.name)
                self._entered(now)
            self._inputs.popleft()
        self._arm()

    def be_patient(self, seconds: float) -> None:
        """The silence that ends the caller's turn, of the one that is now; nothing where there is none."""
        self._floor.be_patient(seconds)
        self._arm()

    def close(self) -> None:
        """Ignore every further input and drop the callbacks, whose owner holds this floor. Idempotent."""
        self._closed = True
        self._inputs.clear()
        self._do = self._entered = _ignore
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._floor.deadline
        self._timer = None if due is None else self._loop.call_at(due, self.input, Input.DEADLINE)


def _ignore(*_: object) -> None:
    """Stand in for the callbacks of a closed floor."""
