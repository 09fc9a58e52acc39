"""A caller whose phone sends no packets while it is muted hears the agent's prompts to their ends."""

from __future__ import annotations

from callagent.call.state import CallState
from callagent.legs import CallLeg
from callagent.turns import CallerTurnEnded, FloorYielded, NoInput, TurnEvent

PROMPTED_SILENCES = 3
"""Silent turns in a row for which missing media does not end the call: the agent prompts the caller after each."""


class MediaTimeout:
    """Tells the leg when missing media may end the call.

    Many phones send nothing at all while they are muted, which on the wire looks like a caller who has vanished. As
    long as the agent prompts, its own limit of silences decides; the media time-out is for calls that have no such
    limit, and for those in which nobody prompts: during a transfer or a bridge.
    """

    def __init__(self, leg: CallLeg) -> None:
        self._leg = leg
        self._silences = 0

    def state_changed(self, state: CallState) -> None:
        self._silences = 0
        self._leg.expect_media(state in (CallState.TRANSFERRING, CallState.BRIDGED))

    def turn_event(self, event: TurnEvent) -> None:
        match event:
            case NoInput():
                self._silences += 1
            case CallerTurnEnded():
                self._silences = 0
                self._leg.expect_media(False)
            case FloorYielded() if self._silences > PROMPTED_SILENCES:
                self._leg.expect_media(True)
            case _:
                """Who has the floor is all that counts."""
