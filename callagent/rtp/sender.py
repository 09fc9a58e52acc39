"""What a media session sends: one packet a frame, audio or a key press, numbered and stamped without a gap."""

from __future__ import annotations

import secrets
from collections import deque

from callagent.call_info import FRAME_BYTES
from callagent.rtp.codec import Codec
from callagent.rtp.packet import HEADER, VERSION
from callagent.rtp.telephone_event import PAUSE_FRAMES, TelephoneEvent, digit_events

FRAMES_PER_SECOND = 50
_SILENCE = bytes(FRAME_BYTES)
_DigitStep = TelephoneEvent | None
"""None: a frame of pause after a digit."""


class RtpSender:
    """The sending side without its socket. `frame_to_send` is for the pump's thread, the rest for the event loop."""

    def __init__(self, codec: Codec) -> None:
        self.ssrc = secrets.randbits(32)
        self.timestamp = secrets.randbits(32)
        """Of the next frame."""
        self.packets = 0
        self.octets = 0
        self._sequence = secrets.randbits(16)
        self._talkspurt_starts = False
        # Appended to by the loop, taken from by the pump: both are atomic.
        self._steps: deque[_DigitStep] = deque()
        self._event_timestamp: int | None = None
        self._negotiated: tuple[Codec, bytes | None, int | None] = (codec, None, None)
        self._event_units = 0
        self.use(codec, None)

    def use(self, codec: Codec, telephone_event: int | None, event_rate: int = 8000) -> None:
        """What the last offer and answer agreed on; from the next frame on."""
        present = self._negotiated[0]
        # The peer's decoder remembers our stream: so does the encoder that goes on.
        codec = present if codec.is_like(present) else codec
        silence = None if codec.remembers else codec.encode(_SILENCE)
        self._event_units = event_rate // FRAMES_PER_SECOND
        # One swap: the pump sees all of the old or all of the new.
        self._negotiated = (codec, silence, telephone_event)

    def press(self, digits: str) -> None:
        """Queue key presses; they replace the audio. Raises `ValueError` before anything is queued."""
        pressed = [digit_events(digit, self._event_units) for digit in digits]
        for events in pressed:
            self._steps.extend([*events, *[None] * PAUSE_FRAMES])

    @property
    def pressing(self) -> bool:
        return bool(self._steps)

    def release(self) -> None:
        """Forget the digits not yet sent."""
        self._steps.clear()

    def skip(self, frames: int) -> None:
        """Frames that are never sent: the timestamp moves, the sequence number does not."""
        self.timestamp = (self.timestamp + frames * self._negotiated[0].frame_units) & 0xFFFFFFFF

    def resume(self) -> None:
        """Audio begins again after a pause in sending (RFC 3551 §4.1)."""
        self._talkspurt_starts = True

    def frame_to_send(self, pcm: bytes | None) -> bytes:
        """The next packet; `pcm` is one frame, None for silence, and is lost while a digit is sent."""
        codec, silence, telephone_event = self._negotiated
        step = self._steps.popleft() if self._steps else None
        if step is not None and telephone_event is not None:
            return self._event_packet(step, telephone_event)
        if self._event_timestamp is not None:
            self._event_timestamp = None
            self._talkspurt_starts = True
        marker, self._talkspurt_starts = self._talkspurt_starts, False
        payload = silence if pcm is None and silence is not None else codec.encode(pcm or _SILENCE)
        return self._packet(codec.payload_type, self.timestamp, marker, payload)

    def _event_packet(self, event: TelephoneEvent, payload_type: int) -> bytes:
        marker = self._event_timestamp is None
        if self._event_timestamp is None:
            self._event_timestamp = self.timestamp
        return self._packet(payload_type, self._event_timestamp, marker, bytes(event))

    def _packet(self, payload_type: int, timestamp: int, marker: bool, payload: bytes) -> bytes:
        sequence = self._sequence
        self._sequence = (sequence + 1) & 0xFFFF
        self.timestamp = (self.timestamp + self._negotiated[0].frame_units) & 0xFFFFFFFF
        self.packets += 1
        self.octets += len(payload)
        kind = payload_type | (0x80 if marker else 0)
        return HEADER.pack(VERSION << 6, kind, sequence, timestamp, self.ssrc) + payload
