"""A media session on its sockets and ports: the only I/O of this package besides the pump's thread.

Receiving runs on the event loop, from the socket to the sink without a queue or a task. Sending runs on the pump's
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.call_info import MediaStatistics
from callagent.log import get_logger
from callagent.rtp.codec import PCMU, RtpParameters
from callagent.rtp.packet import FRAMES_PER_DIGIT, is_rtcp
from callagent.rtp.pump import Pump, PumpHandle
from callagent.rtp.receiver import Address, Received, RtpReceiver
from callagent.rtp.rtcp import Reports
from callagent.rtp.sender import RtpSender
from callagent.rtp.srtp import SrtpKeys, SrtpSender

EXPEDITED_FORWARDING = 0xB8
"""The traffic class octet of voice: the code point 46 of expedited forwarding (RFC 3246), shifted by two bits."""
_IN_USE = (errno.EADDRINUSE, errno.EACCES)


class PortsExhausted(Exception):
    """No media port is free; a SIP caller is answered 503."""


class RtpPorts:
    """The even ports from `first` to `last`; RTCP uses the odd port above each (RFC 3550 §11). Not thread-safe."""

    def __init__(
        self,
        host: str,
        first: int,
        last: int,
        *,
        rest_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A released port is not used again for `rest_seconds`."""
        self.host = host
        self._range = range(first, last + 2)
        self._held: set[int] = set()
        self._free = list(range(first + first % 2, last + 1, 2))
        if not self._free or not 0 < first <= last <= 65535:
            raise ValueError(f"'{first}-{last}' holds no even port: media needs one between 1 and 65535")
        self._count = len(self._free)
        self._resting: deque[tuple[float, int]] = deque()
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._random = random.SystemRandom()

    @property
    def free_share(self) -> float:
        """The share of ports that are free, 0.0 to 1.0."""
        self._free_rested()
        return len(self._free) / self._count

    def covers(self, port: int) -> bool:
        """Whether the port is in the range that our media and RTCP use."""
        return port in self._range

    def holds(self, port: int) -> bool:
        """Whether one of our sessions uses this port now, for media or RTCP."""
        return port - port % 2 in self._held

    def bind(self) -> socket.socket:
        """Return a non-blocking socket bound to a random free port. Raises `PortsExhausted`."""
        self._free_rested()
        while self._free:
            # Random, so that an attacker cannot derive the port of the next call from the last one.
            index = self._random.randrange(len(self._free))
            port = self._free[index]
            self._free[index] = self._free[-1]
            self._free.pop()
            try:
                opened = self._open(port)
            except OSError as error:
                self.release(port)
                # Another program has this port, so the next one is tried. Other errors, such as a lack of descriptors,
                # would be the same for all ports.
                if error.errno not in _IN_USE:
                    raise
            else:
                self._held.add(port)
                return opened
        raise PortsExhausted(f"none of {self._count} media ports is free")

    def bind_control(self, port: int) -> socket.socket | None:
        """Return the RTCP socket beside media port `port`; None if another program has that port."""
        try:
            return self._open(port + 1)
        except OSError:
            return None

    def release(self, port: int) -> None:
        """Take back a port whose socket is closed. It rests, so that late packets do not reach the next call."""
        self._held.discard(port)
        self._resting.append((self._clock() + self._rest_seconds, port))

    def _free_rested(self) -> None:
        now = self._clock()
        while self._resting and self._resting[0][0] <= now:
            self._free.append(self._resting.popleft()[1])

    def _open(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, EXPEDITED_FORWARDING)
            else:
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, EXPEDITED_FORWARDING)
            opened.bind((self.host, port))
        except OSError:
            opened.close()
            raise
        return opened


