"""When the next delay response of a slow function is due (`@func_latency_control`).

The first starts `delay_before_start` after the function did, each further one `silence_after_each` after the one
before it has ended. Each is said once, in order.
"""

from __future__ import annotations

import re

from callagent.agents.action import DelayResponse, LatencyControl

_AUDIO_TAGS = re.compile(r"\s*(\[[^\]]*\]\s*)+")


class FillerSchedule:
    """One function's fillers."""

    def __init__(self, control: LatencyControl, started: float) -> None:
        self._control = control
        self._waiting = list(control.responses)
        self._said: DelayResponse | None = None
        self._said_at = 0.0
        self.deadline: float | None = started + control.delay_before_start if self._waiting else None
        """When `due` is to be asked; None while one is said, after `stop`, and after the last."""

    def due(self, now: float) -> DelayResponse | None:
        """The response to say now. Tell with `ended` when it has been heard."""
        if self.deadline is None or now < self.deadline:
            return None
        self.deadline = None
        self._said = self._waiting.pop(0)
        self._said_at = now
        return self._said

    def ended(self, started: float | None, now: float) -> None:
        """The response was heard to its end, or could not be said (`started` None)."""
        if self._said is None:
            return
        if started is not None and _AUDIO_TAGS.fullmatch(self._said.text):
            now = max(now, started + self._said.duration)
        self._said = None
        if self._waiting:
            self.deadline = now + self._control.silence_after_each

    def stop(self) -> None:
        """The function ended, its answer is there, or the caller interrupted: none starts any more."""
        self._waiting.clear()
        self.deadline = None
