"""A session with audio as a call of the server: its leg, and what its inputs and outputs mean for the client.

`SessionLeg` is heard at the pace of speech, however fast the client sends, and sends slightly ahead of it: what the
client has can be neither counted nor taken back. `SessionCall` stands between the leg and the client's socket.
"""

from __future__ import annotations

import audioop
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol
from uuid import uuid4

from callagent import legs
from callagent.agents import cx
from callagent.audio import DIGITS, FRAME_BYTES, FRAME_SECONDS
from callagent.call_info import NO_HEADERS, CallInfo, EndReason, MediaStatistics
from callagent.carriers import FrameClock
from callagent.json_values import JsonObject
from callagent.log import get_logger
from callagent.session_api.messages import AudioDecoder, AudioEncoder, AudioForm, decode_base64, error_message
from callagent.turns import BargedIn, CallerTurnEnded, FloorYielded, PartialHeard, TurnEvent, TurnReopened

log = get_logger(__name__)


class SessionLink(Protocol):
    """The client's socket. Every method returns at once; failures come back as `SessionLeg.cut`."""

    def send_audio(self, pcm: bytes) -> None:
        """Send 16-bit PCM at the call's rate."""

    def close(self, reason: EndReason) -> None:
        """Tell the client how the call ended, and close the socket."""


class SessionLeg:
    """Implements `legs.CallLeg`; the methods below the line are for the client's socket."""

    def __init__(self, info: CallInfo, link: SessionLink, clock: FrameClock) -> None:
        self.info = info
        self.closed = False
        self._link = link
        self._clock = clock
        self._media = SessionMedia(clock.now, link.send_audio)
        self._events = legs.LegEvents()
        self.listen = self._events.listen
        clock.add(self)

    def ring(self) -> None:
        """Do nothing: a client that has connected hears no ringing."""

    async def answer(self) -> legs.Media:
        if self.closed:
            raise legs.LegGone("the client has gone")
        return self._media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        if not self.closed:
            self._close(reason)

    async def transfer(
        self, target: legs.TransferTarget, audio: legs.SwitchedMedia | None = None
    ) -> legs.TransferOutcome:
        """Refuse: the end of its session says where the client may go, but nobody can send it there."""
        return legs.TransferOutcome(legs.TransferStatus.FAILED, "a session ends, and its client goes on elsewhere")

    async def send_digits(self, digits: str) -> None:
        raise ValueError("a session's client takes no keys")

    def expect_media(self, expected: bool) -> None:
        """Do nothing: a client that sends nothing is silent."""

    # ---- for the client's socket

    def receive_audio(self, pcm: bytes) -> None:
        """Handle the client's audio, 16-bit PCM at the call's rate. Raises `AudioTooEarly`."""
        if not self.closed:
            self._media.receive(pcm, self._clock.now())

    def press_keys(self, digits: str) -> None:
        """Handle keys of the client, one after the other; characters that are no key are left out."""
        for digit in digits:
            if digit in DIGITS:
                self._events.emit(legs.DigitPressed(digit))

    def write_text(self, text: str) -> None:
        """Handle a text of the client, which is a whole turn."""
        self._events.emit(legs.WordsWritten(text))

    def cut(self) -> None:
        """Note that the socket has ended."""
        if not self.closed:
            self._close(EndReason.CALLER_HANGUP)
            self._events.emit(legs.CallerHungUp(EndReason.CALLER_HANGUP))

    def fail(self, detail: str, reason: EndReason = EndReason.ERROR) -> None:
        """Close a leg that cannot go on."""
        if not self.closed:
            self._close(reason)
            self._events.emit(legs.LegFailed(reason, detail))

    def tick(self, now: float, lateness: float) -> None:
        self._media.tick(now, lateness)

    def _close(self, reason: EndReason) -> None:
        log.debug("session_leg_closed", call=self.info.call_id)
        self.closed = True
        self._clock.remove(self)
        self._media.close()
        self._link.close(reason)


LEAD: Final = 0.06
"""Seconds of audio that the client has in advance at least while the agent speaks; at most `MESSAGE_FRAMES` more."""
MESSAGE_FRAMES: Final = 5
PAUSE: Final = 0.3
"""Seconds without audio after which the client counts as silent; after a shorter gap its audio goes on where it was."""
BEHIND: Final = 0.2
"""Seconds of waiting audio from which on silent frames are left out, until the client is heard without delay."""
MAX_WAITING: Final = 60.0
"""Seconds of audio that a client may be ahead of speech."""
_QUIET: Final = 60
"""Loudness (RMS) up to which a frame counts as silent."""
_SILENCE = bytes(FRAME_BYTES)


