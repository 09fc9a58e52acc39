"""The endpoint against SIPp over UDP on loopback."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callagent.sip import (
    UNPROVEN,
    Account,
    CallAnswered,
    CallClosed,
    CallConfirmed,
    CallEnded,
    CallReplaced,
    CallRinging,
    Credentials,
    DigestSettings,
    EndCause,
    Endpoint,
    EndpointCall,
    Event,
    Negotiation,
    OfferReceived,
    TransferProgressed,
    TransferRequested,
    TransferState,
    Uri,
    UserAgentSettings,
)
from tests.end_to_end.baresip import START_SECONDS, free_port, is_open
from tests.end_to_end.scripted import until

SCENARIOS = Path(__file__).parent / "sipp"
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]


class Server:
    """Does what the user part of the Request-URI says."""

    def __init__(self) -> None:
        self.endpoint: Endpoint
        self.events: list[Event] = []
        self.calls: list[EndpointCall] = []
        self.desk: EndpointCall | None = None
        """The call whose place a transferred phone takes."""

    def accept(self, call: EndpointCall) -> None:
        self.calls.append(call)
        negotiation = Negotiation(call.local_host(), 40000, 1, loopback=True)
        call.listen(lambda event: self._hear(call, negotiation, event))
        call.ring()
        if call.core.invite.uri.user != "ring":
            call.answer(negotiation.answer(call.core.invite.body)[0])

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def _hear(self, call: EndpointCall, negotiation: Negotiation, event: Event) -> None:
        self.events.append(event)
        user = call.core.invite.uri.user
        if isinstance(event, CallConfirmed) and user == "transfer":
            call.refer(Uri.parse("sip:+15550199@127.0.0.1"), to=self.desk)
        elif isinstance(event, CallReplaced):
            successor = call.successor(event.by)
            self.calls.append(successor)
            successor.listen(lambda event: self._hear(successor, negotiation, event))
            successor.answer(negotiation.answer(successor.core.invite.body)[0])
            # SIPp takes one thing at a time.
            asyncio.get_running_loop().call_later(0.3, call.hang_up)
        elif isinstance(event, TransferRequested):
            asyncio.get_running_loop().call_later(0.3, call.report_transfer, 603)
        elif isinstance(event, CallConfirmed) and user == "leave":
            call.hang_up(headers={"X-Why": "done"})
        elif isinstance(event, TransferProgressed) and event.state is TransferState.SUCCEEDED:
            call.hang_up()
        elif isinstance(event, OfferReceived):
            try:
                call.accept_offer(negotiation.answer(event.body)[0])
            except ValueError:
                call.refuse_offer()


@asynccontextmanager
async def serving(settings: UserAgentSettings) -> AsyncIterator[Server]:
    served = Server()
    served.endpoint = await _on_one_port(settings, served)
    try:
        yield served
    finally:
        await served.endpoint.close()


async def _on_one_port(settings: UserAgentSettings, served: Server) -> Endpoint:
    """UDP and TCP on the same port, which may take a few tries."""
    for _ in range(20):
        endpoint = await Endpoint.open("127.0.0.1", 0, settings, served.accept)
        try:
            await endpoint.listen("tcp", "127.0.0.1", endpoint.local_address[1])
        except OSError:
            await endpoint.close()
        else:
            return endpoint
    raise TimeoutError


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(UserAgentSettings(admit=lambda host: "local")) as served:
        yield served


async def sipp(server: Server, *arguments: str) -> None:
    """Run SIPp to its end; every call of it has to succeed."""
    port = server.endpoint.local_address[1]
    process = await asyncio.create_subprocess_exec(
        "sipp", *arguments, "-i", "127.0.0.1", "-mi", "127.0.0.1", "-nd", "-nostdin", "-timeout", "40",
        "-timeout_error", f"127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


def scenario(name: str) -> tuple[str, str]:
    return "-sf", str(SCENARIOS / f"{name}.xml")


async def desk_of(played: tuple[str, str], way: str) -> tuple[asyncio.subprocess.Process, int]:
    """A peer that waits to be called or asked, and its port."""
    port = free_port(socket.SOCK_STREAM, socket.SOCK_DGRAM)
    process = await asyncio.create_subprocess_exec(
        "sipp", *played, "-i", "127.0.0.1", "-mi", "127.0.0.1", "-p", str(port), "-t", way, "-m", "1",
        "-nd", "-nostdin", "-timeout", "40", "-timeout_error",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    kind = socket.SOCK_DGRAM if way == "u1" else socket.SOCK_STREAM
    await until(lambda: is_open(kind, port) or process.returncode is not None, START_SECONDS)
    return process, port


async def finished(process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(45):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def closed(server: Server, count: int) -> None:
    await until(lambda: len(server.of(CallClosed)) >= count, 40.0, lambda: f"{server.events}")


async def test_a_hundred_calls_are_answered(server: Server) -> None:
    await sipp(server, "-sn", "uac", "-s", "agent", "-m", "100", "-r", "100", "-d", "100")
    await closed(server, 100)
    assert len(server.of(CallEnded)) == 100


async def test_calls_over_a_wire_that_loses_a_fifth_are_one_call_each(server: Server) -> None:
    await sipp(server, "-sn", "uac", "-s", "agent", "-m", "30", "-r", "60", "-d", "100", "-lost", "20")
    assert len(server.calls) == 30


async def test_a_ringing_call_is_cancelled(server: Server) -> None:
    await sipp(server, *scenario("cancel"), "-s", "ring", "-m", "5")
    await closed(server, 5)
    assert {event.cause for event in server.of(CallEnded)} == {EndCause.CANCELLED}


async def test_options_are_answered(server: Server) -> None:
    await sipp(server, *scenario("options"), "-s", "agent", "-m", "10")


async def test_hold_resume_with_another_codec_and_a_codec_we_do_not_have(server: Server) -> None:
    await sipp(server, *scenario("hold"), "-s", "agent", "-m", "1")


async def test_we_hang_up(server: Server) -> None:
    await sipp(server, *scenario("hung_up"), "-s", "leave", "-m", "5")
    await closed(server, 5)


async def test_a_transfer_succeeds_and_we_leave(server: Server) -> None:
    await sipp(server, *scenario("transferred"), "-s", "transfer", "-m", "1")
    await closed(server, 1)
    assert server.of(TransferProgressed)[-1].state is TransferState.SUCCEEDED


async def test_a_transfer_fails_and_the_call_goes_on_until_the_caller_leaves(server: Server) -> None:
    await sipp(server, *scenario("transfer_fails"), "-s", "transfer", "-m", "1")
    await closed(server, 1)
    outcome = server.of(TransferProgressed)[-1]
    assert (outcome.state, outcome.status) == (TransferState.FAILED, 486)
    assert server.of(CallEnded)[-1].cause is EndCause.REMOTE


@pytest.mark.parametrize("way", ["t1", "tn"])
async def test_calls_over_one_connection_and_over_one_each(way: str, server: Server) -> None:
    await sipp(
        server, "-sn", "uac", "-s", "agent", "-m", "100", "-r", "100", "-d", "100", "-t", way, "-max_socket", "300"
    )
    await closed(server, 100)
    assert len(server.of(CallEnded)) == 100


NAMES = (
    *("cancel", "hung_up", "transferred", "transfer_fails", "options", "reliable", "prack"),
    *("outside", "short_session", "within"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["u1", "t1"])
async def test_the_same_over_udp_and_tcp(name: str, way: str, server: Server) -> None:
    user = {"cancel": "ring", "hung_up": "leave", "transferred": "transfer", "transfer_fails": "transfer"}
    await sipp(server, *scenario(name), "-s", user.get(name, "agent"), "-m", "3", "-t", way)


@pytest.mark.parametrize("way", ["u1", "t1"])
async def test_a_trunk_proves_its_password(way: str) -> None:
    digest = DigestSettings("callagent", {"ann": Account("carrier", "secret")}, ["MD5"])
    async with serving(UserAgentSettings(admit=lambda host: UNPROVEN, digest=digest)) as served:
        await sipp(served, *scenario("digest"), "-s", "agent", "-m", "5", "-t", way)
        assert {call.trunk for call in served.calls} == {"carrier"}


async def test_at_the_limit_calls_are_sent_away_until_later() -> None:
    async with serving(UserAgentSettings(admit=lambda host: "local", busy=lambda: 7)) as served:
        await sipp(served, *scenario("full"), "-s", "agent", "-m", "5")
        assert not served.calls


class Caller:
    """Calls a desk that SIPp plays, and hangs up once it has answered."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = asyncio.Event()

    async def call(self, endpoint: Endpoint, target: str, credentials: Credentials | None, *, gives_up: bool) -> None:
        def offer(host: str) -> bytes:
            return Negotiation(host, 40000, 1, loopback=True).offer()

        call = await endpoint.call(target, body=offer, credentials=credentials)
        call.listen(lambda event: self._hear(call, event, gives_up))
        async with asyncio.timeout(60):
            await self.ended.wait()
            await call.closed.wait()

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def _hear(self, call: EndpointCall, event: Event, gives_up: bool) -> None:
        self.events.append(event)
        if isinstance(event, CallAnswered) or (gives_up and isinstance(event, CallRinging)):
            call.hang_up()
        elif isinstance(event, CallEnded):
            self.ended.set()


