"""The receiving side of a media session, without its socket: from datagrams to frames and digits.

`Remote` decides by address whose packets are accepted, which is the defence against RTP bleed and injection. The SDP
names an address. Packets from another IP are always refused, unless the trunk has media networks of its own. A NAT may
change the port, so another port of the same IP is latched, once: after its first packet if the stream is authentic
(SRTP), or else after five packets with ascending sequence numbers, of which the first four are then played late. So
single packets that an attacker sends to all our ports are neither played nor answered. A packet from the port that the
SDP names ends the latching at any time: a trunk may send all its media from one IP, and the stale stream of an earlier
call must not stay latched.

`Source` decides by synchronisation source and sequence number which stream is followed (RFC 3550 §8.2 and appendix
A.1). A packet whose number is near the last one is taken at once. Another source, or a number far away, is followed
only after a run of consecutive packets while the present stream is quiet. The whole run is then played, so a peer that
restarts its stream loses nothing, and a single corrupt or injected packet changes nothing.

Frames come out of `RtpReceiver` in order and without holes: what was lost is concealed, what the peer did not send is
silence, and once the stream has been dry for 200 ms silence goes on by the clock. A listener can count frames to tell
the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, InBandDigits
from callagent.rtp.codec import RtpParameters
from callagent.rtp.concealment import ComfortNoise, Concealment
from callagent.rtp.jitter_buffer import JitterBuffer, Reception
from callagent.rtp.packet import DigitReader, RtpPacket, TelephoneEvent, sequence_distance, timestamp_distance
from callagent.rtp.srtp import SrtpKeys, SrtpReceiver

Address = tuple[str, int]

_STREAM_PACKETS = 5
"""Packets with ascending numbers after which a port that the SDP does not name is taken for the peer's."""
_MAX_GAP = 50
"""Largest step of the sequence number between two of these packets; after a larger one, counting starts again."""
_MAX_CANDIDATES = 8
"""How many ports that the SDP does not name are watched at the same time."""


class _State(Enum):
    """Which address the peer's packets are taken from."""

    WAITING = "waiting"
    """No packet of the peer has arrived."""
    LATCHED = "latched"
    """Packets come from an address that the SDP does not name."""
    NAMED = "named"
    """A packet came from the address that the SDP names; no other address is accepted any more."""


class _Candidate:
    """A port of the peer's machine that the SDP does not name, and that may be the peer's behind a NAT."""

    __slots__ = ("packets",)

    def __init__(self, packet: RtpPacket, now: float) -> None:
        self.packets = [(packet, now)]

    def add(self, packet: RtpPacket, now: float) -> bool:
        """Add a packet; return whether there are now enough packets to be a stream."""
        gap = (packet.sequence - self.packets[-1][0].sequence) & 0xFFFF
        # The network may repeat and reorder packets: a repeated or slightly older number is not counted.
        if gap >= 0x10000 - _MAX_GAP or not gap:
            return False
        if gap > _MAX_GAP:
            self.packets.clear()
        self.packets.append((packet, now))
        return len(self.packets) >= _STREAM_PACKETS


