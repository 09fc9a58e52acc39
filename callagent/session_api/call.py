"""A session with audio as a call: its leg, and the translation between the call and the client's messages.

`SessionLeg` passes the client's audio on at the pace of speech, however fast it arrives. It sends the agent's audio
only slightly ahead of playback, because audio that the client has can be neither counted nor taken back. `SessionCall`
stands between the leg and the client's socket.
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
from callagent.session_api.messages import AudioDecoder, AudioEncoder, AudioFormat, decode_base64, error_message
from callagent.turns import BargedIn, CallerTurnEnded, FloorYielded, PartialHeard, TurnEvent, TurnReopened

log = get_logger(__name__)


class SessionLink(Protocol):
    """The client's socket. Every method returns at once; a failure of the socket is reported by `SessionLeg.cut`."""

    def send_audio(self, pcm: bytes) -> None:
        """Send 16-bit PCM at the call's rate."""

    def close(self, reason: EndReason) -> None:
        """Tell the client how the call ended, and close the socket."""


class SessionLeg:
    """The `legs.CallLeg` of a session; its methods from `receive_audio` on are for the client's socket."""

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
        """Refuse: the client of a session cannot be connected to another party."""
        return legs.TransferOutcome(legs.TransferStatus.FAILED, "the client of a session cannot be transferred")

    async def send_digits(self, digits: str) -> None:
        raise ValueError("digits cannot be sent to the client of a session")

    def expect_media(self, expected: bool) -> None:
        """Do nothing: a client that sends nothing is silent."""

    # ---- for the client's socket

    def receive_audio(self, pcm: bytes) -> None:
        """Handle the client's audio, 16-bit PCM at the call's rate. Raises `AudioTooEarly`."""
        if not self.closed:
            self._media.receive(pcm, self._clock.now())

    def press_keys(self, digits: str) -> None:
        """Handle the client's key presses one after the other; characters that are no key are left out."""
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


LEAD_SECONDS: Final = 0.06
"""Least seconds of audio that the client has in advance while the agent speaks; at most `MESSAGE_FRAMES` more."""
MESSAGE_FRAMES: Final = 5
"""Frames of 20 ms in one message at most."""
PAUSE_SECONDS: Final = 0.3
"""Seconds without audio after which the client counts as silent; a shorter gap is taken as a delay of the network."""
CATCH_UP_SECONDS: Final = 0.2
"""Silent frames are dropped while more seconds of audio than this wait, which reduces the delay again."""
MAX_WAITING_SECONDS: Final = 60.0
"""Seconds of audio that a client may be ahead of speech."""
_QUIET_RMS: Final = 60
"""Root mean square of the samples up to which a frame counts as silent."""
_SILENCE = bytes(FRAME_BYTES)


class AudioTooEarly(Exception):
    """The client sent audio more than `MAX_WAITING_SECONDS` seconds ahead of the time at which it is heard."""


