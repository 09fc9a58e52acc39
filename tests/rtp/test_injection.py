"""RTP bleed and injection: a sprayer on every port of fifty live calls hears nothing and is heard by nobody."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable

from callagent.rtp import PCMU, Pump, RtpPacket, RtpParameters, RtpPorts, RtpSession, SrtpKeys
from callagent.rtp.srtp import SrtpSender
from tests.rtp.test_session import free_range

CALLS = 50
SPRAYER = "127.0.0.66"
INJECTED = PCMU.encode(b"\x00\x30" * 160)
"""A level that neither side's speech has."""
SPEECH = b"\x00\x08" * 160
SUITE = "AES_CM_128_HMAC_SHA1_80"


class Call:
    """Our session and its peer, who are talking."""

    def __init__(self, ports: RtpPorts, pump: Pump, *, secure: bool) -> None:
        loop = asyncio.get_running_loop()
        self.ours, self.peers = RtpSession(loop, ports, pump), RtpSession(loop, ports, pump)
        self.heard: list[bytes] = []
        here, there = secrets.token_bytes(30), secrets.token_bytes(30)
        for session, other, keys in ((self.ours, self.peers, (here, there)), (self.peers, self.ours, (there, here))):
            parameters = RtpParameters(PCMU, 101, keys=SrtpKeys(SUITE, keys[0], SUITE, keys[1]) if secure else None)
            session.connect(("127.0.0.1", other.local_port), parameters)
            session.start(self._hear, lambda: SPEECH)
            session.on_digit = lambda digit: self.heard.append(digit.encode())

    def _hear(self, frame: bytes, now: float) -> None:
        self.heard.append(frame)

    def close(self) -> None:
        self.ours.close()
        self.peers.close()


class Sprayer:
    """Sends every kind of packet to every port from addresses of its own, and counts what comes back."""

    def __init__(self, host: str = SPRAYER) -> None:
        self.sockets = [self._open(host) for _ in range(4)]
        self.sent = 0
        self.answered: set[int] = set()
        """Ports that something came back from."""

    @staticmethod
    def _open(host: str) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setblocking(False)
        opened.bind((host, 0))
        return opened

    async def spray(self, ports: list[int], rounds: int) -> None:
        key = SrtpSender(SUITE, secrets.token_bytes(30))
        for number in range(rounds):
            packets = self._packets(number, key)
            for port in ports:
                for payload in packets:
                    self._send(payload, port)
                    self._send(payload, port + 1)
                # As often as not the event loop has its turn: the calls go on meanwhile.
                await asyncio.sleep(0)
            self._receive()

    def close(self) -> None:
        self._receive()
        for each in self.sockets:
            each.close()

    def _packets(self, number: int, key: SrtpSender) -> list[bytes]:
        plain = bytes(RtpPacket(0, number & 0xFFFF, number * 160, 4711, INJECTED, marker=not number))
        event = bytes(RtpPacket(101, number & 0xFFFF, 5, 4711, b"\x09\x8a\x03\x20"))
        goodbye = b"\x80\xc9\x00\x01\x00\x00\x12\x67\x81\xcb\x00\x01\x00\x00\x12\x67"
        return [plain, event, goodbye, key.protect(plain), b"\x00\x01\x00\x00" + bytes(16)]

    def _send(self, payload: bytes, port: int) -> None:
        try:
            self.sockets[self.sent % len(self.sockets)].sendto(payload, ("127.0.0.1", port))
            self.sent += 1
        except BlockingIOError:
            pass

    def _receive(self) -> None:
        for each in self.sockets:
            while True:
                try:
                    _, source = each.recvfrom(2048)
                except (BlockingIOError, ConnectionRefusedError):
                    break
                self.answered.add(source[1])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_sprayer_on_every_port_hears_nothing_and_is_heard_by_nobody() -> None:
    pump = Pump()
    first, last = free_range(2 * CALLS + 10)
    ports = RtpPorts("127.0.0.1", first, last)
    everywhere = list(range(first, last + 1, 2))
    sprayer = Sprayer()
    spraying = asyncio.create_task(sprayer.spray(everywhere, 6))
    await asyncio.sleep(0)
    # Before the calls, as they begin, and while they last.
    calls = [Call(ports, pump, secure=index % 2 == 1) for index in range(CALLS)]
    pump.start()
    await spraying
    await until(lambda: all(len(call.heard) > 20 for call in calls))
    await sprayer.spray([session.local_port for call in calls for session in (call.ours, call.peers)], 3)
    ours = {session.local_port + odd for call in calls for session in (call.ours, call.peers) for odd in (0, 1)}
    statistics = [session.statistics() for call in calls for session in (call.ours, call.peers)]
    for call in calls:
        call.close()
    pump.stop()
    await asyncio.sleep(0.05)
    sprayer.close()
    assert sprayer.sent > 5000
    # Other programs of this machine may have ports in the range, and answer for themselves.
    assert sprayer.answered.isdisjoint(ours)
    spoken = PCMU.decode(PCMU.encode(SPEECH))
    injected = PCMU.decode(INJECTED)[:2]
    for call in calls:
        assert spoken in call.heard
        assert b"9" not in call.heard
        assert not any(injected in {frame[at : at + 2] for at in range(0, 320, 2)} for frame in set(call.heard))
    assert all(each.packets_refused > 0 for each in statistics)


async def test_a_sprayer_with_the_callers_address_is_not_heard_whatever_the_port() -> None:
    """It is there before the first packet of each call, and its packets come from ports that the SDP does not name."""
    pump = Pump()
    ports = RtpPorts("127.0.0.1", *free_range(2 * CALLS + 10))
    sprayer = Sprayer("127.0.0.1")
    calls = [Call(ports, pump, secure=index % 2 == 1) for index in range(CALLS)]
    sessions = [session for call in calls for session in (call.ours, call.peers)]
    media = [session.local_port for session in sessions]
    await sprayer.spray(media, 3)
    pump.start()
    await until(lambda: all(len(call.heard) > 20 for call in calls))
    await sprayer.spray(media, 12)
    statistics = [session.statistics() for session in sessions]
    for call in calls:
        call.close()
    pump.stop()
    await asyncio.sleep(0.05)
    sprayer.close()
    assert sprayer.sent > 10_000
    assert sprayer.answered.isdisjoint(media)
    injected = PCMU.decode(INJECTED)[:2]
    for call in calls:
        assert PCMU.decode(PCMU.encode(SPEECH)) in call.heard
        assert b"9" not in call.heard
        assert not any(injected in {frame[at : at + 2] for at in range(0, 320, 2)} for frame in set(call.heard))
    assert all(each.packets_refused > 0 for each in statistics)