@dataclass(frozen=True, slots=True)
class RtpSettings:
    """Seconds without a packet after which the media has timed out, in each situation."""

    first_packet_timeout: float = 30.0
    packet_timeout: float = 20.0
    hold_timeout: float = 300.0
    """Also applies to a peer that is not expected to send: one that only listens, one that has described its noise (it
    may send nothing while the noise stays, RFC 3389 §3.4), and a caller who is not yet expected to speak."""
    goodbye_timeout: float = 10.0
    """After an RTCP BYE that no packet follows: the BYE of SIP is lost or late, or the stream goes on elsewhere."""


class MediaTimeout:
    """The time limit of a silence of the peer. It expires once."""

    def __init__(self, settings: RtpSettings, now: float) -> None:
        self._settings = settings
        self._since = now
        self._held = False
        self._expired = False

    def restart(self, now: float) -> None:
        """Count the silence from now on."""
        self._since = now

    def hold(self, held: bool, now: float) -> None:
        self._held = held
        self._since = now

    def expire(
        self, heard: float | None, now: float, *, expected: bool = True, goodbye: float | None = None
    ) -> str | None:
        """Return a description of the timeout, or None before it; `heard` is when the last packet arrived.

        `expected` tells whether the peer ought to send, and `goodbye` when its RTCP BYE arrived.
        """
        last = max(self._since, heard or self._since)
        problem, limit = "no media", self._limit(heard, expected=expected)
        # A BYE that no packet follows shortens the wait; one that packets followed ended an earlier stream of the peer.
        if goodbye is not None and goodbye >= last and expected and not self._held:
            ends = min(last + limit, goodbye + self._settings.goodbye_timeout)
            problem, limit = "no media after a goodbye", ends - last
        if self._expired or now - last < limit:
            return None
        self._expired = True
        return f"{problem} for {limit:.3g} s"

    def _limit(self, heard: float | None, *, expected: bool) -> float:
        if self._held or not expected:
            return self._settings.hold_timeout
        return self._settings.first_packet_timeout if heard is None else self._settings.packet_timeout


log = get_logger(__name__)

TICK_SECONDS = 0.1
_MAX_DATAGRAM = 2048
"""Octets that are read of a datagram; the MTU of Ethernet is 1500."""


class _Stream(NamedTuple):
    """Both directions of a session, and the reports about them."""

    receiver: RtpReceiver
    sender: RtpSender
    reports: Reports

    def goodbye(self) -> bytes:
        """Return the RTCP packet that ends our stream (RFC 3550 §6.6)."""
        return self.reports.goodbye(self.sender, self.receiver, time.monotonic(), time.time())


class NoTelephoneEvent(Exception):
    """The peer did not agree to telephone events (RFC 4733): digits have to go another way, such as SIP INFO."""


