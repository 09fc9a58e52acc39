"""The sending side of a media session, without its socket: packets of audio or key presses, without a gap in time.

A packet holds one frame, or two or three if the peer asks for longer packets.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from callagent.audio import FRAME_BYTES
from callagent.rtp.codec import Codec, RtpParameters
from callagent.rtp.packet import HEADER, PAUSE_FRAMES, VERSION, TelephoneEvent, digit_events

FRAMES_PER_SECOND = 50
_SILENCE = bytes(FRAME_BYTES)
_DigitStep = TelephoneEvent | bytes | None
"""One frame of a key press: a telephone event, a frame of tone in the audio, or None for the pause after a digit."""


class _Negotiated(NamedTuple):
    """The outcome of an offer and answer, as the pump uses it."""

    codec: Codec
    silence: bytes | None
    """One encoded frame of silence; None for a codec with a state."""
    telephone_event: int | None
    packet_frames: int
    collected: list[bytes]
    """Frames of the next packet, if a packet holds several; only the pump changes them."""


class RtpSender:
    """The packets of one stream. The pump's thread calls `frame_to_send` and `skip`, the event loop all the rest."""

    def __init__(self, codec: Codec) -> None:
        self.ssrc = secrets.randbits(32)
        self.timestamp = secrets.randbits(32)
        """The timestamp of the next frame."""
        self.packets = 0
        self.octets = 0
        self._sequence = secrets.randbits(16)
        self._talkspurt_starts = False
        # The loop appends and the pump takes: both operations of a deque are atomic, so there is no lock.
        self._steps: deque[_DigitStep] = deque()
        self._event_timestamp: int | None = None
        self._negotiated = _Negotiated(codec, None, None, 1, [])
        self._event_units = 0
        self.use(RtpParameters(codec))

    def use(self, parameters: RtpParameters) -> None:
        """Apply the outcome of an offer and answer from the next frame on."""
        codec, present = parameters.codec, self._negotiated.codec
        # The peer's decoder has a state of our stream, so an encoder of the same codec continues with its own.
        codec = present if codec.is_like(present) else codec
        # Silence is encoded once here instead of fifty times a second while the agent is silent.
        silence = None if codec.is_stateful else codec.encode(_SILENCE)
        self._event_units = parameters.telephone_event_rate // FRAMES_PER_SECOND
        # One assignment: the pump, which reads it once for each frame, sees either all old values or all new ones. The
        # list is new, too: frames that were collected for the old codec are dropped, and no list has two threads.
        self._negotiated = _Negotiated(codec, silence, parameters.telephone_event, parameters.packet_frames, [])

    def press(self, digits: str) -> None:
        """Queue key presses, which replace the audio. Raises `ValueError` before anything is queued."""
        pressed = [digit_events(digit, self._event_units) for digit in digits]
        for events in pressed:
            self._steps.extend([*events, *[None] * PAUSE_FRAMES])

    def play(self, frames: Iterable[bytes]) -> None:
        """Queue frames that replace the audio: digits as tones, for a peer without telephone events."""
        self._steps.extend(frames)

    @property
    def is_pressing(self) -> bool:
        """Whether digits are still to be sent."""
        return bool(self._steps)

    def drop_digits(self) -> None:
        """Drop the digits and tones that are not yet sent."""
        self._steps.clear()

    def skip(self, frames: int) -> None:
        """Count frames that are never sent: the timestamp moves, and the sequence number does not."""
        negotiated = self._negotiated
        negotiated.collected.clear()
        self.timestamp = (self.timestamp + frames * negotiated.codec.frame_units) & 0xFFFFFFFF

    def resume(self) -> None:
        """Mark the next audio packet as the first after a pause in sending (RFC 3551 §4.1)."""
        self._talkspurt_starts = True

    def frame_to_send(self, pcm: bytes | None) -> bytes:
        """Return the next packet; `pcm` is one frame, or None for silence, and is dropped while a digit is sent.

        The packet is empty while the frames of a longer one are collected.
        """
        codec, silence, telephone_event, packet_frames, collected = self._negotiated
        step = self._steps.popleft() if self._steps else None
        if isinstance(step, bytes):
            pcm = step
        elif step is not None and telephone_event is not None:
            collected.clear()
            return self._event_packet(step, telephone_event, codec)
        # The event is over: the next one has a timestamp of its own, and audio after a pause is marked (RFC 3551 §4.1).
        if self._event_timestamp is not None:
            self._event_timestamp = None
            self._talkspurt_starts = True
        if packet_frames > 1:
            collected.append(pcm or _SILENCE)
            return self._collected_packet(collected, codec, packet_frames)
        marker, self._talkspurt_starts = self._talkspurt_starts, False
        payload = silence if pcm is None and silence is not None else codec.encode(pcm or _SILENCE)
        return self._packet(codec, codec.payload_type, self.timestamp, marker, payload)

    def _collected_packet(self, collected: list[bytes], codec: Codec, packet_frames: int) -> bytes:
        """Return the packet of the collected frames; empty if some are still missing."""
        count = len(collected)
        if count < packet_frames:
            self.timestamp = (self.timestamp + codec.frame_units) & 0xFFFFFFFF
            return b""
        payload = codec.encode(b"".join(collected))
        collected.clear()
        marker, self._talkspurt_starts = self._talkspurt_starts, False
        # The timestamp of a packet is that of its first sample (RFC 3550 §5.1).
        start = (self.timestamp - (count - 1) * codec.frame_units) & 0xFFFFFFFF
        return self._packet(codec, codec.payload_type, start, marker, payload)

    def _event_packet(self, event: TelephoneEvent, payload_type: int, codec: Codec) -> bytes:
        # All packets of an event have the timestamp of its beginning; the first is marked (RFC 4733 §2.2.1, §2.2.2).
        marker = self._event_timestamp is None
        if self._event_timestamp is None:
            self._event_timestamp = self.timestamp
        return self._packet(codec, payload_type, self._event_timestamp, marker, bytes(event))

    def _packet(self, codec: Codec, payload_type: int, timestamp: int, marker: bool, payload: bytes) -> bytes:
        sequence = self._sequence
        self._sequence = (sequence + 1) & 0xFFFF
        self.timestamp = (self.timestamp + codec.frame_units) & 0xFFFFFFFF
        self.packets += 1
        self.octets += len(payload)
        kind = payload_type | (0x80 if marker else 0)
        return HEADER.pack(VERSION << 6, kind, sequence, timestamp, self.ssrc) + payload
