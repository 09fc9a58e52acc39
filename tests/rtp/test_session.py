from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from callagent.audio import FRAME_BYTES
from callagent.rtp import (
    PCMA,
    PCMU,
    NoTelephoneEvent,
    PortsExhausted,
    Pump,
    RtpParameters,
    RtpPorts,
    RtpSession,
    RtpSettings,
)
from callagent.rtp.packet import RtpPacket
from callagent.rtp.session import MediaTimeout
from tests.end_to_end.baresip import is_free
from tests.rtp.streams import audio, tone


@pytest.fixture
def pump() -> Iterator[Pump]:
    pump = Pump()
    pump.start()
    yield pump
    pump.stop()


@pytest.fixture
def ports() -> RtpPorts:
    return RtpPorts("127.0.0.1", *free_range(20))


class Peer:
    """A bare socket that sends and keeps what comes."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind((host, 0))
        self.address: tuple[str, int] = self.socket.getsockname()

    def send(self, data: bytes, port: int) -> None:
        self.socket.sendto(data, ("127.0.0.1", port))

    def received(self) -> list[RtpPacket]:
        packets = []
        while True:
            try:
                packets.append(RtpPacket.parse(self.socket.recv(2048)))
            except BlockingIOError:
                return packets


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    peer.socket.close()


@pytest.fixture
async def session(ports: RtpPorts, pump: Pump) -> AsyncIterator[RtpSession]:
    session = RtpSession(asyncio.get_running_loop(), ports, pump)
    yield session
    session.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def received(peer: Peer, count: int) -> list[RtpPacket]:
    packets: list[RtpPacket] = []

    def came() -> bool:
        packets.extend(peer.received())
        return len(packets) >= count

    await until(came)
    return packets


def nothing(frame: bytes, now: float) -> None:
    pass


def silence() -> None:
    return None


async def test_two_sessions_hear_each_other_and_each_other_s_digits(ports: RtpPorts, pump: Pump) -> None:
    loop = asyncio.get_running_loop()
    here, there = RtpSession(loop, ports, pump), RtpSession(loop, ports, pump)
    here.connect(("127.0.0.1", there.local_port), RtpParameters(PCMA, 101))
    there.connect(("127.0.0.1", here.local_port), RtpParameters(PCMA, 101))
    heard: list[bytes] = []
    digits: list[str] = []
    there.on_digit = digits.append
    there.start(lambda frame, now: heard.append(frame), silence)
    here.start(nothing, lambda: tone(0))
    await until(lambda: heard.count(PCMA.decode(PCMA.encode(tone(0)))) >= 10)
    await here.send_digits("1#A")
    await until(lambda: len(digits) == 3)
    assert "".join(digits) == "1#A"
    sent, received = here.statistics(), there.statistics()
    assert sent.codec == "PCMA/8000"
    assert sent.packets_sent >= 43
    assert received.packets_received >= 40
    assert received.packets_refused == received.packets_duplicate == 0
    here.close()
    there.close()


async def test_frames_arrive_with_the_monotonic_time(session: RtpSession, peer: Peer) -> None:
    session.connect(peer.address, RtpParameters(PCMU, None))
    heard: list[tuple[bytes, float]] = []
    session.start(lambda frame, now: heard.append((frame, now)), silence)
    before = time.monotonic()
    for _, packet in audio(5):
        peer.send(bytes(packet), session.local_port)
    await until(lambda: len(heard) >= 5)
    assert [frame for frame, _ in heard[:5]] == [PCMU.decode(PCMU.encode(tone(index))) for index in range(5)]
    assert before <= heard[0][1] <= heard[4][1] <= time.monotonic()


async def test_strangers_are_not_heard_and_get_nothing(session: RtpSession, peer: Peer) -> None:
    stranger = Peer("127.0.0.2")
    heard: list[bytes] = []
    session.start(lambda frame, now: heard.append(frame), silence)
    for _, packet in audio(5):
        stranger.send(bytes(packet), session.local_port)
    await until(lambda: session.statistics().packets_refused == 5)
    session.connect(peer.address, RtpParameters(PCMU, 101))
    for _, packet in audio(200):
        stranger.send(bytes(packet), session.local_port)
    await until(lambda: session.statistics().packets_refused == 205)
    await until(lambda: len(peer.received()) > 0)
    assert set(heard) <= {bytes(FRAME_BYTES)}
    assert session.statistics().packets_received == 0
    assert stranger.received() == []
    stranger.socket.close()


async def test_packets_go_to_the_port_that_the_nat_chose(session: RtpSession, peer: Peer) -> None:
    natted = Peer()
    session.connect(peer.address, RtpParameters(PCMU, None))
    session.start(nothing, silence)
    for _, packet in audio(5):
        natted.send(bytes(packet), session.local_port)
    await until(lambda: len(natted.received()) > 0)
    natted.socket.close()


async def test_a_second_connect_moves_the_stream_to_the_new_address_and_codec(session: RtpSession, peer: Peer) -> None:
    moved = Peer()
    session.connect(peer.address, RtpParameters(PCMU, None))
    session.start(nothing, silence)
    await until(lambda: len(peer.received()) > 0)
    session.connect(moved.address, RtpParameters(PCMA, None))
    packets = await received(moved, 1)
    assert packets[0].payload_type == 8
    moved.socket.close()


async def test_on_hold_the_source_is_not_asked_and_afterwards_a_talkspurt_begins(
    session: RtpSession, peer: Peer
) -> None:
    asked: list[float] = []
    session.connect(peer.address, RtpParameters(PCMU, None))
    session.start(nothing, lambda: asked.append(time.monotonic()))
    await until(lambda: len(asked) > 3)
    session.hold(True)
    session.hold(True)
    # One frame may be on its way while hold() is called.
    await asyncio.sleep(0.05)
    peer.received()
    count = len(asked)
    await asyncio.sleep(0.1)
    assert len(asked) == count
    assert peer.received() == []
    session.hold(False)
    packets = await received(peer, 1)
    assert packets[0].marker


async def test_a_broken_source_is_reported_once_and_the_peer_hears_silence(session: RtpSession, peer: Peer) -> None:
    errors: list[Exception] = []
    session.on_send_error = errors.append
    session.connect(peer.address, RtpParameters(PCMU, None))

    def broken() -> bytes:
        raise RuntimeError("broken")

    session.start(nothing, broken)
    packets = await received(peer, 6)
    assert {packet.payload for packet in packets} == {b"\xff" * 160}
    assert [str(error) for error in errors] == ["broken"]


async def test_a_frame_of_the_wrong_length_is_cut_or_filled(session: RtpSession, peer: Peer) -> None:
    lengths = iter([b"\1\1", b"\1\1" * 400])
    session.connect(peer.address, RtpParameters(PCMU, None))
    session.start(nothing, lambda: next(lengths, None))
    packets = await received(peer, 4)
    assert {len(packet.payload) for packet in packets} == {160}


@pytest.mark.parametrize("held", [False, True])
async def test_media_that_never_comes_times_out_once(ports: RtpPorts, pump: Pump, peer: Peer, held: bool) -> None:
    settings = RtpSettings(first_packet_timeout=0.2, packet_timeout=60.0, hold_timeout=0.3)
    session = RtpSession(asyncio.get_running_loop(), ports, pump, settings)
    timeouts: list[str] = []
    session.on_timeout = timeouts.append
    session.connect(peer.address, RtpParameters(PCMU, None))
    session.hold(held)
    await until(lambda: bool(timeouts))
    await asyncio.sleep(0.25)
    assert timeouts == ["no media for 0.3 s" if held else "no media for 0.2 s"]
    session.close()


async def test_media_that_stops_times_out(ports: RtpPorts, pump: Pump, peer: Peer) -> None:
    settings = RtpSettings(first_packet_timeout=60.0, packet_timeout=0.2)
    session = RtpSession(asyncio.get_running_loop(), ports, pump, settings)
    timeouts: list[str] = []
    session.on_timeout = timeouts.append
    session.connect(peer.address, RtpParameters(PCMU, None))
    peer.send(bytes(next(audio(1))[1]), session.local_port)
    await until(lambda: bool(timeouts))
    session.close()


async def test_digits_without_telephone_event_are_refused(session: RtpSession, peer: Peer) -> None:
    with pytest.raises(NoTelephoneEvent):
        await session.send_digits("1")
    session.connect(peer.address, RtpParameters(PCMU, 101))
    session.start(nothing, silence)
    with pytest.raises(ValueError, match="DTMF"):
        await session.send_digits("1x")


async def test_close_ends_waiting_digits_frees_the_sockets_and_rests_the_port(pump: Pump, peer: Peer) -> None:
    first, _ = free_range(1)
    ports = RtpPorts("127.0.0.1", first, first + 1)
    session = RtpSession(asyncio.get_running_loop(), ports, pump)
    session.connect(peer.address, RtpParameters(PCMU, 101))
    session.start(nothing, silence)
    with pytest.raises(PortsExhausted):
        RtpSession(asyncio.get_running_loop(), ports, pump)
    async with asyncio.TaskGroup() as group:
        group.create_task(session.send_digits("123456789"))
        await asyncio.sleep(0.05)
        session.close()
    session.close()
    assert ports.free_share == 0.0
    for port in (first, first + 1):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", port))
    assert (session.clear(), session.unheard()) == (0.0, 0.0)


async def test_addresses_that_cannot_be_sent_to_are_counted(session: RtpSession) -> None:
    session.connect(("127.0.0.1", 0), RtpParameters(PCMU, None))
    session.start(nothing, silence)
    await until(lambda: session.send_errors > 2)
    with pytest.raises(ValueError, match="example"):
        session.connect(("example.org", 9), RtpParameters(PCMU, None))


async def test_rtcp_on_either_port_is_read_and_never_heard(session: RtpSession, peer: Peer) -> None:
    session.connect(peer.address, RtpParameters(PCMU, None))
    peer.send(b"\x80\xc9\x00\x01\0\0\0\x05", session.local_port)
    peer.send(b"\x80\xc9\x00\x01\0\0\0\x05", session.local_port + 1)
    peer.send(b"\x80\xc9\x00\x09", session.local_port + 1)
    await until(lambda: session.statistics().packets_refused == 1)
    assert session.statistics().packets_received == 0


async def test_a_report_goes_to_the_port_above_the_media(session: RtpSession) -> None:
    media, control = Peer(), Peer()
    session.connect((control.address[0], control.address[1] - 1), RtpParameters(PCMU, None))
    assert session._stream is not None
    session._stream.reports.due = 0.0
    reports: list[bytes] = []

    def came() -> bool:
        try:
            reports.append(control.socket.recv(2048))
        except BlockingIOError:
            return False
        return True

    await until(came)
    assert reports[0][1] == 201
    media.socket.close()
    control.socket.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def free_range(count: int) -> tuple[int, int]:
    """An even port and the last of `count` pairs from it on, all of which are free.

    Not from the system's own range: between the look and the use somebody else's connection would take one.
    """
    while True:
        first = random.randrange(12000, 20000, 2)
        if all(is_free(socket.SOCK_DGRAM, port) for port in range(first, first + 2 * count)):
            return first, first + 2 * count - 1


def test_ports_are_even_and_run_out() -> None:
    clock = Clock()
    ports = RtpPorts("127.0.0.1", *free_range(10), clock=clock)
    opened = [ports.bind() for _ in range(10)]
    with pytest.raises(PortsExhausted):
        ports.bind()
    numbers = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    assert all(number % 2 == 0 for number in numbers)
    assert ports.free_share == 0.0


def test_a_port_rests_after_use() -> None:
    clock = Clock()
    first, _ = free_range(1)
    ports = RtpPorts("127.0.0.1", first, first + 1, clock=clock)
    opened = ports.bind()
    opened.close()
    ports.release(first)
    clock.now = 29.9
    assert ports.free_share == 0.0
    with pytest.raises(PortsExhausted):
        ports.bind()
    clock.now = 30.0
    assert ports.free_share == 1.0
    ports.bind().close()


def test_a_port_in_other_hands_is_passed_over() -> None:
    first, last = free_range(2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", first))
        ports = RtpPorts("127.0.0.1", first, last)
        with ports.bind() as opened:
            assert opened.getsockname()[1] == first + 2
            control = ports.bind_control(first + 2)
            assert control is not None
            assert ports.bind_control(first + 2) is None
            control.close()


def test_the_order_is_not_predictable() -> None:
    first, last = free_range(40)
    orders = set()
    for _ in range(4):
        opened = RtpPorts("127.0.0.1", first, last).bind()
        orders.add(opened.getsockname()[1])
        opened.close()
    assert len(orders) > 1


def test_a_range_without_an_even_port_and_a_foreign_host_are_errors() -> None:
    with pytest.raises(ValueError, match="no even port"):
        RtpPorts("127.0.0.1", 5001, 5001)
    with pytest.raises(OSError, match="assign"):
        RtpPorts("192.0.2.1", 20000, 20010).bind()


def test_ipv6() -> None:
    first, last = free_range(5)
    with RtpPorts("::1", first, last).bind() as opened:
        assert opened.family == socket.AF_INET6


def test_the_first_packet_has_30_seconds() -> None:
    timeout = MediaTimeout(RtpSettings(), 100.0)
    assert timeout.expire(None, 129.9) is None
    timeout.restart(105.0)
    assert timeout.expire(None, 130.0) is None
    assert timeout.expire(None, 135.0) == "no media for 30 s"


def test_the_next_packets_have_20_seconds_each() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.0, 69.9) is None
    assert timeout.expire(50.0, 70.0) == "no media for 20 s"


def test_on_hold_there_are_300_seconds_and_afterwards_20_again() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    timeout.hold(True, 10.0)
    assert timeout.expire(9.0, 309.0) is None
    timeout.hold(False, 309.0)
    assert timeout.expire(9.0, 328.0) is None
    assert timeout.expire(9.0, 329.0) == "no media for 20 s"


def test_it_expires_once() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(None, 40.0) is not None
    assert timeout.expire(None, 400.0) is None


def test_a_peer_that_is_not_expected_to_send_has_as_long_as_a_hold() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.0, 349.0, expected=False) is None
    assert timeout.expire(50.0, 350.0, expected=False) == "no media for 300 s"


def test_when_packets_are_expected_again_they_have_their_time_from_there() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.0, 80.0, expected=False) is None
    timeout.restart(80.0)
    assert timeout.expire(50.0, 99.9) is None
    assert timeout.expire(50.0, 100.0) == "no media for 20 s"


def test_after_a_goodbye_there_are_10_seconds_and_never_more_than_before() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.0, 60.4, goodbye=50.5) is None
    assert timeout.expire(50.0, 60.5, goodbye=50.5) == "no media after a goodbye for 10.5 s"
    late = MediaTimeout(RtpSettings(), 0.0)
    assert late.expire(50.0, 69.9, goodbye=65.0) is None
    assert late.expire(50.0, 70.0, goodbye=65.0) == "no media after a goodbye for 20 s"


def test_a_goodbye_says_nothing_on_hold_or_of_a_stream_that_goes_on() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.2, 69.0, goodbye=50.0) is None
    assert timeout.expire(50.2, 69.0, expected=False, goodbye=51.0) is None
    timeout.hold(True, 51.0)
    assert timeout.expire(50.0, 350.0, goodbye=52.0) is None
    # Resumed: packets are expected from here on.
    timeout.hold(False, 350.0)
    assert timeout.expire(50.0, 369.0, goodbye=52.0) is None