class AudioTooEarly(Exception):
    """The client sent audio more than `MAX_WAITING` seconds ahead of the time at which it is heard."""


class SessionMedia:
    """Implements `legs.Media`; the methods from `receive` on are for its leg. Times are the loop's seconds."""

    def __init__(self, now: Callable[[], float], send: Callable[[bytes], None]) -> None:
        self._now = now
        self._send = send
        self._sink: legs.FrameSink | None = None
        self._source: legs.FrameSource | None = None
        self._received = bytearray()
        self._statistics = MediaStatistics(codec="L16/8000")
        self._heard_from = now()
        self._playing_until = 0.0

    def start(self, sink: legs.FrameSink, source: legs.FrameSource) -> None:
        assert self._sink is None, "media is started once"
        self._sink = sink
        self._source = source

    def clear(self) -> float:
        """Drop nothing: the client has the audio. It is told of the interruption and drops it itself."""
        return 0.0

    def unheard(self) -> float:
        return round(max(0.0, self._playing_until - self._now()), 6)

    def statistics(self) -> MediaStatistics:
        return replace(self._statistics)

    def close(self) -> None:
        self._sink = self._source = None
        self._received.clear()

    def receive(self, pcm: bytes, now: float) -> None:
        """Keep 16-bit PCM of any length for the ticks to come. Raises `AudioTooEarly`."""
        # Clients may send a whole recording at once; this bounds how much of it is kept.
        if len(self._received) + len(pcm) > MAX_WAITING / FRAME_SECONDS * FRAME_BYTES:
            raise AudioTooEarly(f"audio is {MAX_WAITING:.0f} s ahead of its time; send it as it is spoken")
        self._received += pcm
        self._heard_from = now

    def tick(self, now: float, lateness: float) -> None:
        self._deliver_frame(now)
        self._send_frames(now, lateness)

    def _deliver_frame(self, now: float) -> None:
        if self._sink is None:
            return
        # Speech is never left out, only pauses: after a stall of the network the client is understood, then caught up
        # with.
        while len(self._received) > BEHIND / FRAME_SECONDS * FRAME_BYTES and self._is_quiet():
            del self._received[:FRAME_BYTES]
        if len(self._received) >= FRAME_BYTES:
            frame = bytes(self._received[:FRAME_BYTES])
            del self._received[:FRAME_BYTES]
            self._statistics.packets_received += 1
            self._sink(frame, now)
        elif now - self._heard_from > PAUSE:
            # A client that sends nothing is silent: turns end and silences count all the same.
            self._sink(_SILENCE, now)

    def _is_quiet(self) -> bool:
        return audioop.rms(bytes(self._received[:FRAME_BYTES]), 2) <= _QUIET

    def _send_frames(self, now: float, lateness: float) -> None:
        if self._source is None or self._playing_until > now + LEAD:
            return
        self._statistics.send_lateness_max_ms = max(self._statistics.send_lateness_max_ms, lateness * 1000)
        frames: list[bytes] = []
        # The source may make the leg close itself.
        while len(frames) < MESSAGE_FRAMES and self._source is not None:
            frame = self._source()
            if frame is None:
                break
            frames.append(frame)
        # Several frames in a message: each is JSON with base64, and one for each 20 ms would cost more than the audio.
        if not frames:
            return
        self._playing_until = max(self._playing_until, now) + len(frames) * FRAME_SECONDS
        self._statistics.packets_sent += len(frames)
        self._send(b"".join(frames))


NORMAL: Final = 1000
MAX_WAITING_INPUTS: Final = 20
"""Inputs that may wait for the call to be answered, and texts that may wait for their turn."""
MAX_TEXT: Final = 64 * 1024
"""Characters of one input."""


class Sender(Protocol):
    """The part of a `MediaSocket` that a call uses."""

    def send(self, text: str) -> None: ...

    def close(self, code: int, last_words: str = "", *, drain: bool = False) -> None: ...


