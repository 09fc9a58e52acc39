"""SIP legs against each other over real sockets on loopback: a phone's side and a server's side."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from callagent.audio import FRAME_BYTES, dtmf_frames
from callagent.call_info import EndReason
from callagent.legs.leg import (
    CallerHungUp,
    DigitPressed,
    LegEvent,
    LegFailed,
    LegGone,
    Media,
    TransferStatus,
    TransferTarget,
)
from callagent.legs.sip.factory import SipLegFactory
from callagent.legs.sip.leg import LegState, SipLeg, TrunkMedia
from callagent.rtp import Pump, RtpPorts, RtpSettings
from callagent.rtp.codec import PCMA
from callagent.rtp.packet import RtpPacket
from callagent.sip import (
    CallAnswered,
    CallEnded,
    DigitReceived,
    Endpoint,
    Event,
    OfferAnswered,
    OfferRefused,
    UserAgentSettings,
)

SETTINGS = UserAgentSettings(admit=lambda host: "local", accepts_transfers=True)
PATIENCE = 60.0
NORMAL = {"Reason": 'Q.850;cause=16;text="Normal call clearing"'}


@dataclass
class World:
    """A server that keeps its legs, and a phone."""

    phone: SipLegFactory
    server: SipLegFactory
    address: str
    legs: asyncio.Queue[SipLeg] = field(default_factory=asyncio.Queue)

    async def ringing(self, **more: object) -> tuple[SipLeg, SipLeg]:
        ours = await self.phone.dial(f"sip:agent@{self.address}", caller='"Ann" <sip:+15550100@127.0.0.1>', **more)
        async with asyncio.timeout(PATIENCE):
            return ours, await self.legs.get()

    async def answered(self) -> tuple[SipLeg, SipLeg, Media, Media]:
        ours, theirs = await self.ringing()
        async with asyncio.timeout(PATIENCE):
            media = await theirs.answer()
            return ours, theirs, await ours.answer(), media


@pytest.fixture
def pump() -> AsyncIterator[Pump]:
    running = Pump()
    running.start()
    yield running
    running.stop()


def ports() -> RtpPorts:
    return RtpPorts("127.0.0.1", 20000, 29998, rest_seconds=0.0)


@pytest.fixture
async def world(pump: Pump, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The server waits for a caller's first packet as long as the test says."""
    phone = SipLegFactory(ports(), pump)
    legs: asyncio.Queue[SipLeg] = asyncio.Queue()
    timeouts = RtpSettings(first_packet_timeout=getattr(request, "param", 60.0), packet_timeout=60.0)
    server = SipLegFactory(ports(), pump, legs.put_nowait, timeouts)
    host, port = await server.open("127.0.0.1", 0, SETTINGS)
    await phone.open("127.0.0.1", 0, SETTINGS)
    yield World(phone, server, f"{host}:{port}", legs)
    await phone.close()
    await server.close()


class Events:
    def __init__(self, leg: SipLeg) -> None:
        self.seen: list[LegEvent] = []
        self._changed = asyncio.Event()
        leg.listen(self._add)

    def _add(self, event: LegEvent) -> None:
        self.seen.append(event)
        self._changed.set()

    async def until(self, wanted: Callable[[list[LegEvent]], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not wanted(self.seen):
                self._changed.clear()
                await self._changed.wait()


async def test_who_calls_whom_and_with_which_headers(world: World) -> None:
    _, theirs = await world.ringing(headers={"X-Customer": "42", "User-to-User": "abc;encoding=hex"})
    info = theirs.info
    assert (info.direction, info.caller, info.callee, info.wire) == ("inbound", "+15550100", "agent", "sip")
    assert dict(info.headers) == {"X-Customer": "42", "User-to-User": "abc;encoding=hex"}
    assert info.peer_call_id


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ({"P-Asserted-Identity": '"A" <sip:+15550199@example.com>'}, "+15550199"),
        ({"P-Asserted-Identity": "<tel:+15550198>"}, "+15550198"),
        ({"P-Asserted-Identity": "broken <"}, "+15550100"),
        ({"P-Asserted-Identity": "<sip:+15550199@example.com>", "Privacy": "id"}, None),
    ],
)
async def test_the_trunks_word_on_the_caller_counts(world: World, headers: dict[str, str], caller: str | None) -> None:
    _, theirs = await world.ringing(headers=headers)
    assert theirs.info.caller == caller


