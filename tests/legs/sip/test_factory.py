"""Our own addresses are never media targets; a softphone on this machine may still call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network

import pytest

from callagent.call_info import EndReason
from callagent.legs.sip import SipLeg
from callagent.legs.sip.factory import (
    OwnAddresses,
    SipLegFactory,
    is_of_this_machine,
    negotiation_towards,
    negotiation_with,
)
from callagent.legs.sip.leg import TrunkMedia, rtp_parameters
from callagent.rtp import Pump, RtpPorts, RtpSession, available_codecs
from callagent.sip import (
    CallAnswered,
    CallEnded,
    Encryption,
    Endpoint,
    Event,
    Hop,
    NotAcceptable,
    OfferAnswered,
    OfferRefused,
    UserAgentSettings,
)
from tests.rtp.test_session import free_range
from tests.sip.test_offer_answer import offer

LOCAL = ("192.0.2.10", "127.0.0.1")
SETTINGS = UserAgentSettings(admit=lambda host: "local")
SDP = "v=0\r\no=- 1 1 IN IP4 {host}\r\ns=-\r\nc=IN IP4 {host}\r\nt=0 0\r\nm=audio {port} RTP/AVP 8\r\n"


def test_an_address_of_this_machine_is_known_without_a_list_of_interfaces() -> None:
    assert is_of_this_machine("127.0.0.1")
    assert is_of_this_machine("127.1.2.3")
    assert is_of_this_machine("::1")
    assert not is_of_this_machine("192.0.2.77")
    assert not is_of_this_machine("255.255.255.255")


@pytest.mark.parametrize(
    ("host", "place", "peer", "refused"),
    [
        # A peer elsewhere has nothing to name here, whatever the port.
        ("192.0.2.10", "other", "203.0.113.5", True),
        ("192.0.2.10", "held", "203.0.113.5", True),
        ("192.0.2.10", "other", None, True),
        # A softphone of this machine has its media here, also within our range, but not at our sockets.
        ("192.0.2.10", "other", "192.0.2.10", False),
        ("192.0.2.10", "free", "127.0.0.1", False),
        ("192.0.2.10", "held", "192.0.2.10", True),
        ("127.0.0.1", "held", "127.0.0.1", True),
        ("127.0.0.1", "control", "127.0.0.1", True),
        ("127.0.0.1", "signalling", "127.0.0.1", True),
        # Through the translator in front of us.
        ("198.51.100.7", "held", "203.0.113.5", True),
        ("198.51.100.7", "free", "203.0.113.5", True),
        ("198.51.100.7", "signalling", "203.0.113.5", True),
        ("198.51.100.7", "other", "203.0.113.5", False),
        ("203.0.113.5", "held", "203.0.113.5", False),
    ],
)
def test_what_is_refused_depends_on_where_the_peer_is(host: str, place: str, peer: str | None, refused: bool) -> None:
    first, last = free_range(10)
    ports = RtpPorts("127.0.0.1", first, last)
    own = OwnAddresses(ports, lambda each: each in LOCAL)
    own.public_address = "198.51.100.7"
    own.signalling_ports = {5060, 5061}
    with ports.bind() as held:
        port: int = held.getsockname()[1]
        free = next(each for each in range(first + first % 2, last, 2) if each != port)
        places = {"held": port, "control": port + 1, "free": free, "signalling": 5061, "other": 4000}
        assert own.refuse(host, places[place], peer) is refused


def test_a_port_that_was_given_back_is_no_longer_ours() -> None:
    ports = RtpPorts("127.0.0.1", *free_range(10))
    with ports.bind() as held:
        port: int = held.getsockname()[1]
        assert ports.holds(port)
    ports.release(port)
    assert not ports.holds(port)


class World:
    def __init__(self, server: SipLegFactory, phone: Endpoint, address: tuple[str, int]) -> None:
        self.server, self.phone, self.address = server, phone, address
        self.legs: asyncio.Queue[SipLeg] = asyncio.Queue()
        self.events: asyncio.Queue[Event] = asyncio.Queue()

    async def dial(self, host: str, port: int) -> Event:
        """How a call is answered whose media is said to be there."""
        body = SDP.format(host=host, port=port).encode()
        self.call = await self.phone.call(f"sip:agent@{self.address[0]}:{self.address[1]}", body=lambda local: body)
        self.call.listen(self.events.put_nowait)
        return await self.event(lambda event: isinstance(event, CallAnswered | CallEnded))

    async def event(self, wanted: Callable[[Event], bool]) -> Event:
        async with asyncio.timeout(60):
            while not wanted(event := await self.events.get()):
                pass
        return event


@asynccontextmanager
async def world(**changes: str) -> AsyncIterator[World]:
    pump = Pump()
    pump.start()
    answering: list[asyncio.Task[object]] = []

    def take(leg: SipLeg) -> None:
        opened.legs.put_nowait(leg)
        answering.append(asyncio.create_task(leg.answer()))

    server = SipLegFactory(RtpPorts("127.0.0.1", 28000, 28998, rest_seconds=0.0), pump, take)
    settings = UserAgentSettings(admit=lambda host: "local", public_address=changes.get("public_address"))
    address = await server.open("127.0.0.1", 0, settings)
    opened = World(server, await Endpoint.open("127.0.0.1", 0, SETTINGS), address)
    try:
        yield opened
    finally:
        await opened.phone.close()
        await server.close()
        pump.stop()


def port_of(leg: SipLeg) -> int:
    assert isinstance(leg._session, RtpSession)
    return leg._session.local_port


async def test_a_phone_of_this_machine_may_not_name_our_sockets_neither_at_first_nor_later() -> None:
    async with world() as opened:
        assert isinstance(await opened.dial("127.0.0.1", 40010), CallAnswered)
        leg = await opened.legs.get()
        first = opened.call
        for port in (port_of(leg), port_of(leg) + 1, opened.address[1]):
            refused = await opened.dial("127.0.0.1", port)
            assert isinstance(refused, CallEnded)
            assert refused.status == 488
        assert opened.legs.empty()
        assert isinstance(await opened.dial("127.0.0.1", 40012), CallAnswered)
        other = await opened.legs.get()
        first.reoffer(SDP.format(host="127.0.0.1", port=port_of(other)).encode())
        answer = await opened.event(lambda event: isinstance(event, OfferAnswered | OfferRefused))
        assert isinstance(answer, OfferRefused)
        assert leg._session._destination == ("127.0.0.1", 40010)
        for each in (leg, other):
            await each.hang_up(EndReason.AGENT_HANGUP)


async def test_our_ports_are_refused_by_the_public_address_too_and_others_behind_it_are_not() -> None:
    async with world(public_address="198.51.100.7") as opened:
        refused = await opened.dial("198.51.100.7", 28500)
        assert isinstance(refused, CallEnded)
        assert refused.status == 488
        assert isinstance(await opened.dial("198.51.100.7", 40010), CallAnswered)
        await (await opened.legs.get()).hang_up(EndReason.AGENT_HANGUP)


KEY = "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:" + "A" * 40
MEDIA = TrunkMedia(("PCMU",), networks=(ip_network("198.51.100.0/24"),), in_band_digits=True)


def test_keys_count_over_tls_only() -> None:
    for transport, encrypted in (("tls", True), ("tcp", False), ("udp", False)):
        negotiation = negotiation_with(Hop("192.0.2.1", 5061, transport), "192.0.2.2", 5000, MEDIA)
        agreement = negotiation.answer(offer("m=audio 4000 RTP/AVP 0", KEY))[1]
        assert (rtp_parameters(agreement, MEDIA).keys is not None) is encrypted


@pytest.mark.parametrize(
    ("target", "offered"),
    [
        ("sips:a@192.0.2.1", True),
        ("sip:a@192.0.2.1;transport=TLS", True),
        ("sip:a@192.0.2.1", False),
        ("sip:a@192.0.2.1;transport=tcp", False),
    ],
)
def test_keys_are_offered_over_tls_only(target: str, offered: bool) -> None:
    assert (b"a=crypto" in negotiation_towards(target, "192.0.2.2", 5000, TrunkMedia()).offer()) is offered


def test_on_loopback_nobody_else_reads_the_keys() -> None:
    assert b"a=crypto" in negotiation_towards("sip:a@127.0.0.1", "127.0.0.1", 5000, TrunkMedia()).offer()
    off = TrunkMedia(encryption=Encryption.OFF)
    assert b"a=crypto" not in negotiation_towards("sip:a@127.0.0.1", "127.0.0.1", 5000, off).offer()


def test_what_is_agreed_on_reaches_the_media_session() -> None:
    negotiation = negotiation_with(Hop("127.0.0.1", 5060), "127.0.0.1", 5000, MEDIA)
    body = offer("m=audio 4000 RTP/AVP 0 101 98", KEY, "a=rtpmap:98 CN/8000", "a=rtcp:4009", host="127.0.0.1")
    agreement = negotiation.answer(body)[1]
    parameters = rtp_parameters(agreement, MEDIA)
    assert (parameters.codec.name, parameters.telephone_event, parameters.comfort_noise) == ("PCMU", 101, 98)
    assert parameters.control == ("127.0.0.1", 4009)
    assert parameters.networks == MEDIA.networks
    assert parameters.in_band_digits

    assert parameters.keys is not None
    assert parameters.keys.receive == bytes(30)
    assert agreement.send_key is not None
    assert parameters.keys.send == agreement.send_key.key


@pytest.mark.parametrize(("formats", "in_band"), [("0 101", False), ("0", True)])
def test_keys_in_the_audio_are_read_unless_telephone_events_were_negotiated(formats: str, in_band: bool) -> None:
    negotiation = negotiation_with(Hop("192.0.2.1", 5060), "192.0.2.2", 5000, TrunkMedia())
    agreement = negotiation.answer(offer(f"m=audio 4000 RTP/AVP {formats}"))[1]
    assert rtp_parameters(agreement, TrunkMedia()).in_band_digits is in_band


def test_keys_in_the_audio_are_read_where_the_answer_takes_no_telephone_events() -> None:
    negotiation = negotiation_towards("sip:a@192.0.2.1", "192.0.2.2", 5000, TrunkMedia())
    assert b"telephone-event" in negotiation.offer()
    agreement = negotiation.accept(offer("m=audio 4000 RTP/AVP 0"))
    assert rtp_parameters(agreement, TrunkMedia()).in_band_digits


def test_a_trunk_that_requires_encryption_gets_nothing_in_the_clear() -> None:
    media = TrunkMedia(encryption=Encryption.REQUIRED)
    with pytest.raises(NotAcceptable):
        negotiation_with(Hop("192.0.2.1", 5060), "192.0.2.2", 5000, media).answer(offer("m=audio 4000 RTP/AVP 0", KEY))
    with pytest.raises(NotAcceptable):
        negotiation_towards("sip:a@192.0.2.1", "192.0.2.2", 5000, media).offer()


def test_only_codecs_that_are_installed_are_offered() -> None:
    body = negotiation_towards("sip:a@192.0.2.1", "192.0.2.2", 5000, TrunkMedia()).offer().lower()
    for name in ("PCMU", "PCMA", "G722", "OPUS"):
        assert (f" {name}/".lower().encode() in body) is (name in available_codecs())


async def test_the_codecs_are_loaded_before_the_first_call() -> None:
    available_codecs.cache_clear()
    legs = SipLegFactory(RtpPorts("127.0.0.1", 29100, 29101), Pump())
    await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: None))
    assert available_codecs.cache_info().currsize == 1
    await legs.close()
