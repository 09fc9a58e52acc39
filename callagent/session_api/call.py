"""A session with audio is a call: the client's socket on one side, a leg of the server's on the other."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import uuid4

from callagent.agents.cx import (
    TOOL_ANSWERS,
    CxProject,
    CxSession,
    InputRefused,
    SpokenProject,
    SpokenSession,
    event_words,
)
from callagent.call_info import CallInfo, EndReason
from callagent.carriers import FrameClock
from callagent.session_api.audio import AudioForm, Inward, Outward, decoded
from callagent.session_api.leg import SessionLeg
from callagent.session_api.messages import error_message
from callagent.turns import BargedIn, CallerTurnEnded, FloorYielded, PartialHeard, TurnEvent, TurnReopened

NORMAL: Final = 1000
MOST_EARLY: Final = 20
"""Inputs that may wait for the call to be answered."""
MAX_TEXT: Final = 64 * 1024
"""Characters of one input."""


class Sender(Protocol):
    """What of `MediaSocket` is needed."""

    def send(self, text: str) -> None: ...

    def close(self, code: int, last_words: str = "", *, drain: bool = False) -> None: ...


class SessionCall:
    """Implements `legs.session_leg.SessionLink`. Inputs go in by `take`; `watch` hears the turn manager."""

    def __init__(self, socket: Sender, session: CxSession, project: CxProject, config: Mapping[str, Any]) -> None:
        """Raises `InputRefused` for audio of another form than is taken."""
        self._socket = socket
        self._session = session
        heard, said = (AudioForm.of(config, name) for name in ("inputAudioConfig", "outputAudioConfig"))
        self._inward = Inward(heard) if heard else None
        self._outward = Outward(said) if said else None
        self._spoken = SpokenSession(session, lambda output: self._send({"sessionOutput": output}))
        self.project = SpokenProject(project, self._spoken)
        self._leg: SessionLeg | None = None
        self._early: list[Callable[[], None]] | None = []
        """Inputs before the call was answered; None: it is."""
        self._pending = ""
        """Text that will continue."""
        self._written: deque[str] = deque()
        """Given to the call, and no turn yet."""
        self._recognised = ""
        self._refused = False
        """The client's own fault ended the call: the session goes on in another."""

    def open(self, caller: str, identifier: str, clock: FrameClock) -> SessionLeg:
        """The leg; once."""
        info = CallInfo(
            call_id=uuid4().hex,
            direction="inbound",
            caller=caller,
            callee=None,
            wire="session",
            started=datetime.now(UTC),
            peer_call_id=identifier,
        )
        self._leg = SessionLeg(info, self, clock)
        return self._leg

    def take(self, given: Mapping[str, Any]) -> None:
        """One `realtimeInput`. Raises `InputRefused` and `AudioTooEarly`."""
        match given:
            case {"audio": audio}:
                if self._inward is None:
                    raise InputRefused("audio is taken where the configuration has 'inputAudioConfig'")
                self.leg.hear(self._inward.feed(decoded(audio)))
            case {"text": str(text)}:
                self._take_text(text, will_continue=bool(given.get("willContinue")))
            case {"dtmf": str(digits)}:
                self._when_answered(lambda: self.leg.press(digits))
            case {"event": {"event": str(event)}}:
                self._write(event_words(event))
            case {"variables": dict(variables)}:
                self._session.agent.set_variables(variables)
            case {"toolResponses": {"toolResponses": [*answers]}}:
                self._spoken.answer_tools(answers)
                self._write(TOOL_ANSWERS)
            case _:
                known = "audio, text, dtmf, event, variables, toolResponses"
                raise InputRefused(f"an input has one of {known}, of the API's form; got {sorted(given)}")

    def watch(self, event: TurnEvent) -> None:
        """What the turn manager tells the call."""
        match event:
            case PartialHeard(text=text):
                self._recognise(text)
            case CallerTurnEnded(text=text):
                if self._written and text == self._written[0]:
                    self._written.popleft()
                else:
                    self._recognise(text)
                self._recognised = ""
            case FloorYielded():
                self._answered()
                self._spoken.close_turn()
            case BargedIn() | TurnReopened():
                self._send({"interruptionSignal": {"bargeIn": True}})
                self._spoken.close_turn()

    def refuse(self, error: Exception) -> None:
        """The client broke the rules: the call ends, the session does not."""
        self._refused = True
        self._send(error_message(400, str(error)))
        self._socket.close(NORMAL, drain=True)
        self.leg.fail(str(error))

    # the leg's link

    def send_audio(self, pcm: bytes) -> None:
        if self._outward is not None:
            self._send({"sessionOutput": {"audio": self._outward.feed(pcm), **self._spoken.turn_index}})

    def close(self, reason: EndReason) -> None:
        self._spoken.close_turn()
        if reason is EndReason.DRAIN:
            self._send({"goAway": {}})
        elif reason is not EndReason.CALLER_HANGUP and not self._refused:
            metadata = self._spoken.end_metadata or {"reason": reason.value}
            self._session.ended = True
            self._send({"endSession": {"metadata": metadata}})
        self._socket.close(NORMAL, drain=True)

    # private

    @property
    def leg(self) -> SessionLeg:
        assert self._leg is not None, "opened before anything is taken"
        return self._leg

    def _take_text(self, text: str, *, will_continue: bool) -> None:
        self._pending += text
        if len(self._pending) > MAX_TEXT:
            raise InputRefused(f"the text has more than {MAX_TEXT} characters")
        if not will_continue and self._pending.strip():
            text, self._pending = self._pending.strip(), ""
            self._write(text)

    def _write(self, text: str) -> None:
        def write() -> None:
            self._written.append(text)
            self.leg.write(text)

        if len(self._written) >= MOST_EARLY:
            raise InputRefused(f"{MOST_EARLY} inputs wait to be answered")
        self._when_answered(write)

    def _when_answered(self, do: Callable[[], None]) -> None:
        if self._early is None:
            do()
        elif len(self._early) < MOST_EARLY:
            self._early.append(do)
        else:
            raise InputRefused(f"{MOST_EARLY} inputs wait for the session to begin")

    def _answered(self) -> None:
        early, self._early = self._early or [], None
        for do in early:
            do()

    def _recognise(self, text: str) -> None:
        if text and text != self._recognised:
            self._recognised = text
            self._send({"recognitionResult": {"transcript": text}})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._socket.send(json.dumps(message, ensure_ascii=False, default=str))


def has_audio(config: Mapping[str, Any]) -> bool:
    return bool(config.get("inputAudioConfig") or config.get("outputAudioConfig"))