class Remote:
    """The peer's media address, and the decision which packets come from it."""

    def __init__(self, address: Address, networks: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        """`address` is the one in the SDP. Raises `ValueError` if it is no IP address: names are not looked up."""
        self.address = (str(ip_address(address[0])), address[1])
        """Where our packets go."""
        self._named = self.address
        self._networks = networks
        self._state = _State.WAITING
        self._candidates: dict[Address, _Candidate] = {}
        self.early_packets: list[tuple[RtpPacket, float]] = []
        """Packets from before the latching, with their arrival times, until `take_early_packets` returns them."""

    def accept(self, source: Address, packet: RtpPacket, now: float, *, authentic: bool) -> bool:
        """Return whether a packet from `source` is the peer's; this may change `address` and fill `early_packets`."""
        # This runs for each packet, so the common case is decided by one comparison of two tuples.
        if source == self._named:
            if self._state is not _State.NAMED:
                self._state = _State.NAMED
                self.address = source
                self._candidates.clear()
            return True
        if (
            self._state is _State.WAITING
            and self.is_peer_host(source)
            and (authentic or self._is_stream(source, packet, now))
        ):
            self._state = _State.LATCHED
            self.address = source
            self._candidates.clear()
        return self._state is _State.LATCHED and source == self.address

    def take_early_packets(self) -> list[tuple[RtpPacket, float]]:
        """Return and forget the packets that came before the one that latched their port, with their arrival times."""
        packets, self.early_packets = self.early_packets, []
        return packets

    def is_peer_host(self, source: Address) -> bool:
        """Return whether `source` is the peer's machine. Its port does not matter: RTCP comes from another one."""
        if source[0] in (self._named[0], self.address[0]):
            return True
        return bool(self._networks) and any(ip_address(source[0]) in network for network in self._networks)

    def _is_stream(self, source: Address, packet: RtpPacket, now: float) -> bool:
        candidate = self._candidates.get(source)
        if candidate is not None:
            if not candidate.add(packet, now):
                return False
            self.early_packets = candidate.packets[:-1]
            return True
        # So many ports are a sign of an attack. The real peer loses 100 ms, because it needs five new packets.
        if len(self._candidates) >= _MAX_CANDIDATES:
            self._candidates.clear()
        self._candidates[source] = _Candidate(packet, now)
        return False


MAX_AHEAD = 50
MAX_BEHIND = 25
"""How far a sequence number may be from the highest one of the stream that is followed."""
RUN_PACKETS = 3
"""Consecutive packets after which another stream, or a jump of the sequence number, is followed."""
MAX_STEP = 3
"""Largest step of the sequence number within such a run, so that single losses do not break it."""
QUIET_SECONDS = 0.05
"""How long the stream that is followed must have been silent before another one is followed instead."""


class Source:
    """The stream of the peer that is followed, known by its synchronisation source and highest sequence number."""

    def __init__(self) -> None:
        self.ssrc: int | None = None
        self.refused = 0
        self._highest = 0
        self._heard = 0.0
        self._run: list[RtpPacket] = []

    def accept(self, packet: RtpPacket, now: float) -> bool:
        """Return whether the packet belongs to the stream that is followed."""
        if packet.ssrc != self.ssrc:
            return False
        distance = sequence_distance(packet.sequence, self._highest)
        if not -MAX_BEHIND <= distance <= MAX_AHEAD:
            return False
        if distance > 0:
            self._highest = packet.sequence
        self._heard = now
        # The stream goes on, so the packets of another one were strays.
        if self._run:
            self._drop_run()
        return True

    def consider_switch(self, packet: RtpPacket, now: float) -> list[RtpPacket]:
        """Decide whether to follow the stream of a packet that `accept` refused.

        Return the packets of its run if that stream is followed from now on, and an empty list if the present stream is
        still followed.
        """
        if self.ssrc is None:
            return self._follow([packet], now)
        self._extend_run(packet)
        if not self._run_is_enough(now):
            return []
        run, self._run = self._run, []
        return self._follow(run, now)

    def _follow(self, packets: list[RtpPacket], now: float) -> list[RtpPacket]:
        self.ssrc = packets[-1].ssrc
        self._highest = packets[-1].sequence
        self._heard = now
        return packets

    def _extend_run(self, packet: RtpPacket) -> None:
        last = self._run[-1] if self._run else None
        if last and not _continues(packet, last):
            self._drop_run()
        if len(self._run) == 2 * RUN_PACKETS:
            # The present stream has not become quiet. The run is kept short, and its oldest packet counts as refused.
            self.refused += 1
            self._run.pop(0)
        self._run.append(packet)

    def _run_is_enough(self, now: float) -> bool:
        return len(self._run) >= RUN_PACKETS and now - self._heard >= QUIET_SECONDS

    def _drop_run(self) -> None:
        self.refused += len(self._run)
        self._run.clear()


def _continues(packet: RtpPacket, last: RtpPacket) -> bool:
    return packet.ssrc == last.ssrc and 0 < sequence_distance(packet.sequence, last.sequence) <= MAX_STEP


DRY_SECONDS = 0.2
"""Time without packets after which the receiver makes a frame every 20 ms by the clock."""
_MAX_FILL = 10
"""Frames that fill a jump of the timestamp; a longer jump is a new time base."""
_MAX_DRY_FRAMES = 50
"""Frames made at once, at most, after our own process stood still."""

Received = bytes | str
"""A frame of PCM, or a digit."""


class RtpReceiver:
    """The receiver of a media session. Its methods take the monotonic time in seconds and return frames and digits."""

    def __init__(self, parameters: RtpParameters, now: float) -> None:
        self.remote: Remote | None = None
        self.packets = 0
        self.refused = 0
        self.last_packet_at: float | None = None
        """The monotonic time at which the peer's last packet arrived."""
        self.reception = Reception()
        self.buffer = JitterBuffer()
        self._parameters = parameters
        self._audio_types, self._event_types = parameters.audio_types, parameters.event_types
        self._codec = parameters.codec
        self._secure: SrtpReceiver | None = None
        self._in_band: InBandDigits | None = None
        self._named: Address | None = None
        self._source = Source()
        self._concealment = Concealment()
        self._noise: ComfortNoise | None = None
        """The noise that the peer has described for its present silence; None while it speaks."""
        self._digits = DigitReader()
        self._held = False
        self._lost = False
        self._sequence: int | None = None
        self._timestamp: int | None = None
        """The timestamp that the next packet has if nothing is missing before it."""
        self._rest = b""
        """Samples after the last whole frame, for peers whose packets are no multiple of 20 ms."""
        self._filled = 0
        """Frames that the clock has made since the last audio packet."""
        self._audio_heard = now

    @property
    def ssrc(self) -> int | None:
        return self._source.ssrc

    @property
    def is_quiet(self) -> bool:
        """Whether the peer is silent and has described the noise of its silence."""
        return self._noise is not None

    @property
    def named(self) -> Address | None:
        """The media address that the SDP names."""
        return self._named

    @property
    def jitter(self) -> float:
        """The interarrival jitter in seconds (RFC 3550 §6.4.1)."""
        return self.reception.jitter / self._codec.clock_rate

    @property
    def refused_total(self) -> int:
        return self.refused + self._source.refused

    def connect(self, remote: Address, parameters: RtpParameters, now: float) -> None:
        """Apply the outcome of an offer and answer; a new address is followed at once.

        Raises `ValueError` for a host name or a key that is not valid, and has changed nothing then.
        """
        # This comes first, because it may raise, and then nothing must have changed.
        secure = _secure_receiver(parameters.keys, self._secure, now)
        if remote != self._named:
            self.remote = Remote(remote, parameters.networks)
            self._named = remote
            self.refused += self._source.refused
            self._source = Source()
            self._restart(now)
        self._secure = secure
        # A decoder has a state: the present one is kept if the codec is the same, for the peer's stream may go on.
        self._codec = self._codec if parameters.codec.is_like(self._codec) else parameters.codec
        self._parameters = parameters
        self._audio_types, self._event_types = parameters.audio_types, parameters.event_types
        if not parameters.in_band_digits:
            self._in_band = None
        elif self._in_band is None:
            self._in_band = InBandDigits()

    def hold(self, held: bool, now: float) -> None:
        """Stop or resume the audio. While the call is held, audio of the peer, such as music, is dropped."""
        self._held = held
        self._audio_heard = now
        self._filled = 0
        self._timestamp = None
        self._noise = None

    def receive(self, data: bytes, source: Address, now: float) -> list[Received]:
        """Handle a datagram of the media socket that is not RTCP."""
        packet = self._open(data, source, now)
        if packet is None:
            self.refused += 1
            return []
        received: list[Received] = []
        assert self.remote is not None
        if self.remote.early_packets:
            # These packets were counted as refused when they came; the latest one has shown that they are the peer's.
            for earlier, came in self.remote.take_early_packets():
                self.refused -= 1
                self._accept_packet(earlier, came, received)
        self._accept_packet(packet, now, received)
        return received

    def open_control(self, data: bytes, source: Address, now: float) -> bytes | None:
        """Return the decrypted RTCP packet of a datagram; None if it comes from a stranger or is not authentic."""
        if self.remote is not None and self.remote.is_peer_host(source):
            try:
                return data if self._secure is None else self._secure.unprotect_rtcp(data, now)
            except ValueError:
                pass
        self.refused += 1
        return None

    def tick(self, now: float) -> list[Received]:
        """Return frames of packets that have waited long enough for missing ones, and frames for a silent peer.

        Call this every 100 ms, and at the time that `next_timer` returns.
        """
        received: list[Received] = []
        for packet in self.buffer.expire(now):
            self._play(packet, now, received)
        # As long as packets arrive, what is missing between them is left to the jitter buffer.
        silent_since = self._audio_heard if self._noise else max(self._audio_heard, self.last_packet_at or 0.0)
        if self._held or now - silent_since < (DRY_SECONDS if self._noise is None else 0.0):
            return received
        # Stay behind the clock as long as the buffer may hold a packet, because surplus frames cannot be taken back.
        late = 0.0 if self._noise else self.buffer.hold
        due = int((now - self._audio_heard - late) / FRAME_SECONDS + 1e-6) - self._filled
        for _ in range(min(due, _MAX_DRY_FRAMES)):
            received.append(self._concealment.conceal() if self._noise is None else self._noise.frame())
        self._filled += max(due, 0)
        return received

    def next_timer(self) -> float | None:
        """Return when `tick` is to be called next; None while nothing is missing."""
        timer = self.buffer.next_timer()
        if self._noise is None or self._held:
            return timer
        frame = self._audio_heard + (self._filled + 1) * FRAME_SECONDS
        return frame if timer is None else min(timer, frame)

    def _open(self, data: bytes, source: Address, now: float) -> RtpPacket | None:
        """Return the packet in a datagram; None if it is not the peer's."""
        if self.remote is None:
            return None
        try:
            if self._secure is not None:
                # The address is compared before decryption, which costs more: a flood from strangers stays cheap.
                if not self.remote.is_peer_host(source):
                    return None
                data = self._secure.unprotect(data, now)
            packet = RtpPacket.parse(data)
        except ValueError:
            return None
        # This comes last, because only a valid packet may latch an address.
        authentic = self._secure is not None
        return packet if self.remote.accept(source, packet, now, authentic=authentic) else None

    def _accept_packet(self, packet: RtpPacket, now: float, received: list[Received]) -> None:
        """Play a packet of the peer if it belongs to the stream that is followed, or begins another one."""
        if self._source.accept(packet, now):
            self._buffer_packet(packet, now, received)
        elif run := self._source.consider_switch(packet, now):
            received += self._restart(now)
            for each in run:
                self._buffer_packet(each, now, received)

    def _buffer_packet(self, packet: RtpPacket, now: float, received: list[Received]) -> None:
        self.packets += 1
        self.last_packet_at = now
        # All packets of a key press have one timestamp, so they tell nothing about jitter.
        timestamp = packet.timestamp if packet.payload_type in self._audio_types else None
        self.reception.receive(packet.sequence, timestamp, now, self._codec.clock_rate)
        for ordered in self.buffer.receive(packet, now):
            self._play(ordered, now, received)

    def _restart(self, now: float) -> list[Received]:
        """Return the frames and digits still held of the old stream, and forget its numbers and timestamps."""
        received: list[Received] = []
        for packet in self.buffer.restart(now):
            self._play(packet, now, received)
        self.reception.restart()
        self._digits.restart()
        self._sequence = None
        self._timestamp = None
        self._rest = b""
        self._noise = None
        return received

    def _play(self, packet: RtpPacket, now: float, received: list[Received]) -> None:
        """Append the frames or the digit of a packet to `received`. Packets come in order."""
        if self._sequence is not None and packet.sequence != self._sequence:
            self._lost = True
        self._sequence = (packet.sequence + 1) & 0xFFFF
        kind = packet.payload_type
        if kind in self._audio_types:
            if not self._held:
                self._play_audio(packet, now, received)
        elif kind in self._event_types:
            self._play_event(packet, received)
        elif kind == self._parameters.comfort_noise:
            if not self._held:
                self._play_noise(packet, now, received)
        else:
            # An unknown payload type takes part in the order of packets, but has no sound.
            self.refused += 1

    def _play_audio(self, packet: RtpPacket, now: float, received: list[Received]) -> None:
        try:
            pcm = self._codec.decode(packet.payload)
        except ValueError:
            self.refused += 1
            self._lost = True
            return
        # There is a gap in time: silence that was not sent, or lost packets (`_lost` tells which).
        if self._filled or packet.timestamp != self._timestamp:
            self._fill(packet.timestamp, pcm, received)
        self._expect_audio(packet.timestamp + self._codec.units(len(pcm) // 2), now)
        self._noise = None
        if self._rest or len(pcm) != FRAME_BYTES:
            pcm = self._rest + pcm
            whole = len(pcm) - len(pcm) % FRAME_BYTES
            frames = [pcm[at : at + FRAME_BYTES] for at in range(0, whole, FRAME_BYTES)]
            self._rest = pcm[whole:]
        else:
            frames = [pcm]
        for frame in frames:
            if self._in_band is not None and (digit := self._in_band.receive(frame)):
                received.append(digit)
            received.append(self._concealment.receive(frame))

    def _play_noise(self, packet: RtpPacket, now: float, received: list[Received]) -> None:
        try:
            noise = ComfortNoise(packet.payload)
        except ValueError:
            self.refused += 1
            return
        self._fill(packet.timestamp, b"", received)
        self._expect_audio(packet.timestamp, now)
        self._noise = noise
        self._concealment.silence()

    def _expect_audio(self, timestamp: int, now: float) -> None:
        """Expect the next audio at `timestamp`, because all audio before it was received."""
        self._timestamp = timestamp & 0xFFFFFFFF
        self._audio_heard = now
        self._filled = 0
        self._lost = False

    def _fill(self, timestamp: int, following: bytes, received: list[Received]) -> None:
        """Append the frames between the last packet and this one that the clock has not made already."""
        if self._timestamp is None:
            return
        missing = timestamp_distance(timestamp, self._timestamp) // self._codec.frame_units - self._filled
        if not 0 < missing <= _MAX_FILL:
            return
        if self._noise is not None:
            received.extend(self._noise.frame() for _ in range(missing))
        elif not self._lost:
            received.extend(self._concealment.silence() for _ in range(missing))
        else:
            received.extend(self._concealment.fill_gap(missing, following))

    def _play_event(self, packet: RtpPacket, received: list[Received]) -> None:
        try:
            event = TelephoneEvent.parse(packet.payload)
        except ValueError:
            self.refused += 1
            return
        # A peer that sends telephone events may send the tones as well: the same key press must not count twice.
        self._in_band = None
        digit = self._digits.receive(event, packet.timestamp)
        if digit is not None:
            received.append(digit)


def _secure_receiver(keys: SrtpKeys | None, present: SrtpReceiver | None, now: float) -> SrtpReceiver | None:
    """Return the decryption with these keys, which is `present` if the keys have not changed."""
    if keys is None:
        return None
    # A new context would forget which packets have come, and with it the replay protection (RFC 4568 §7.1.4).
    if present is not None and present.suite_and_key == (keys.receive_suite, keys.receive):
        return present
    return SrtpReceiver(keys.receive_suite, keys.receive, present, now)
