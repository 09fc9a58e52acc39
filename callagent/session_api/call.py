"""A session with audio as a call: the client's inputs go to a leg, and what the agent says goes to the client."""

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
from callagent.session_api.audio import AudioDecoder, AudioEncoder, AudioForm, decode_base64
from callagent.session_api.leg import SessionLeg
from callagent.session_api.messages import error_message
from callagent.turns import BargedIn, CallerTurnEnded, FloorYielded, PartialHeard, TurnEvent, TurnReopened

NORMAL: Final = 1000
MAX_WAITING_INPUTS: Final = 20
"""Inputs that may wait for the call to be answered, and written ones that may wait for their turn."""
MAX_TEXT: Final = 64 * 1024
"""Characters of one input."""


class Sender(Protocol):
    """The part of `MediaSocket` that a call uses."""

    def send(self, text: str) -> None: ...

    def close(self, code: int, last_words: str = "", *, drain: bool = False) -> None: ...


class SessionCall:
    """Implements `SessionLink`. Inputs of the client go in by `take_input`, events of the turn manager by `watch`."""

    def __init__(self, socket: Sender, session: CxSession, project: CxProject, config: Mapping[str, Any]) -> None:
        """Raises `InputRefused` for a form of audio that is not supported."""
        self._socket = socket
        self._session = session
        input_form, output_form = (AudioForm.of(config, name) for name in ("inputAudioConfig", "outputAudioConfig"))
        self._decoder = AudioDecoder(input_form) if input_form else None
        self._encoder = AudioEncoder(output_form) if output_form else None
        self._spoken = SpokenSession(session, lambda output: self._send({"sessionOutput": output}))
        self.project = SpokenProject(project, self._spoken)
        self._leg: SessionLeg | None = None
        self._early: list[Callable[[], None]] | None = []
        """Inputs that came before the call was answered; None once it is answered."""
        self._pending = ""
        """Text whose continuation the client has announced."""
        self._written: deque[str] = deque()
        """Texts that the call has and that are no turn yet: their transcripts are not told to the client."""
        self._recognized = ""
        """The last transcript that the client was told."""
        self._refused = False
        """Whether a mistake of the client ended the call; the session goes on, maybe in another call."""

    def open(self, caller: str, identifier: str, clock: FrameClock) -> SessionLeg:
        """Make the leg of this call. Called once."""
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

    def take_input(self, given: Mapping[str, Any]) -> None:
        """Pass a `realtimeInput` on to the call. Raises `InputRefused` and `AudioTooEarly`."""
        match given:
            case {"audio": audio}:
                if self._decoder is None:
                    raise InputRefused("audio is taken where the configuration has 'inputAudioConfig'")
                self.leg.receive_audio(self._decoder.feed(decode_base64(audio)))
            case {"text": str(text)}:
                self._take_text(text, will_continue=bool(given.get("willContinue")))
            case {"dtmf": str(digits)}:
                self._when_answered(lambda: self.leg.press_keys(digits))
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
        """Tell the client what an event of the turn manager means for it."""
        match event:
            case PartialHeard(text=text):
                self._send_transcript(text)
            case CallerTurnEnded(text=text):
                if self._written and text == self._written[0]:
                    self._written.popleft()
                else:
                    self._send_transcript(text)
                self._recognized = ""
            case FloorYielded():
                self._pass_early_inputs()
                self._spoken.close_turn()
            case BargedIn() | TurnReopened():
                self._send({"interruptionSignal": {"bargeIn": True}})
                self._spoken.close_turn()

    def refuse(self, error: Exception) -> None:
        """End the call, but not the session, of a client that broke the rules."""
        self._refused = True
        self._send(error_message(400, str(error)))
        self._socket.close(NORMAL, drain=True)
        self.leg.fail(str(error))

    # SessionLink

    def send_audio(self, pcm: bytes) -> None:
        if self._encoder is not None:
            self._send({"sessionOutput": {"audio": self._encoder.feed(pcm), **self._spoken.turn_index}})

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
        def write_turn() -> None:
            self._written.append(text)
            self.leg.write_text(text)

        if len(self._written) >= MAX_WAITING_INPUTS:
            raise InputRefused(f"{MAX_WAITING_INPUTS} inputs wait to be answered")
        self._when_answered(write_turn)

    def _when_answered(self, do: Callable[[], None]) -> None:
        if self._early is None:
            do()
        elif len(self._early) < MAX_WAITING_INPUTS:
            self._early.append(do)
        else:
            raise InputRefused(f"{MAX_WAITING_INPUTS} inputs wait for the session to begin")

    def _pass_early_inputs(self) -> None:
        """Pass on what came before the first turn: the call is answered when the floor is yielded first."""
        early, self._early = self._early or [], None
        for do in early:
            do()

    def _send_transcript(self, text: str) -> None:
        if text and text != self._recognized:
            self._recognized = text
            self._send({"recognitionResult": {"transcript": text}})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._socket.send(json.dumps(message, ensure_ascii=False, default=str))


def has_audio(config: Mapping[str, Any]) -> bool:
    """Return whether a session's configuration names audio in either direction."""
    return bool(config.get("inputAudioConfig") or config.get("outputAudioConfig"))
