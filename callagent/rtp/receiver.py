"""From datagrams to frames and digits: the receiving side of a media session, without its socket.

Frames come out in order and without holes: what was lost is concealed, what the peer did not send is silence, and once
the stream has been dry for 200 ms silence goes on by the clock. Whoever listens can count frames to tell the time.
"""

from __future__ import annotations

from callagent.call_info import FRAME_BYTES, FRAME_SAMPLES, FRAME_SECONDS
from callagent.rtp.codec import Codec
from callagent.rtp.concealment import Concealment
from callagent.rtp.jitter_buffer import JitterBuffer
from callagent.rtp.packet import RtpPacket, is_rtcp, timestamp_distance
from callagent.rtp.remote import Address, Remote
from callagent.rtp.source import Source
from callagent.rtp.statistics import Reception
from callagent.rtp.telephone_event import DigitReader, TelephoneEvent

DRY_SECONDS = 0.2
_LONGEST_FILL = 10
"""Frames filled for a jump of the timestamp; a longer one is a new time base."""
_DRY_FRAMES = 50
"""Filled at once, at most, after a stall of our own."""

Received = bytes | str
"""A frame of PCM, or a digit."""


class RtpReceiver:
    """Verbs take the monotonic time and return what was received."""

    def __init__(self, codec: Codec, now: float) -> None:
        self.remote: Remote | None = None
        self.packets = 0
        self.refused = 0
        self.heard: float | None = None
        """When the peer's last packet came."""
        self.reception = Reception()
        self.buffer = JitterBuffer()
        self._codec = codec
        self._telephone_event: int | None = None
        self._named: Address | None = None
        self._source = Source()
        self._concealment = Concealment()
        self._digits = DigitReader()
        self._held = False
        self._lost = False
        self._sequence: int | None = None
        self._timestamp: int | None = None
        """Of the next frame, as the last one has it."""
        self._rest = b""
        self._filled = 0
        self._audio_heard = now

    @property
    def ssrc(self) -> int | None:
        return self._source.ssrc

    @property
    def refused_total(self) -> int:
        return self.refused + self._source.refused

    def connect(self, remote: Address, codec: Codec, telephone_event: int | None, now: float) -> None:
        """What the offer and answer say; a new address is followed at once. Raises `ValueError` for a host name."""
        if remote != self._named:
            self.remote = Remote(remote)
            self._named = remote
            self.refused += self._source.refused
            self._source = Source()
            self._restart(now)
        self._codec = codec
        self._telephone_event = telephone_event

    def hold(self, held: bool, now: float) -> None:
        """While held nothing is received: what the peer plays is not for us."""
        self._held = held
        self._audio_heard = now
        self._filled = 0
        self._timestamp = None

    def receive(self, data: bytes, source: Address, now: float) -> list[Received]:
        """A datagram from the media socket."""
        if self.remote is None:
            self.refused += 1
            return []
        try:
            packet = RtpPacket.parse(data)
        except ValueError:
            self.refused += 1
            return []
        # Parsed first: only a valid packet may latch a port.
        if is_rtcp(data) or not self.remote.accept(source):
            self.refused += 1
            return []
        packets, restarted = self._source.receive(packet, now)
        received: list[Received] = self._restart(now) if restarted else []
        for accepted in packets:
            self.packets += 1
            self.heard = now
            # Key presses stand still in time: they say nothing of jitter.
            timed = accepted.payload_type == self._codec.payload_type
            self.reception.receive(
                accepted.sequence, accepted.timestamp if timed else None, now, self._codec.clock_rate
            )
            for ordered in self.buffer.receive(accepted, now):
                self._play(ordered, now, received)
        return received

    def tick(self, now: float) -> list[Received]:
        """To be called every 100 ms, and at `next_timer`."""
        received: list[Received] = []
        for packet in self.buffer.expire(now):
            self._play(packet, now, received)
        if self._held or now - self._audio_heard < DRY_SECONDS:
            return received
        due = int((now - self._audio_heard) / FRAME_SECONDS + 1e-6) - self._filled
        for _ in range(min(due, _DRY_FRAMES)):
            received.append(self._concealment.conceal())
        self._filled += max(due, 0)
        return received

    def next_timer(self) -> float | None:
        """When a missing packet is given up; None while none is missing."""
        return self.buffer.next_timer()

    def _restart(self, now: float) -> list[Received]:
        received: list[Received] = []
        for packet in self.buffer.restart(now):
            self._play(packet, now, received)
        self.reception.restart()
        self._digits.restart()
        self._sequence = None
        self._timestamp = None
        self._rest = b""
        return received

    def _play(self, packet: RtpPacket, now: float, received: list[Received]) -> None:
        if self._sequence is not None and packet.sequence != self._sequence:
            self._lost = True
        self._sequence = (packet.sequence + 1) & 0xFFFF
        if packet.payload_type == self._codec.payload_type:
            if not self._held:
                self._play_audio(packet, now, received)
        elif packet.payload_type == self._telephone_event:
            self._play_event(packet, received)
        else:
            # Comfort noise, or a corrupt packet: it has its number, but no sound.
            self.refused += 1

    def _play_audio(self, packet: RtpPacket, now: float, received: list[Received]) -> None:
        pcm = self._codec.decode(packet.payload)
        self._fill(packet.timestamp, received)
        self._timestamp = (packet.timestamp + len(pcm) // 2) & 0xFFFFFFFF
        self._audio_heard = now
        self._filled = 0
        self._lost = False
        if self._rest or len(pcm) != FRAME_BYTES:
            pcm = self._rest + pcm
        while len(pcm) >= FRAME_BYTES:
            received.append(self._concealment.received(pcm[:FRAME_BYTES]))
            pcm = pcm[FRAME_BYTES:]
        self._rest = pcm

    def _fill(self, timestamp: int, received: list[Received]) -> None:
        """The frames between the last packet and this one that the clock has not filled yet."""
        if self._timestamp is None:
            return
        missing = timestamp_distance(timestamp, self._timestamp) // FRAME_SAMPLES - self._filled
        if not 0 < missing <= _LONGEST_FILL:
            return
        make = self._concealment.conceal if self._lost else self._concealment.silence
        received.extend(make() for _ in range(missing))

    def _play_event(self, packet: RtpPacket, received: list[Received]) -> None:
        try:
            event = TelephoneEvent.parse(packet.payload)
        except ValueError:
            self.refused += 1
            return
        digit = self._digits.receive(event, packet.timestamp)
        if digit is not None:
            received.append(digit)