async def test_both_hear_each_other(world: World) -> None:
    ours, theirs, our_media, their_media = await world.answered()
    heard: dict[str, asyncio.Event] = {"phone": asyncio.Event(), "server": asyncio.Event()}
    tone = b"\x00\x10\x00\xf0" * 80

    def sink(name: str) -> Callable[[bytes, float], None]:
        return lambda frame, now: heard[name].set() if max(frame) > 0 else None

    our_media.start(sink("phone"), lambda: tone)
    their_media.start(sink("server"), lambda: tone)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(event.wait() for event in heard.values()))
    assert our_media.statistics().packets_refused == 0
    await ours.hang_up(EndReason.CALLER_HANGUP)
    await theirs.hang_up(EndReason.AGENT_HANGUP)


async def test_the_caller_hangs_up(world: World) -> None:
    ours, theirs, _, _ = await world.answered()
    events = Events(theirs)
    await ours.hang_up(EndReason.CALLER_HANGUP, {"X-Survey": "5", "User-to-User": "abc;encoding=hex"})
    await events.until(bool)
    said = {**NORMAL, "X-Survey": "5", "User-to-User": "abc;encoding=hex"}
    assert events.seen == [CallerHungUp(EndReason.CALLER_HANGUP, said, ("Q.850 16",))]


async def test_what_a_peer_says_as_it_leaves_counts_where_it_is_trusted(pump: Pump) -> None:
    legs: asyncio.Queue[SipLeg] = asyncio.Queue()
    server = SipLegFactory(ports(), pump, legs.put_nowait, media=lambda trunk: TrunkMedia(trusted=False))
    phone = SipLegFactory(ports(), pump)
    host, port = await server.open("127.0.0.1", 0, SETTINGS)
    await phone.open("127.0.0.1", 0, SETTINGS)
    ours = await phone.dial(f"sip:agent@{host}:{port}")
    theirs = await asyncio.wait_for(legs.get(), PATIENCE)
    await asyncio.wait_for(theirs.answer(), PATIENCE)
    await asyncio.wait_for(ours.answer(), PATIENCE)
    events = Events(theirs)
    await ours.hang_up(EndReason.CALLER_HANGUP, {"X-Survey": "5"})
    await events.until(bool)
    assert events.seen == [CallerHungUp(EndReason.CALLER_HANGUP)]
    await phone.close()
    await server.close()


async def test_we_hang_up_and_nobody_is_told_what_we_did_ourselves(world: World) -> None:
    ours, theirs, _, _ = await world.answered()
    ourselves, events = Events(theirs), Events(ours)
    await theirs.hang_up(EndReason.AGENT_HANGUP, {"X-Why": "done"})
    await theirs.hang_up(EndReason.AGENT_HANGUP)
    await events.until(bool)
    assert events.seen == [CallerHungUp(EndReason.CALLER_HANGUP, {**NORMAL, "X-Why": "done"}, ("Q.850 16",))]
    assert ourselves.seen == []


async def test_the_caller_gives_up_while_it_rings(world: World) -> None:
    ours, theirs = await world.ringing()
    events = Events(theirs)
    theirs.ring()
    # Taken by another phone of the same caller's (RFC 3326 §3.1).
    elsewhere = {"Reason": 'SIP;cause=200;text="Call completed elsewhere"'}
    await ours.hang_up(EndReason.CALLER_HANGUP, elsewhere)
    await events.until(bool)
    assert events.seen == [CallerHungUp(EndReason.CANCELLED, elsewhere, ("SIP 200",))]
    with pytest.raises(LegGone):
        await theirs.answer()


