"""The endpoint on real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket

import pytest

from callagent.sip import (
    CallAnswered,
    CallClosed,
    CallEnded,
    DigitReceived,
    Endpoint,
    EndpointCall,
    Event,
    LookupFailed,
    Negotiation,
    UserAgentSettings,
)
from callagent.sip.udp import Datagrams

SETTINGS = UserAgentSettings(admit=lambda host: "local")


def offer(host: str) -> bytes:
    return Negotiation(host, 40002, 1, loopback=True).offer()


class Answering:
    """Takes every call."""

    def __init__(self) -> None:
        self.calls: list[EndpointCall] = []

    def __call__(self, call: EndpointCall) -> None:
        self.calls.append(call)
        negotiation = Negotiation(call.local_host(), 40000, 1, loopback=True)
        call.answer(negotiation.answer(call.core.invite.body)[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
async def test_a_call_over_the_wire(host: str) -> None:
    answering = Answering()
    server = await Endpoint.open(host, 0, SETTINGS, answering)
    phone = await Endpoint.open("::1" if host == "::1" else "127.0.0.1", 0, SETTINGS)
    events: asyncio.Queue[Event] = asyncio.Queue()
    target = "[::1]" if host == "::1" else "127.0.0.1"
    call = await phone.call(f"sip:agent@{target}:{server.local_address[1]}", body=offer)
    call.listen(events.put_nowait)
    async with asyncio.timeout(60):
        assert isinstance(await events.get(), CallAnswered)
        call.hang_up()
        await call.closed.wait()
        await answering.calls[0].closed.wait()
    assert answering.calls[0].trunk == "local"
    assert answering.calls[0].local_host() == ("::1" if host == "::1" else "127.0.0.1")
    await server.close()
    await phone.close()


async def test_without_anybody_to_take_them_calls_are_refused() -> None:
    server, phone = [await Endpoint.open("127.0.0.1", 0, SETTINGS) for _ in range(2)]
    events: asyncio.Queue[Event] = asyncio.Queue()
    call = await phone.call(f"sip:agent@localhost:{server.local_address[1]}", body=offer)
    call.listen(events.put_nowait)
    async with asyncio.timeout(60):
        event = await events.get()
    assert isinstance(event, CallEnded)
    assert event.status == 480
    await server.close()
    await phone.close()


async def test_closing_ends_calls_and_does_not_wait_for_peers_that_are_gone() -> None:
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        await phone.call(f"sip:agent@127.0.0.1:{deaf.getsockname()[1]}", body=offer)
        async with asyncio.timeout(60):
            await phone.close(0.1)
            await phone.close()


async def test_an_event_that_a_listener_causes_waits_for_the_earlier_ones() -> None:
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    call = await phone.call("sip:agent@127.0.0.1:9", body=offer)
    one, two, three = (DigitReceived(call.core, digit) for digit in "123")
    last = CallClosed(call.core)
    received: list[Event] = []

    def receive(event: Event) -> None:
        received.append(event)
        if event is one:
            call.deliver(three)
            call.deliver(last)
            call.close()
            assert received == [one]

    call.deliver(one)
    call.deliver(two)
    call.listen(receive)
    # The call has ended meanwhile, and its owner has got all events up to the last.
    assert received == [one, two, three, last]
    call.deliver(one)
    assert received == [one, two, three, last]
    await phone.close(0.0)


async def test_what_cannot_be_called_raises() -> None:
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    for target in ("tel:+15550100", "nonsense", "sip:", "sip:a@127.0.0.1;transport=ws"):
        with pytest.raises(ValueError, match=r"not valid|Only"):
            await phone.call(target, body=offer)
    with pytest.raises(LookupFailed):
        await phone.call("sip:agent@name.invalid", body=offer)
    await phone.close()


@pytest.mark.parametrize(
    ("public_host", "signalling"), [(None, "198.51.100.7"), ("phone.example.com", "phone.example.com")]
)
async def test_requests_go_to_the_public_host_and_media_to_the_public_address(
    public_host: str | None, signalling: str
) -> None:
    settings = UserAgentSettings(admit=lambda host: "local", public_host=public_host, public_address="198.51.100.7")
    phone = await Endpoint.open("127.0.0.1", 0, settings)
    call = await phone.call("sip:agent@127.0.0.1:9", body=offer)
    invite = call.core.invite
    assert (invite.contacts[0].uri.host, invite.via.host) == (signalling, signalling)
    assert b"c=IN IP4 198.51.100.7" in invite.body
    await phone.close(0.0)


async def test_an_address_of_the_other_family_is_nobody_elses_problem() -> None:
    datagrams = await Datagrams.open("127.0.0.1", 0, lambda data, source: None)
    datagrams.send(b"x", ("2001:db8::9:1", 5060))
    datagrams.close()