class RtpSession:
    """The media of one call leg; implements `legs.Media`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ports: RtpPorts, pump: Pump, settings: RtpSettings | None = None
    ) -> None:
        """Bind the sockets at once. Raises `PortsExhausted`, and `OSError` without a free descriptor."""
        self.on_digit: Callable[[str], None] = _ignore
        """Called on the loop once with each digit."""
        self.on_timeout: Callable[[str], None] = _ignore
        """Called on the loop, once, with a description of the timeout."""
        self.on_send_error: Callable[[Exception], None] = _log_send_error
        """Called on the loop with the first exception of the source; the peer hears silence in its place."""
        self._loop = loop
        self._ports = ports
        self._pump = pump
        self._socket = ports.bind()
        self.local_port: int = self._socket.getsockname()[1]
        self._control, self._opened_at = ports.bind_control(self.local_port), time.monotonic()
        self._parameters = RtpParameters(PCMU)
        self._stream: _Stream | None = None
        """Made when it is first needed: a call that is refused has none."""
        self._refused_early = 0
        """Datagrams that came before there was a stream, when nobody has been told to send to us."""
        self._sink: Callable[[bytes, float], None] | None = None
        self._source: Callable[[], bytes | None] | None = None
        self._secure: SrtpSender | None = None
        self._destination: Address | None = None
        self._held = self._closed = self._send_error_reported = False
        self._expects_media = True
        self._timeout = MediaTimeout(settings or RtpSettings(), self._opened_at)
        self._handle: PumpHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._digits_sent = asyncio.Event()
        self.send_errors = 0
        """Packets that the kernel did not accept: no route, port unreachable, full buffer."""
        self._lateness = 0.0
        loop.add_reader(self._socket, self._read)
        if self._control is not None:
            loop.add_reader(self._control, self._read_control)
        self._ticker = loop.call_later(TICK_SECONDS, self._tick)

    # For the leg

    def connect(self, remote: tuple[str, int], parameters: RtpParameters) -> None:
        """Apply the outcome of an offer and answer, the first or a later one.

        Raises `ValueError` for a host name or a key that is not valid, and has changed nothing then.
        """
        now = time.monotonic()
        first = self._destination is None
        # Both keys are tried before anything changes, ours here and the peer's in `receiver.connect`.
        secure = _secure_sender(parameters.keys, self._secure)
        receiver, sender, _ = self._get_stream(parameters)
        receiver.connect(remote, parameters, now)
        self._secure = secure
        sender.use(parameters)
        self._parameters = parameters
        assert receiver.remote is not None
        self._destination = receiver.remote.address
        if first:
            self._timeout.restart(now)

    def hold(self, held: bool) -> None:
        """Hold or resume. While held, nothing is sent, and neither source nor sink is called."""
        if held == self._held:
            return
        now = time.monotonic()
        self._timeout.hold(held, now)
        if self._stream is not None:
            self._stream.receiver.hold(held, now)
            if not held:
                self._stream.sender.resume()
        self._held = held

    def expect(self, expecting: bool) -> None:
        """Say whether the peer ought to send. If so, its silence ends after `packet_timeout`, else `hold_timeout`."""
        if expecting and not self._expects_media:
            self._timeout.restart(time.monotonic())
        self._expects_media = expecting

    def start(self, sink: Callable[[bytes, float], None], source: Callable[[], bytes | None]) -> None:
        """Begin to deliver frames to `sink` and to ask `source`, on the pump's thread. Called once."""
        self._sink, self._source = sink, source
        if not self._closed:
            self._handle = self._pump.add(self)

    def clear(self) -> float:
        return 0.0

    def unheard(self) -> float:
        return 0.0

    async def send_digits(self, digits: str) -> None:
        """Send telephone events, and return when they are sent.

        Raises `NoTelephoneEvent`, and `ValueError` for a character that is no digit.
        """
        if self._stream is None or self._parameters.telephone_event is None:
            raise NoTelephoneEvent
        self._digits_sent.clear()
        self._stream.sender.press(digits)
        await self._wait_until_sent(len(digits) * FRAMES_PER_DIGIT)

    async def send_tones(self, frames: Sequence[bytes]) -> None:
        """Send digits as sound in place of the source's frames, and return when they are sent."""
        self._digits_sent.clear()
        self._get_stream(self._parameters).sender.play(frames)
        await self._wait_until_sent(len(frames))

    async def _wait_until_sent(self, frames: int) -> None:
        if not frames or self._closed:
            return
        # The pump takes one step each frame, but none of a session that is held or closed, so the wait is limited.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0 + 2 * frames * FRAME_SECONDS):
                await self._digits_sent.wait()

    def statistics(self) -> MediaStatistics:
        codec, keys = self._parameters.codec, self._parameters.keys
        stream = self._stream
        if stream is None:
            return MediaStatistics(codec=str(codec), packets_refused=self._refused_early)
        return replace(
            _statistics_of(stream.receiver, stream.reports, codec.clock_rate),
            codec=str(codec),
            encryption="" if keys is None else keys.send_suite,
            packets_sent=stream.sender.packets,
            send_lateness_max_ms=self._lateness * 1000,
        )

    def close(self) -> None:
        """Free the sockets; the port rests. Idempotent."""
        if self._closed:
            return
        self._closed = True
        stream = self._stream
        if stream is not None and self._destination is not None and stream.sender.packets:
            self._send_control(stream.goodbye())
        if self._handle is not None:
            # Removed before the sockets are closed: the pump's thread must not send on a descriptor that is used anew.
            self._pump.remove(self._handle)
        if stream is not None:
            stream.sender.drop_digits()
        self._digits_sent.set()
        self._ticker.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        for opened in filter(None, (self._socket, self._control)):
            self._loop.remove_reader(opened)
            opened.close()
        self._ports.release(self.local_port)
        # The call's objects are not kept alive by whoever still holds the session.
        self._sink = self._source = None
        self.on_digit = self.on_timeout = _ignore

    def _get_stream(self, parameters: RtpParameters) -> _Stream:
        """Return the stream; the first call makes it with these parameters."""
        if self._stream is None:
            # Times count from the opening of the sockets: from then on the sink is owed a frame each 20 ms.
            receiver = RtpReceiver(parameters, self._opened_at)
            receiver.refused = self._refused_early
            if self._held:
                receiver.hold(True, self._opened_at)
            reports = Reports(secrets.token_hex(8), self._opened_at)
            self._stream = _Stream(receiver, RtpSender(parameters.codec), reports)
        return self._stream

    # On the pump's thread

    def send(self, due: float, skipped: int) -> None:
        """Send the packet that is due; `skipped` frames before it are never sent."""
        stream = self._stream
        if stream is None:
            return
        sender = stream.sender
        if skipped:
            sender.skip(skipped)
        destination = self._destination
        # Nothing is sent, but time goes on, and the peer must see the pause in the timestamps.
        if destination is None or self._held:
            sender.skip(1)
            return
        was_pressing = sender.is_pressing
        packet = sender.frame_to_send(self._ask_source())
        if was_pressing and not sender.is_pressing:
            self._loop.call_soon_threadsafe(self._digits_sent.set)
        if not packet:
            return
        try:
            self._socket.sendto(packet if self._secure is None else self._secure.protect(packet), destination)
        except OSError:
            self.send_errors += 1
        late = time.monotonic() - due
        if late > self._lateness:
            self._lateness = late

    def fail(self, error: Exception) -> None:
        """Report the first exception of the source; further ones would come fifty times a second."""
        if not self._send_error_reported:
            self._send_error_reported = True
            self._loop.call_soon_threadsafe(self.on_send_error, error)

    def _ask_source(self) -> bytes | None:
        if self._source is None:
            return None
        try:
            pcm = self._source()
        # This is the boundary to the code of one call: its caller hears silence, and the other calls go on.
        except Exception as error:
            self.fail(error)
            return None
        return pcm if pcm is None or len(pcm) == FRAME_BYTES else pcm[:FRAME_BYTES].ljust(FRAME_BYTES, b"\0")

    # On the event loop

    def _read(self) -> None:
        """Read one datagram. The loop calls again while there are more, and serves the other sessions in between."""
        now = time.monotonic()
        stream = self._stream
        try:
            data, source = self._socket.recvfrom(_MAX_DATAGRAM)
        except OSError:
            return
        if stream is None:
            self._refused_early += 1
            return
        if is_rtcp(data):
            self._receive_control(data, source[:2], now)
            return
        receiver = stream.receiver
        self._deliver(receiver.receive(data, source[:2], now), now)
        # A digit may have ended the call.
        if self._closed:
            return
        # The address is replaced as a whole when another one is latched, so comparing the identity suffices.
        remote = receiver.remote
        if remote is not None and self._destination is not remote.address:
            self._destination = remote.address
        if self._expiry is None and (timer := receiver.next_timer()) is not None:
            self._expiry = self._loop.call_later(max(0.0, timer - now), self._expire)

    def _deliver(self, received: list[Received], now: float) -> None:
        for item in received:
            if isinstance(item, str):
                self.on_digit(item)
            elif self._sink is not None:
                self._sink(item, now)

    def _expire(self) -> None:
        self._expiry = None
        assert self._stream is not None, "the timer runs only after a packet was received"
        receiver, now = self._stream.receiver, time.monotonic()
        self._deliver(receiver.tick(now), now)
        timer = receiver.next_timer()
        if timer is not None and not self._closed:
            self._expiry = self._loop.call_later(max(0.001, timer - now), self._expire)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        if self._stream is None or self._destination is None:
            return
        receiver, sender, reports = self._stream
        now = time.monotonic()
        if self._sink is not None:
            self._deliver(receiver.tick(now), now)
        if not self._closed:
            if now >= reports.due:
                self._send_control(reports.make(sender, receiver, now, time.time()))
            goodbye = reports.ended_at
            expected = self._expects_media and not receiver.is_quiet
            expired = self._timeout.expire(receiver.last_packet_at, now, expected=expected, goodbye=goodbye)
            if expired is not None:
                self.on_timeout(expired)

    def _read_control(self) -> None:
        assert self._control is not None
        try:
            data, source = self._control.recvfrom(_MAX_DATAGRAM)
        except OSError:
            return
        self._receive_control(data, source[:2], time.monotonic())

    def _receive_control(self, data: bytes, source: Address, now: float) -> None:
        if self._stream is None:
            self._refused_early += 1
            return
        receiver, sender, reports = self._stream
        opened = receiver.open_control(data, source, now)
        if opened is not None:
            reports.receive(opened, sender, receiver, now, time.time())

    def _send_control(self, report: bytes) -> None:
        named = None if self._stream is None else self._stream.receiver.named
        muxed, target = _control_address(self._destination or ("", 0), self._parameters, named)
        try:
            if (opened := self._socket if muxed else self._control) is not None:
                opened.sendto(report if self._secure is None else self._secure.protect_rtcp(report), target)
        except (OSError, OverflowError):
            self.send_errors += 1