async def test_a_refused_call_raises_with_what_the_wire_said(world: World) -> None:
    ours, theirs = await world.ringing()
    await theirs.hang_up(EndReason.REJECTED)
    with pytest.raises(LegGone, match="603 Decline"):
        async with asyncio.timeout(PATIENCE):
            await ours.answer()


async def test_a_stranger_codec_is_refused_and_its_port_freed(world: World) -> None:
    host, port = world.address.split(":")
    invite = (
        f"INVITE sip:agent@{world.address} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1;rport;branch=z9hG4bKx\r\n"
        "From: <sip:a@127.0.0.1>;tag=1\r\nTo: <sip:agent@127.0.0.1>\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\n"
        "Contact: <sip:a@127.0.0.1>\r\nMax-Forwards: 70\r\nContent-Type: application/sdp\r\n\r\n"
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 40000 RTP/AVP 18\r\n"
    )
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.setblocking(False)
        peer.connect((host, int(port)))
        await loop.sock_sendall(peer, invite.encode())
        async with asyncio.timeout(PATIENCE):
            answers = [await loop.sock_recv(peer, 4096) for _ in range(2)]
    assert answers[1].startswith(b"SIP/2.0 488 ")
    assert world.legs.empty()


async def test_digits_arrive_once_each(world: World) -> None:
    ours, theirs, our_media, their_media = await world.answered()
    events = Events(theirs)
    our_media.start(lambda frame, now: None, lambda: None)
    their_media.start(lambda frame, now: None, lambda: None)
    await ours.send_digits("42#")
    await events.until(lambda seen: len(seen) >= 3)
    assert events.seen == [DigitPressed("4"), DigitPressed("2"), DigitPressed("#")]


@pytest.mark.parametrize("world", [1.0], indirect=True)
async def test_a_caller_without_media_is_ended(world: World) -> None:
    ours, theirs, _, their_media = await world.answered()
    events, phone = Events(theirs), Events(ours)
    their_media.start(lambda frame, now: None, lambda: None)
    await events.until(bool)
    (failure,) = events.seen
    assert isinstance(failure, LegFailed)
    assert failure.reason is EndReason.MEDIA_TIMEOUT
    await phone.until(bool)


async def test_a_transfer_succeeds_and_we_leave(world: World) -> None:
    ours, theirs, _, _ = await world.answered()
    asked: list[str] = []

    def transfer(target: str, headers: object) -> None:
        asked.append(target)
        ours.report_transfer(180)
        ours.report_transfer(200)

    ours.on_transfer_request = transfer
    phone = Events(ours)
    outcome = await theirs.transfer(TransferTarget("desk", "sip:desk@127.0.0.1:5999", headers={"X-Case": "7"}))
    assert (outcome.status, outcome.detail) == (TransferStatus.SUCCEEDED, "200 OK")
    assert asked == ["sip:desk@127.0.0.1:5999"]
    await phone.until(bool)


async def test_a_number_is_transferred_to_at_the_peers_own_host(world: World) -> None:
    ours, theirs, _, _ = await world.answered()
    asked: list[str] = []
    ours.on_transfer_request = lambda target, headers: (asked.append(target), ours.report_transfer(200))
    await theirs.transfer(TransferTarget("desk", "+15550123"))
    assert asked == ["sip:+15550123@127.0.0.1"]


async def test_a_transfer_that_fails_leaves_the_call_to_us(world: World) -> None:
    ours, theirs, _, _ = await world.answered()
    ours.on_transfer_request = lambda target, headers: ours.report_transfer(486)
    outcome = await theirs.transfer(TransferTarget("desk", "sip:desk@127.0.0.1"))
    assert (outcome.status, outcome.detail) == (TransferStatus.FAILED, "486 Busy Here")
    ours.on_transfer_request = None
    outcome = await theirs.transfer(TransferTarget("desk", "sip:desk@127.0.0.1"))
    assert (outcome.status, outcome.detail) == (TransferStatus.FAILED, "603 Decline")