class SessionCall:
    """Implements `SessionLink` for one socket with audio.

    Inputs of the client come by `receive_input`, events of the turn manager by `watch`; both become messages to the
    other.
    """

    def __init__(self, socket: Sender, session: cx.CxSession, project: cx.CxProject, config: JsonObject) -> None:
        """Raises `InputRefused` for a form of audio that is not supported."""
        self._socket = socket
        self._session = session
        input_form, output_form = (AudioForm.of(config, name) for name in ("inputAudioConfig", "outputAudioConfig"))
        self._decoder = AudioDecoder(input_form) if input_form else None
        self._encoder = AudioEncoder(output_form) if output_form else None
        self._spoken = cx.SpokenSession(session, lambda output: self._send({"sessionOutput": output}))
        self.project = cx.SpokenProject(project, self._spoken)
        self._leg: SessionLeg | None = None
        self._early: list[Callable[[], None]] | None = []
        """What to do with inputs that came before the call was answered; None once it is answered."""
        self._pending = ""
        """Text whose continuation the client has announced."""
        self._written: deque[str] = deque()
        """Texts of the client that are no turn yet. Their transcripts are not sent: the client knows its own words."""
        self._recognized = ""
        """The last transcript that was sent to the client."""
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

    def receive_input(self, given: JsonObject) -> None:
        """Pass a `realtimeInput` on to the call. Raises `InputRefused` and `AudioTooEarly`."""
        match given:
            case {"audio": audio}:
                if self._decoder is None:
                    raise cx.InputRefused("audio is taken where the configuration has 'inputAudioConfig'")
                self.leg.receive_audio(self._decoder.feed(decode_base64(audio)))
            case {"text": str(text)}:
                self._take_text(text, will_continue=bool(given.get("willContinue")))
            case {"dtmf": str(digits)}:
                self._when_answered(lambda: self.leg.press_keys(digits))
            case {"event": {"event": str(event)}}:
                self._write(cx.event_words(event))
            case {"variables": dict(variables)}:
                self._session.agent.set_variables(variables)
            case {"toolResponses": {"toolResponses": [*answers]}}:
                self._spoken.answer_tools(answers)
                self._write(cx.TOOL_ANSWERS)
            case _:
                known = "audio, text, dtmf, event, variables, toolResponses"
                raise cx.InputRefused(f"an input has one of {known}, of the API's form; got {sorted(given)}")

    def watch(self, event: TurnEvent) -> None:
        """Send the client what an event of the turn manager means for it."""
        match event:
            case PartialHeard(text=text):
                self._send_transcript(text)
            case CallerTurnEnded(text=text):
                # A turn that the client wrote comes back with its own text.
                if self._written and text == self._written[0]:
                    self._written.popleft()
                else:
                    self._send_transcript(text)
                self._recognized = ""
            # The agent has said all that it wanted to: the client may speak.
            case FloorYielded():
                self._pass_early_inputs()
                self._spoken.close_turn()
            case BargedIn() | TurnReopened():
                self._send({"interruptionSignal": {"bargeIn": True}})
                self._spoken.close_turn()

    def refuse(self, error: Exception) -> None:
        """End the call of a client that broke the rules; the session can go on, maybe in another call."""
        self._refused = True
        self._send(error_message(400, str(error)))
        self._socket.close(NORMAL, drain=True)
        self.leg.fail(str(error))

    # SessionLink

    def send_audio(self, pcm: bytes) -> None:
        if self._encoder is not None:
            self._send({"sessionOutput": {"audio": self._encoder.feed(pcm), **self._spoken.turn_index}})

    def close(self, reason: EndReason) -> None:
        # A client that has gone, or was refused, is not told that the session ended: it may continue it.
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
            raise cx.InputRefused(f"the text has more than {MAX_TEXT} characters")
        if not will_continue and self._pending.strip():
            text, self._pending = self._pending.strip(), ""
            self._write(text)

    def _write(self, text: str) -> None:
        def write_turn() -> None:
            self._written.append(text)
            self.leg.write_text(text)

        # Counted until their turns come back: each may cost a request to the model.
        if len(self._written) >= MAX_WAITING_INPUTS:
            raise cx.InputRefused(f"{MAX_WAITING_INPUTS} inputs wait to be answered")
        self._when_answered(write_turn)

    def _when_answered(self, do: Callable[[], None]) -> None:
        if self._early is None:
            do()
        elif len(self._early) < MAX_WAITING_INPUTS:
            self._early.append(do)
        else:
            raise cx.InputRefused(f"{MAX_WAITING_INPUTS} inputs wait for the session to begin")

    def _pass_early_inputs(self) -> None:
        """Pass on the inputs from before the first turn: the call is answered once the agent yields the floor."""
        early, self._early = self._early or [], None
        for do in early:
            do()

    def _send_transcript(self, text: str) -> None:
        if text and text != self._recognized:
            self._recognized = text
            self._send({"recognitionResult": {"transcript": text}})

    def _send(self, message: JsonObject) -> None:
        self._socket.send(json.dumps(message, ensure_ascii=False, default=str))


def has_audio(config: JsonObject) -> bool:
    """Return whether a session's configuration names audio in either direction."""
    return bool(config.get("inputAudioConfig") or config.get("outputAudioConfig"))