@pytest.mark.parametrize("way", ["u1", "t1"])
@pytest.mark.parametrize(
    ("name", "cause", "status"),
    [
        ("answers", EndCause.LOCAL, 200),
        ("busy", EndCause.REFUSED, 486),
        ("early_media", EndCause.LOCAL, 200),
        ("rings", EndCause.LOCAL, 487),
        ("moved", EndCause.LOCAL, 200),
        ("moved_away", EndCause.REFUSED, 302),
        ("asks_proof", EndCause.LOCAL, 200),
    ],
)
async def test_a_desk_that_we_call(name: str, cause: EndCause, status: int, way: str, server: Server) -> None:
    process, port = await desk_of(scenario(f"desk_{name}"), way)
    caller = Caller()
    credentials = Credentials("we", "secret", "carrier") if name == "asks_proof" else None
    target = f"sip:desk@127.0.0.1:{port};transport={'tcp' if way == 't1' else 'udp'}"
    await caller.call(server.endpoint, target, credentials, gives_up=name == "rings")
    await finished(process)
    (ended,) = caller.of(CallEnded)
    assert isinstance(ended, CallEnded)
    assert (ended.cause, ended.status) == (cause, status)
    if name == "early_media":
        assert next(event.body for event in caller.of(CallRinging) if isinstance(event, CallRinging))