def _control_address(media: Address, parameters: RtpParameters, named: Address | None) -> tuple[bool, Address]:
    """Return whether RTCP shares the ports of the media (RFC 5761), and the address to which it is sent."""
    control = parameters.control
    if control is not None and control == named:
        return True, media
    return False, control or (media[0], media[1] + 1)


def _statistics_of(receiver: RtpReceiver, reports: Reports, clock_rate: int) -> MediaStatistics:
    return MediaStatistics(
        packets_received=receiver.packets,
        packets_lost=receiver.buffer.lost,
        packets_late=receiver.buffer.late,
        packets_duplicate=receiver.buffer.duplicates,
        packets_refused=receiver.refused_total,
        jitter_ms=receiver.jitter * 1000,
        peer_reports=reports.received,
        peer_one_way=reports.one_way,
        peer_goodbye=reports.ended_at is not None,
        peer_packets_lost=reports.peer_lost,
        peer_jitter_ms=reports.peer_jitter / clock_rate * 1000,
        round_trip_ms=reports.round_trip * 1000,
    )


def _secure_sender(keys: SrtpKeys | None, present: SrtpSender | None) -> SrtpSender | None:
    """Return the encryption with these keys, which is `present` if the keys have not changed."""
    if keys is None:
        return None
    # A new context would forget how often the sequence numbers have wrapped around, and could encrypt two packets with
    # the same key stream (RFC 4568 §7.1.4).
    if present is not None and present.suite_and_key == (keys.send_suite, keys.send):
        return present
    return SrtpSender(keys.send_suite, keys.send)


def _ignore(_: str) -> None:
    """Ignore an event without a listener."""


def _log_send_error(error: Exception) -> None:
    log.error("media_send_failed", error=repr(error), exc_info=error)
