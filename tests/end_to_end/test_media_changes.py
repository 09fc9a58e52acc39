"""Changes of the media within a call, over real sockets: new keys, address and codec, and one that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from callagent.call_info import EndReason
from callagent.legs.sip.leg import DEFAULT_MEDIA, rtp_parameters
from callagent.rtp import Pump, RtpPorts, RtpSession
from callagent.sip import (
    CallAnswered,
    Encryption,
    Endpoint,
    EndpointCall,
    Event,
    MediaPolicy,
    Negotiation,
    OfferAnswered,
    OfferRefused,
    UserAgentSettings,
)
from tests.end_to_end.test_media_peers import OUR_HERTZ, PATIENCE, THEIR_HERTZ, Server, is_tone, media, served, tone

__all__ = ["media", "served"]

pytestmark = pytest.mark.end_to_end
Kind = TypeVar("Kind", bound=Event)


class Stand:
    """One media session of a phone, with its description."""

    def __init__(self, ports: RtpPorts, pump: Pump, codec: str, encryption: Encryption) -> None:
        self.session = RtpSession(asyncio.get_running_loop(), ports, pump)
        policy = MediaPolicy((codec,), encryption, confidential=True)
        self.negotiation = Negotiation("127.0.0.1", self.session.local_port, 7, loopback=True, policy=policy)
        self.clear = 0
        self.frames = tone(THEIR_HERTZ)
        self.session.start(self._hear, lambda: next(self.frames))

    def connect(self, body: bytes) -> None:
        agreement = self.negotiation.accept(body)
        assert agreement.remote is not None
        self.session.connect(agreement.remote, rtp_parameters(agreement, DEFAULT_MEDIA))

    async def hear(self, frames: int = 25) -> None:
        self.clear = 0
        while self.clear < frames:
            await asyncio.sleep(0.02)

    def _hear(self, frame: bytes, now: float) -> None:
        self.clear += is_tone(frame, OUR_HERTZ)


class Phone:
    def __init__(self, endpoint: Endpoint, pump: Pump) -> None:
        self.endpoint = endpoint
        self.pump = pump
        self.ports = RtpPorts("127.0.0.1", 47000, 47998, rest_seconds=0.0)
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.call: EndpointCall
        self.stands: list[Stand] = []

    def stand(self, codec: str, encryption: Encryption) -> Stand:
        self.stands.append(Stand(self.ports, self.pump, codec, encryption))
        return self.stands[-1]

    async def dial(self, address: str, codec: str, encryption: Encryption) -> Stand:
        stand = self.stand(codec, encryption)
        self.call = await self.endpoint.call(address, body=lambda host: stand.negotiation.offer())
        self.call.listen(self.events.put_nowait)
        stand.connect((await self.event(CallAnswered)).body)
        return stand

    async def change(self, codec: str, encryption: Encryption) -> Stand:
        """To another port with other keys, by re-INVITE."""
        stand = self.stand(codec, encryption)
        self.call.reoffer(stand.negotiation.offer())
        stand.connect((await self.event(OfferAnswered)).body)
        return stand

    async def event(self, kind: type[Kind]) -> Kind:
        while True:
            event = await self.events.get()
            if isinstance(event, kind):
                return event


@asynccontextmanager
async def phone() -> AsyncIterator[Phone]:
    pump = Pump()
    pump.start()
    endpoint = await Endpoint.open("127.0.0.1", 0, UserAgentSettings())
    opened = Phone(endpoint, pump)
    yield opened
    for stand in opened.stands:
        stand.session.close()
    await endpoint.close()
    pump.stop()


async def test_new_keys_address_and_codec_are_followed_at_once(served: tuple[Server, str]) -> None:
    server, address = served
    async with asyncio.timeout(2 * PATIENCE), phone() as caller:
        taking = asyncio.create_task(server.take())
        first = await caller.dial(address, "PCMU", Encryption.REQUIRED)
        leg = await taking
        await first.hear()
        await server.hear(25)
        old = leg._session._parameters.keys
        second = await caller.change("G722", Encryption.REQUIRED)
        await second.hear()
        await server.hear(25)
        new = leg._session._parameters.keys
        assert old is not None
        assert new is not None
        assert new.receive != old.receive
        # Theirs is new: ours must be too (RFC 4568 §7.1.4).
        assert new.send != old.send
        assert leg._session.statistics().codec == "G722/8000"
        # The old place hears nothing more.
        heard = first.session.statistics().packets_received
        third = await caller.change("PCMA", Encryption.OFF)
        await third.hear()
        await server.hear(25)
        assert first.session.statistics().packets_received == heard
        assert not leg._session.statistics().encryption
        await leg.hang_up(EndReason.AGENT_HANGUP)


async def test_a_change_that_cannot_be_agreed_on_leaves_the_call_as_it_was(served: tuple[Server, str]) -> None:
    server, address = served
    async with asyncio.timeout(2 * PATIENCE), phone() as caller:
        taking = asyncio.create_task(server.take())
        stand = await caller.dial(address, "PCMU", Encryption.REQUIRED)
        leg = await taking
        await server.hear(25)
        foreign = stand.negotiation.offer().replace(b"PCMU/8000", b"G729/8000").replace(b"AVP 0 ", b"AVP 96 ")
        caller.call.reoffer(foreign.replace(b"rtpmap:0 ", b"rtpmap:96 "))
        assert (await caller.event(OfferRefused)).status == 488
        await server.hear(25)
        await stand.hear()
        assert leg._session.statistics().encryption
        await leg.hang_up(EndReason.AGENT_HANGUP)
