"""Key presses in RTP (RFC 4733): read so that each counts once, and written."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from callagent.audio import DIGITS
from callagent.rtp.packet import timestamp_distance

_BODY = struct.Struct("!BBH")
_MAX_SEGMENT = 0xFFFF


@dataclass(frozen=True, slots=True)
class TelephoneEvent:
    event: int
    end: bool
    duration: int
    """In timestamp units, from the timestamp of the packet."""
    volume: int = 10
    """Power below 0 dBm0, in dB."""

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Raises `ValueError`."""
        if len(payload) < _BODY.size:
            raise ValueError("telephone event is not valid")
        event, flags, duration = _BODY.unpack_from(payload)
        return cls(event, bool(flags & 0x80), duration, flags & 0x3F)

    def __bytes__(self) -> bytes:
        return _BODY.pack(self.event, (0x80 if self.end else 0) | self.volume, self.duration)


class DigitReader:
    """Tells digits from the packets that repeat them. Packets come in the order of their sequence numbers."""

    def __init__(self) -> None:
        self._last: TelephoneEvent | None = None
        self._timestamp = 0

    def receive(self, event: TelephoneEvent, timestamp: int) -> str | None:
        """The digit, with the first packet that tells of it."""
        last = self._last
        if last is not None:
            distance = timestamp_distance(timestamp, self._timestamp)
            if distance < 0:
                return None
            if self._is_same(event, last, distance):
                if distance == 0:
                    event = TelephoneEvent(event.event, last.end or event.end, max(last.duration, event.duration))
                self._last, self._timestamp = event, timestamp
                return None
        self._last, self._timestamp = event, timestamp
        return DIGITS[event.event] if event.event < len(DIGITS) else None

    def restart(self) -> None:
        """The timestamps that follow are of another stream."""
        self._last = None

    @staticmethod
    def _is_same(event: TelephoneEvent, last: TelephoneEvent, distance: int) -> bool:
        """Whether the packet goes on with the last event: its timestamp is the event's identity (§2.2.1).

        A long event goes on in a segment with a new timestamp (§2.5.1.3), and some senders move the timestamp with
        every packet: neither begins after what the event has already lasted.
        """
        if distance == 0:
            return True
        if event.event != last.event or last.end:
            return False
        return distance <= last.duration or distance == _MAX_SEGMENT


TONE_PACKETS = 5
END_PACKETS = 3
PAUSE_FRAMES = 3
"""100 ms of tone, its end told three times (§2.5.1.4), 60 ms of pause: 220 ms a digit."""
FRAMES_PER_DIGIT = TONE_PACKETS + END_PACKETS + PAUSE_FRAMES


def digit_events(digit: str, samples: int) -> list[TelephoneEvent]:
    """The packets of one key press, one a frame of `samples`. Raises `ValueError`."""
    code = DIGITS.find(digit.upper())
    if code < 0 or len(digit) != 1:
        raise ValueError(f"'{digit}' is not a DTMF digit")
    tone = [TelephoneEvent(code, False, samples * (index + 1)) for index in range(TONE_PACKETS)]
    return tone + [TelephoneEvent(code, True, samples * TONE_PACKETS)] * END_PACKETS
