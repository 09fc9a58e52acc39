"""Trunks against registrars that do what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from callagent.sip import (
    Credentials,
    Endpoint,
    Hop,
    Request,
    Response,
    Trunks,
    TrunkSettings,
    Uri,
    UserAgentSettings,
    parse_message,
    trunk_metrics,
)
from callagent.sip.message.message import respond_to

PATIENCE = 60.0
CHALLENGE = 'Digest realm="carrier", nonce="{}", qop="auth", algorithm=SHA-256{}'
Answer = Callable[[Request], Response]


class Registrar(asyncio.DatagramProtocol):
    """Answers each REGISTER as the next of its answers says, the last for ever; OPTIONS with 200."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.heard: list[Request] = []
        self.hop = Hop("127.0.0.1", 0)
        self._transport: asyncio.DatagramTransport

    async def open(self) -> Registrar:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self.hop = Hop("127.0.0.1", self._transport.get_extra_info("sockname")[1])
        return self

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        request = parse_message(data)
        assert isinstance(request, Request)
        self.heard.append(request)
        register = request.method == "REGISTER"
        answer = says(200) if not register else self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self._transport.sendto(bytes(answer(request)), addr)

    def close(self) -> None:
        self._transport.close()

    def of(self, method: str) -> list[Request]:
        return [request for request in self.heard if request.method == method]


def says(status: int, **headers: str) -> Answer:
    extra = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return lambda request: respond_to(request, status, tag="registrar", headers=extra)


class Found:
    """In the place of the name server."""

    def __init__(self, *hops: Hop) -> None:
        self._hops = hops

    async def hops(self, uri: Uri) -> tuple[Hop, ...]:
        return self._hops


class World:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.registrars: list[Registrar] = []
        self.trunks: Trunks

    async def trunk(self, *answers: tuple[Answer, ...], **more: object) -> list[Registrar]:
        """One trunk, whose servers answer so, in the order to try them."""
        self.registrars = [await Registrar(*each).open() for each in answers]
        self.endpoint.use_lookup(Found(*(each.hop for each in self.registrars)))  # type: ignore[arg-type]
        credentials = Credentials("agent", "secret", "carrier")
        server = Uri.parse("sip:carrier.test")
        self.trunks = Trunks(self.endpoint, [TrunkSettings("carrier", server, credentials, **more)])  # type: ignore[arg-type]
        self.trunks.start()
        return self.registrars

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not done():
                await asyncio.sleep(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    endpoint = await Endpoint.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: None))
    made = World(endpoint)
    yield made
    await made.trunks.close()
    await endpoint.close()
    for registrar in made.registrars:
        registrar.close()


async def test_the_next_server_is_registered_at_when_the_first_is_busy_and_left_at_the_end(world: World) -> None:
    first, second = await world.trunk((says(503),), (says(200, Expires="60"),), register=True)
    await world.until(lambda: bool(world.trunks.states["carrier"].registered))
    assert len(first.of("REGISTER")) == 1
    assert second.of("REGISTER")[0].headers.get("Supported") == "path"
    await world.trunks.close()
    assert second.of("REGISTER")[-1].headers.get("Expires") == "0"
    assert len(first.of("REGISTER")) == 1


async def test_a_proof_is_given_and_given_again_where_the_nonce_was_too_old(world: World) -> None:
    stale = says(401, WWW_Authenticate=CHALLENGE.format("new", ", stale=true"))
    answers = (says(401, WWW_Authenticate=CHALLENGE.format("old", "")), stale, says(200, Expires="60"))
    (registrar,) = await world.trunk(answers, register=True)
    await world.until(lambda: bool(world.trunks.states["carrier"].registered))
    requests = registrar.of("REGISTER")
    assert [request.cseq.number for request in requests] == [1, 2, 3]
    assert [bool(request.headers.values("Authorization")) for request in requests] == [False, True, True]
    assert 'nonce="new"' in requests[2].headers.values("Authorization")[0]


async def test_a_wrong_password_is_not_tried_again_and_again(world: World) -> None:
    (registrar,) = await world.trunk((says(401, WWW_Authenticate=CHALLENGE.format("x", "")),), register=True)
    await world.until(lambda: len(registrar.of("REGISTER")) >= 2)
    await asyncio.sleep(0.3)
    assert len(registrar.of("REGISTER")) == 2
    assert world.trunks.states["carrier"].registered is False


async def test_what_a_trunk_is_like_is_in_the_metrics_and_its_route_known(world: World) -> None:
    route = "<sip:127.0.0.1:5999;lr>"
    (registrar,) = await world.trunk((says(200, Service_Route=route),), register=True, keep_alive=0.05)
    await world.until(lambda: bool(world.trunks.states["carrier"].registered))
    await world.until(lambda: len(registrar.of("OPTIONS")) >= 2)
    assert [str(each) for each in world.trunks.service_route("carrier")] == [route]
    assert world.trunks.service_route("other") == ()
    lines = trunk_metrics(world.trunks.states)
    assert 'callagent_sip_trunk_registered{trunk="carrier"} 1' in lines
    assert 'callagent_sip_trunk_reachable{trunk="carrier"} 1' in lines
