"""Turn-taking: everything between a leg's media and the call.

    turns = TurnManager(CallerInput(recognizer, voice_activity), voice, inbox.put_nowait, TurnSettings())
    async with turns:                                   # opens the recogniser's stream; closes all that it started
        turns.start(await leg.answer())                 # calls media.start(turns.on_frame, turns.next_frame)
        match event:                                    # of the call's one inbox
            case Say(text=text, interruptible=ok): turns.say(text, interruptible=ok)
            case FunctionStarted(number=n, latency=latency): turns.function_started(n, latency)
            case FunctionEnded(number=n): turns.function_ended(n)
            case Listen(settings=settings): turns.listen(settings)      # the caller's turn, once everything is heard
            case HangUp() | Handoff(): await turns.played_out()         # under the call's own timeout
            case DigitPressed(digit=digit): turns.on_digit(digit)
            case CallerTurnEnded() | NoInput(): ...     # run agent.reply(CallerTurn(text, alternatives, digits))
            case BargedIn(heard_text=text): ...         # close the reply; agent.heard(text, cut=True)
            case TurnReopened(): ...                    # close the reply; CallerTurnEnded with the whole text follows
            case FloorYielded(heard_text=text): ...     # agent.heard(text, cut=False)

The agent has the floor at first, and after `CallerTurnEnded` and `NoInput`; the caller has it after `FloorYielded`,
`BargedIn` and `TurnReopened`. What a reply says while the caller has the floor is dropped.
"""

from callagent.turns.caller_speech import CallerInput
from callagent.turns.endpointing import TurnModel
from callagent.turns.events import (
    BargedIn,
    CallerTurnEnded,
    FloorYielded,
    NoInput,
    PartialHeard,
    PlayoutPaused,
    PlayoutResumed,
    Span,
    SpeechFailed,
    TurnEvent,
    TurnReopened,
    TurnTimings,
    UtteranceFinished,
    UtteranceStarted,
)
from callagent.turns.floor import FloorState, TurnSettings
from callagent.turns.playout import Utterance, UtteranceKind
from callagent.turns.turn_manager import TurnManager
from callagent.turns.voice_activity_gate import VoiceActivity

__all__ = [
    "BargedIn",
    "CallerInput",
    "CallerTurnEnded",
    "FloorState",
    "FloorYielded",
    "NoInput",
    "PartialHeard",
    "PlayoutPaused",
    "PlayoutResumed",
    "Span",
    "SpeechFailed",
    "TurnEvent",
    "TurnManager",
    "TurnModel",
    "TurnReopened",
    "TurnSettings",
    "TurnTimings",
    "Utterance",
    "UtteranceFinished",
    "UtteranceKind",
    "UtteranceStarted",
    "VoiceActivity",
]
