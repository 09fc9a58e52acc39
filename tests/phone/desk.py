"""The desk that the scripted conversations are with: an agent of fixed answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from callagent.agents import (
    Action,
    CallerTurn,
    DelayResponse,
    DigitSettings,
    Emit,
    FunctionEnded,
    FunctionStarted,
    Handoff,
    HandoffFailed,
    HangUp,
    LatencyControl,
    Listen,
    ListenSettings,
    Say,
)
from tests.fakes import FakeAgent

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LISTEN = Listen(ListenSettings(digits=DigitSettings(end_key="#", first_digit_timeout=5.0)))
ANSWERS = {
    "parcel": "what is the number of your parcel?",
    "eight": "it arrives on monday. anything else?",
    "open": "we are open from nine to five on all days of the week from monday to friday except on holidays.",
    "stop": "of course. go ahead.",
}
SLOW = LatencyControl(0.5, 1.0, (DelayResponse("one moment please.", 1.0),))


@dataclass
class Desk(FakeAgent):
    greeting: tuple[Action, ...] = (Say("welcome to the desk. how can i help?"), LISTEN)

    async def reply(self, turn: CallerTurn | HandoffFailed, emit: Emit) -> None:
        self.turns.append(turn)
        text = turn.text if isinstance(turn, CallerTurn) else ""
        if isinstance(turn, CallerTurn) and turn.digits:
            spoken = " ".join(DIGITS[int(digit)] for digit in turn.digits)
            emit(Say(f"parcel {spoken} is on its way."))
        elif "slowly" in text:
            emit(FunctionStarted(1, "look_up", {}, SLOW))
            await asyncio.sleep(2.5)
            emit(FunctionEnded(1, "look_up", {}, "found", None, 2500.0))
            emit(Say("i found it."))
        elif "person" in text:
            emit(Say("i will connect you."))
            emit(Handoff("people", "asked", "refer"))
            return
        elif "goodbye" in text:
            emit(Say("goodbye."))
            emit(HangUp())
            return
        else:
            known = next((answer for word, answer in ANSWERS.items() if word in text), "")
            emit(Say(known or ("please say that again." if text else "are you still there?")))
        emit(LISTEN)