class SessionMedia:
    """The `legs.Media` of a session; its methods from `receive` on are for the leg. Times are the loop's seconds."""

    def __init__(self, now: Callable[[], float], send: Callable[[bytes], None]) -> None:
        self._now = now
        self._send = send
        self._sink: legs.FrameSink | None = None
        self._source: legs.FrameSource | None = None
        self._received = bytearray()
        self._statistics = MediaStatistics(codec="L16/8000")
        self._last_received = now()
        self._playing_until = 0.0

    def start(self, sink: legs.FrameSink, source: legs.FrameSource) -> None:
        assert self._sink is None, "media is started once"
        self._sink = sink
        self._source = source

    def clear(self) -> float:
        """Drop nothing: the client has the audio already, and drops it when it is told of the interruption."""
        return 0.0

    def unheard(self) -> float:
        return round(max(0.0, self._playing_until - self._now()), 6)

    def statistics(self) -> MediaStatistics:
        return replace(self._statistics)

    def close(self) -> None:
        self._sink = self._source = None
        self._received.clear()

    def receive(self, pcm: bytes, now: float) -> None:
        """Buffer 16-bit PCM of any length for the following ticks. Raises `AudioTooEarly`."""
        # Clients may send a whole recording at once; this bounds how much of it is kept.
        if len(self._received) + len(pcm) > MAX_WAITING_SECONDS / FRAME_SECONDS * FRAME_BYTES:
            raise AudioTooEarly(f"audio is {MAX_WAITING_SECONDS:.0f} s ahead of its time; send it as it is spoken")
        self._received += pcm
        self._last_received = now

    def tick(self, now: float, lateness: float) -> None:
        self._deliver_frame(now)
        self._send_frames(now, lateness)

    def _deliver_frame(self, now: float) -> None:
        if self._sink is None:
            return
        # After a stall of the network all speech is heard: the delay is made up for in the client's pauses only.
        while len(self._received) > CATCH_UP_SECONDS / FRAME_SECONDS * FRAME_BYTES and self._is_quiet():
            del self._received[:FRAME_BYTES]
        if len(self._received) >= FRAME_BYTES:
            frame = bytes(self._received[:FRAME_BYTES])
            del self._received[:FRAME_BYTES]
            self._statistics.packets_received += 1
            self._sink(frame, now)
        elif now - self._last_received > PAUSE_SECONDS:
            # A client that sends nothing is silent: turns end and silences count all the same.
            self._sink(_SILENCE, now)

    def _is_quiet(self) -> bool:
        return audioop.rms(bytes(self._received[:FRAME_BYTES]), 2) <= _QUIET_RMS

    def _send_frames(self, now: float, lateness: float) -> None:
        if self._source is None or self._playing_until > now + LEAD_SECONDS:
            return
        self._statistics.send_lateness_max_ms = max(self._statistics.send_lateness_max_ms, lateness * 1000)
        frames: list[bytes] = []
        # The source may close the leg, which sets `_source` to None.
        while len(frames) < MESSAGE_FRAMES and self._source is not None:
            frame = self._source()
            if frame is None:
                break
            frames.append(frame)
        if not frames:
            return
        # Frames share a message, because a JSON message for every 20 ms would cost more than the audio.
        self._playing_until = max(self._playing_until, now) + len(frames) * FRAME_SECONDS
        self._statistics.packets_sent += len(frames)
        self._send(b"".join(frames))


NORMAL_CLOSURE: Final = 1000
"""Close code of RFC 6455 §7.4.1."""
MAX_WAITING_INPUTS: Final = 20
"""Inputs that may wait for the call to be answered, and texts that may wait for their turn."""
MAX_TEXT: Final = 64 * 1024
"""Characters of one input."""


class Sender(Protocol):
    """The part of a `MediaSocket` that a call uses."""

    def send(self, text: str) -> None: ...

    def close(self, code: int, last_words: str = "", *, drain: bool = False) -> None: ...