async def test_a_caller_who_leaves_during_the_transfer_is_gone(world: World) -> None:
    ours, theirs, _, _ = await world.answered()
    ours.on_transfer_request = lambda target, headers: None
    waiting = asyncio.create_task(theirs.transfer(TransferTarget("desk", "sip:desk@127.0.0.1")))
    await asyncio.sleep(0)
    await ours.hang_up(EndReason.CALLER_HANGUP)
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).status is TransferStatus.CALLER_GONE


async def test_a_transfer_by_bye_carries_its_headers(world: World) -> None:
    ours, theirs, _, _ = await world.answered()
    phone = Events(ours)
    target = TransferTarget("desk", "sip:desk@127.0.0.1", method="bye", headers={"X-Transfer-To": "desk"})
    assert (await theirs.transfer(target)).status is TransferStatus.SUCCEEDED
    await phone.until(bool)
    said = {**NORMAL, "X-Transfer-To": "desk"}
    assert phone.seen == [CallerHungUp(EndReason.CALLER_HANGUP, said, ("Q.850 16",))]


async def test_closing_hangs_up_what_still_runs(world: World) -> None:
    ours, _, _, _ = await world.answered()
    phone = Events(ours)
    await world.server.close()
    await phone.until(bool)
    assert phone.seen == [CallerHungUp(EndReason.CALLER_HANGUP)]


SDP = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 40000 RTP/AVP 8\r\n"


async def test_a_call_without_an_offer_is_offered_to_and_the_ack_decides(world: World) -> None:
    host, port = world.address.split(":")
    identity = "From: <sip:a@127.0.0.1>;tag=1\r\nCall-ID: late\r\nContact: <sip:a@127.0.0.1>\r\nMax-Forwards: 70\r\n"
    via = "Via: SIP/2.0/UDP 127.0.0.1;rport;branch=z9hG4bK"
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.setblocking(False)
        peer.connect((host, int(port)))
        to = f"To: <sip:agent@{world.address}>"
        start = f"INVITE sip:agent@{world.address} SIP/2.0\r\n{via}1\r\n{identity}{to}\r\nCSeq: 1 INVITE\r\n\r\n"
        await loop.sock_sendall(peer, start.encode())
        async with asyncio.timeout(PATIENCE):
            leg = await world.legs.get()
            answering = asyncio.create_task(leg.answer())
            answer = b""
            while not answer.startswith(b"SIP/2.0 200"):
                answer = await loop.sock_recv(peer, 4096)
            assert b"RTP/AVP 0 8 " in answer
            to = next(line for line in answer.decode().split("\r\n") if line.startswith("To:"))
            ack = f"ACK sip:agent@{world.address} SIP/2.0\r\n{via}2\r\n{identity}{to}\r\nCSeq: 1 ACK\r\n"
            await loop.sock_sendall(peer, f"{ack}Content-Type: application/sdp\r\n\r\n{SDP}".encode())
            media = await answering
    assert media.statistics().codec == "PCMA/8000"
    await leg.hang_up(EndReason.AGENT_HANGUP)