class SessionCall:
    """The `SessionLink` of one socket with audio.

    `receive_input` passes the client's inputs on to the call; `watch` reports events of the turn manager to the client.
    """

    def __init__(self, socket: Sender, session: cx.CxSession, project: cx.CxProject, config: JsonObject) -> None:
        """Read the audio formats of the configuration. Raises `InputRefused` for one that is not supported."""
        self._socket = socket
        self._session = session
        input_format, output_format = (
            AudioFormat.of(config, name) for name in ("inputAudioConfig", "outputAudioConfig")
        )
        self._decoder = AudioDecoder(input_format) if input_format else None
        self._encoder = AudioEncoder(output_format) if output_format else None
        self._spoken_session = cx.SpokenSession(session, lambda output: self._send({"sessionOutput": output}))
        self.project = cx.SpokenProject(project, self._spoken_session)
        self._leg: SessionLeg | None = None
        self._early_inputs: list[Callable[[], None]] | None = []
        """Functions that pass on the inputs from before the call was answered; None once it is answered."""
        self._pending_text = ""
        """Text whose continuation the client has announced."""
        self._written_texts: deque[str] = deque()
        """Texts of the client that are no turn yet. They are not sent back as transcripts: the client knows them."""
        self._last_transcript = ""
        """The last transcript that was sent to the client."""
        self._client_refused = False
        """Whether a mistake of the client ended the call; the session may continue in another call."""

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

    def receive_input(self, client_input: JsonObject) -> None:
        """Pass a `realtimeInput` on to the call. Raises `InputRefused` and `AudioTooEarly`."""
        match client_input:
            case {"audio": audio}:
                if self._decoder is None:
                    raise cx.InputRefused("audio needs 'inputAudioConfig' in the configuration")
                self.leg.receive_audio(self._decoder.feed(decode_base64(audio)))
            case {"text": str(text)}:
                self._receive_text(text, will_continue=bool(client_input.get("willContinue")))
            case {"dtmf": str(digits)}:
                self._run_when_answered(lambda: self.leg.press_keys(digits))
            case {"event": {"event": str(event)}}:
                self._write_turn(cx.event_words(event))
            case {"variables": dict(variables)}:
                self._session.agent.set_variables(variables)
            case {"toolResponses": {"toolResponses": [*answers]}}:
                self._spoken_session.answer_tools(answers)
                self._write_turn(cx.TOOL_ANSWERS)
            case _:
                known = "audio, text, dtmf, event, variables, toolResponses"
                raise cx.InputRefused(f"an input has one of {known}, of the API's form; got {sorted(client_input)}")

    def watch(self, event: TurnEvent) -> None:
        """Report an event of the turn manager to the client."""
        match event:
            case PartialHeard(text=text):
                self._send_transcript(text)
            case CallerTurnEnded(text=text):
                # A turn that the client wrote ends with the text it wrote.
                if self._written_texts and text == self._written_texts[0]:
                    self._written_texts.popleft()
                else:
                    self._send_transcript(text)
                self._last_transcript = ""
            # The agent has finished speaking, and it is the client's turn.
            case FloorYielded():
                self._pass_early_inputs()
                self._spoken_session.close_turn()
            case BargedIn() | TurnReopened():
                self._send({"interruptionSignal": {"bargeIn": True}})
                self._spoken_session.close_turn()

    def refuse(self, error: Exception) -> None:
        """End the call because of a client's mistake; the session may continue in another call."""
        self._client_refused = True
        self._send(error_message(400, str(error)))
        self._socket.close(NORMAL_CLOSURE, drain=True)
        self.leg.fail(str(error))

    # SessionLink

    def send_audio(self, pcm: bytes) -> None:
        if self._encoder is not None:
            self._send({"sessionOutput": {"audio": self._encoder.feed(pcm), **self._spoken_session.turn_index}})

    def close(self, reason: EndReason) -> None:
        # A client that has gone or made a mistake may continue the session, so it is not told that the session ended.
        self._spoken_session.close_turn()
        if reason is EndReason.DRAIN:
            self._send({"goAway": {}})
        elif reason is not EndReason.CALLER_HANGUP and not self._client_refused:
            metadata = self._spoken_session.end_metadata or {"reason": reason.value}
            self._session.ended = True
            self._send({"endSession": {"metadata": metadata}})
        self._socket.close(NORMAL_CLOSURE, drain=True)

    # private

    @property
    def leg(self) -> SessionLeg:
        assert self._leg is not None, "open() has been called"
        return self._leg

    def _receive_text(self, text: str, *, will_continue: bool) -> None:
        self._pending_text += text
        if len(self._pending_text) > MAX_TEXT:
            raise cx.InputRefused(f"the text has more than {MAX_TEXT} characters")
        if not will_continue and self._pending_text.strip():
            text, self._pending_text = self._pending_text.strip(), ""
            self._write_turn(text)

    def _write_turn(self, text: str) -> None:
        def write_now() -> None:
            self._written_texts.append(text)
            self.leg.write_text(text)

        # Texts are counted until their turns end, because each may cost a request to the model.
        if len(self._written_texts) >= MAX_WAITING_INPUTS:
            raise cx.InputRefused(f"{MAX_WAITING_INPUTS} inputs already wait to be answered; send fewer at a time")
        self._run_when_answered(write_now)

    def _run_when_answered(self, pass_on: Callable[[], None]) -> None:
        if self._early_inputs is None:
            pass_on()
        elif len(self._early_inputs) < MAX_WAITING_INPUTS:
            self._early_inputs.append(pass_on)
        else:
            raise cx.InputRefused(f"{MAX_WAITING_INPUTS} inputs already wait for the call to begin; send fewer before")

    def _pass_early_inputs(self) -> None:
        """Pass on the inputs from before the call was answered, which it is once the agent first yields the floor."""
        early, self._early_inputs = self._early_inputs or [], None
        for pass_on in early:
            pass_on()

    def _send_transcript(self, text: str) -> None:
        if text and text != self._last_transcript:
            self._last_transcript = text
            self._send({"recognitionResult": {"transcript": text}})

    def _send(self, message: JsonObject) -> None:
        self._socket.send(json.dumps(message, ensure_ascii=False, default=str))


def has_audio(config: JsonObject) -> bool:
    """Return whether a session's configuration names audio in either direction."""
    return bool(config.get("inputAudioConfig") or config.get("outputAudioConfig"))