class Peer:
    """A bare endpoint with made-up media, to say what our own legs never say."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()

    async def next(self, kind: type[Event]) -> Event:
        async with asyncio.timeout(PATIENCE):
            while True:
                event = await self.events.get()
                if isinstance(event, kind):
                    return event


async def test_the_peer_holds_changes_the_codec_and_asks_for_one_we_lack(world: World) -> None:
    peer = Peer()
    endpoint = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    call = await endpoint.call(f"sip:agent@{world.address}", body=lambda host: SDP.encode())
    call.listen(peer.events.put_nowait)
    leg = await world.legs.get()
    media = await leg.answer()
    await peer.next(CallAnswered)
    assert media.statistics().codec == "PCMA/8000"
    for body, wanted in (
        (SDP + "a=sendonly\r\n", b"a=recvonly"),
        (SDP.replace("AVP 8", "AVP 0 8"), b"RTP/AVP 0\r\n"),
    ):
        call.reoffer(body.encode())
        answered = await peer.next(OfferAnswered)
        assert isinstance(answered, OfferAnswered)
        assert wanted in answered.body
        await asyncio.sleep(0.05)
    assert media.statistics().codec == "PCMU/8000"
    call.reoffer(SDP.replace("AVP 8", "AVP 18").encode())
    refused = await peer.next(OfferRefused)
    assert isinstance(refused, OfferRefused)
    assert refused.status == 488
    assert media.statistics().codec == "PCMU/8000"
    await leg.hang_up(EndReason.AGENT_HANGUP)
    await endpoint.close()


@pytest.mark.parametrize("world", [0.5], indirect=True)
async def test_a_peer_that_only_listens_goes_on_hearing_us_and_owes_us_no_packet(world: World) -> None:
    peer, loop = Peer(), asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as media_socket:
        media_socket.setblocking(False)
        media_socket.bind(("127.0.0.1", 0))
        body = SDP.replace("40000", str(media_socket.getsockname()[1])) + "a=recvonly\r\n"
        endpoint = await Endpoint.open("127.0.0.1", 0, SETTINGS)
        call = await endpoint.call(f"sip:agent@{world.address}", body=lambda host: body.encode())
        call.listen(peer.events.put_nowait)
        leg = await world.legs.get()
        events = Events(leg)
        media = await leg.answer()
        media.start(lambda frame, now: None, lambda: b"\x00\x10" * 160)
        answered = await peer.next(CallAnswered)
        assert isinstance(answered, CallAnswered)
        assert b"a=sendonly" in answered.body
        async with asyncio.timeout(PATIENCE):
            # More than a second of audio: twice the time in which a first packet is expected otherwise.
            for _ in range(60):
                while (await loop.sock_recv(media_socket, 2048))[1] & 0x7F != 8:
                    pass
        assert not events.seen
        call.reoffer(body.replace("recvonly", "sendrecv").encode())
        await events.until(bool)
        (failure,) = events.seen
        assert isinstance(failure, LegFailed)
    await endpoint.close()


async def test_keys_in_the_audio_are_read_where_telephone_events_were_not_negotiated(world: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as media_socket:
        media_socket.bind(("127.0.0.1", 0))
        body = SDP.replace("40000", str(media_socket.getsockname()[1]))
        endpoint = await Endpoint.open("127.0.0.1", 0, SETTINGS)
        call = await endpoint.call(f"sip:agent@{world.address}", body=lambda host: body.encode())
        peer = Peer()
        call.listen(peer.events.put_nowait)
        leg = await world.legs.get()
        events = Events(leg)
        media = await leg.answer()
        media.start(lambda frame, now: None, lambda: None)
        await peer.next(CallAnswered)
        frames = [bytes(FRAME_BYTES)] * 5 + list(dtmf_frames("4#"))
        for number, frame in enumerate(frames):
            packet = RtpPacket(8, number, number * 160, 1, PCMA.encode(frame), marker=not number)
            media_socket.sendto(bytes(packet), ("127.0.0.1", media.local_port))
            await asyncio.sleep(0.02)
        await events.until(lambda seen: len(seen) >= 2)
        assert events.seen == [DigitPressed("4"), DigitPressed("#")]
    await leg.hang_up(EndReason.AGENT_HANGUP)
    await endpoint.close()


async def test_digits_go_by_info_to_a_peer_without_telephone_events(world: World) -> None:
    peer = Peer()
    endpoint = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    call = await endpoint.call(f"sip:agent@{world.address}", body=lambda host: SDP.encode())
    call.listen(peer.events.put_nowait)
    leg = await world.legs.get()
    events = Events(leg)
    await leg.answer()
    await peer.next(CallAnswered)
    await asyncio.sleep(0.05)
    await leg.send_digits("7")
    digit = await peer.next(DigitReceived)
    assert isinstance(digit, DigitReceived)
    assert digit.digit == "7"
    call.send_digit("9")
    await events.until(bool)
    assert events.seen == [DigitPressed("9")]
    await leg.hang_up(EndReason.AGENT_HANGUP)
    await endpoint.close()


async def test_without_free_media_ports_calls_are_sent_away(pump: Pump) -> None:
    server = SipLegFactory(RtpPorts("127.0.0.1", 29000, 29001), pump, lambda leg: None)
    host, port = await server.open("127.0.0.1", 0, SETTINGS)
    phone = SipLegFactory(ports(), pump)
    await phone.open("127.0.0.1", 0, SETTINGS)
    await phone.dial(f"sip:a@{host}:{port}")
    second = await phone.dial(f"sip:a@{host}:{port}")
    with pytest.raises(LegGone, match="503"):
        async with asyncio.timeout(PATIENCE):
            await second.answer()
    await phone.close()
    await server.close()


async def test_what_cannot_be_dialled_raises_and_frees_its_port(pump: Pump) -> None:
    phone = SipLegFactory(RtpPorts("127.0.0.1", 29000, 29001, rest_seconds=0.0), pump)
    await phone.open("127.0.0.1", 0, SETTINGS)
    for _ in range(2):
        with pytest.raises(ValueError, match="not valid"):
            await phone.dial("nonsense")
    await phone.close()


# Another peer in the place of the first (RFC 3891), and sound before the answer


class Frames:
    """What a side hears."""

    def __init__(self, media: Media) -> None:
        self.loud = asyncio.Event()
        media.start(self._hear, lambda: None)

    def _hear(self, frame: bytes, now: float) -> None:
        if any(frame[1::2]):
            self.loud.set()


def speak(media: Media) -> None:
    media.start(lambda frame, now: None, lambda: b"\x00\x20" * 160)


async def test_another_call_takes_the_place_of_the_first_and_the_conversation_goes_on(world: World) -> None:
    ours, theirs, _, media = await world.answered()
    first, agent = Events(ours), Events(theirs)
    heard = Frames(media)
    dialog = ours._call.core.dialog
    assert dialog is not None
    replaces = f"{dialog.call_id};to-tag={dialog.remote.tag};from-tag={dialog.local.tag}"
    second = await world.phone.dial(f"sip:agent@{world.address}", headers={"Replaces": replaces})
    async with asyncio.timeout(PATIENCE):
        speak(await second.answer())
        await first.until(lambda seen: any(isinstance(event, CallerHungUp) for event in seen))
        await heard.loud.wait()
    assert not agent.seen
    assert world.legs.empty()
    last = Events(second)
    await theirs.hang_up(EndReason.AGENT_HANGUP)
    await last.until(lambda seen: seen == [CallerHungUp(EndReason.CALLER_HANGUP, NORMAL, ("Q.850 16",))])


async def test_a_replacement_whose_media_does_not_suit_leaves_the_call_as_it_is(world: World) -> None:
    ours, theirs, _, _ = await world.answered()
    dialog = ours._call.core.dialog
    assert dialog is not None
    replaces = f"{dialog.call_id};to-tag={dialog.remote.tag};from-tag={dialog.local.tag}"
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    events: asyncio.Queue[Event] = asyncio.Queue()
    bad = b"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 18\r\n"
    call = await phone.call(f"sip:agent@{world.address}", body=lambda host: bad, headers={"Replaces": replaces})
    call.listen(events.put_nowait)
    async with asyncio.timeout(PATIENCE):
        ended = await events.get()
    assert isinstance(ended, CallEnded)
    assert ended.status == 488
    assert theirs._state is LegState.ANSWERED
    await phone.close()


async def test_a_leg_that_has_ended_is_freed_without_the_collector(world: World) -> None:
    """What waits for a full collection, of which there is one in millions of objects, is memory that grows."""
    gc.collect()
    gc.disable()
    try:
        ours, theirs, _, _ = await world.answered()
        # Our INVITE's transaction knows its call for 64*T1: a fork may still answer.
        left = [weakref.ref(part) for part in (ours, ours.call, theirs, theirs.call, theirs.call.core)]
        async with asyncio.timeout(PATIENCE):
            await ours.hang_up(EndReason.AGENT_HANGUP)
            await theirs.call.closed.wait()
        del ours, theirs
        await asyncio.sleep(0)
        assert [part() for part in left] == [None] * len(left)
    finally:
        gc.enable()
