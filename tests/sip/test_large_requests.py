"""Requests of more than 1,300 bytes go by TCP, and by UDP where the peer has no TCP (RFC 3261 §18.1.1)."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callagent.sip import (
    Address,
    CallAnswered,
    CallEnded,
    Endpoint,
    EndpointCall,
    Event,
    Hop,
    Negotiation,
    Request,
    StreamLimits,
    TransferProgressed,
    Uri,
    UserAgent,
    UserAgentSettings,
    parse_message,
)
from callagent.sip.dialog.call import SipCall
from callagent.sip.message.message import respond_to
from callagent.sip.transaction_layer import TCP_MEMORY_SECONDS
from tests.end_to_end.baresip import free_port
from tests.sip.pair import PHONE, SERVER

LARGE = {"X-Context": "c" * 1300}
SETTINGS = UserAgentSettings(admit=lambda host: "local", accepts_transfers=True)
UDP, TCP = Hop(*SERVER), Hop(*SERVER, "tcp", tentative=True)


class Core:
    """A user agent that calls, and what it sends."""

    def __init__(self) -> None:
        self.agent = UserAgent(SETTINGS, lambda hop: (PHONE[0], 5070 if hop.transport == "tcp" else PHONE[1]))
        self.now = 0.0

    def call(self, headers: dict[str, str] | None = None, hop: Hop = UDP) -> SipCall:
        caller = Address.parse("<sip:ann@192.0.2.1>")
        target = Uri.parse("sip:agent@192.0.2.2")
        return self.agent.call(target, hop, self.now, caller=caller, body=b"", headers=headers or LARGE)

    def sent(self) -> list[tuple[Request, Hop]]:
        messages = [(parse_message(data), hop) for data, hop in self.agent.messages_to_send()]
        return [(message, hop) for message, hop in messages if isinstance(message, Request)]

    def answer(self, request: Request, status: int, contact: str = "<sip:agent@192.0.2.2>") -> None:
        response = respond_to(request, status, tag="far", headers=[("Contact", contact)])
        self.agent.receive_message(bytes(response), UDP, self.now)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (when := self.agent.next_timer()) is not None and when <= end:
            self.now = when
            self.agent.handle_timer(when)
        self.now = end


def test_a_large_invite_goes_by_tcp_and_says_so_in_its_via() -> None:
    core = Core()
    core.call()
    ((invite, hop),) = core.sent()
    assert hop == TCP
    assert (invite.via.transport, invite.via.port) == ("TCP", 5070)
    # Where the peer sends its own requests has not changed.
    assert str(invite.contacts[0].uri) == "sip:ann@192.0.2.1:5060"
    core.pass_time(4.9)
    assert not core.sent()


def test_a_connection_that_carries_no_answer_gives_way_to_udp() -> None:
    core = Core()
    core.call()
    core.sent()
    core.pass_time(5.1)
    assert [(invite.via.transport, hop) for invite, hop in core.sent()] == [("UDP", UDP)]


def test_a_small_invite_goes_by_udp() -> None:
    core = Core()
    core.call({"X-Context": "c" * 100})
    ((invite, hop),) = core.sent()
    assert (hop, invite.via.transport) == (UDP, "UDP")


def test_without_tcp_a_large_invite_goes_by_udp_and_is_repeated_there() -> None:
    core = Core()
    core.call()
    ((first, _),) = core.sent()
    core.agent.fail_connection(TCP, core.now)
    ((invite, hop),) = core.sent()
    assert (hop, invite.via.transport, invite.via.port) == (UDP, "UDP", 5060)
    assert invite.via.branch == first.via.branch
    core.pass_time(1.6)
    assert [(repeated.via.transport, hop.transport) for repeated, hop in core.sent()] == [("UDP", "udp")] * 2


def test_a_peer_without_tcp_is_remembered_for_a_while() -> None:
    core = Core()
    core.call()
    core.agent.fail_connection(TCP, core.now)
    core.sent()
    core.call()
    assert [hop.transport for _, hop in core.sent()] == ["udp"]
    core.pass_time(TCP_MEMORY_SECONDS + 1.0)
    core.sent()
    core.call()
    assert [hop.transport for _, hop in core.sent()] == ["tcp"]


def test_a_connection_that_ends_after_an_answer_is_no_reason_to_send_again() -> None:
    core = Core()
    core.call()
    ((invite, _),) = core.sent()
    core.answer(invite, 100)
    core.agent.fail_connection(TCP, core.now)
    core.pass_time(10.0)
    assert not core.sent()


@pytest.mark.parametrize(("refused", "transport"), [(False, "tcp"), (True, "udp")])
def test_a_cancel_goes_where_its_invite_went(refused: bool, transport: str) -> None:
    core = Core()
    call = core.call()
    if refused:
        core.agent.fail_connection(TCP, core.now)
    (invite, _) = core.sent()[-1]
    core.answer(invite, 180)
    call.hang_up(core.now)
    ((cancel, hop),) = core.sent()
    assert (cancel.method, hop.transport) == ("CANCEL", transport)
    assert str(cancel.via) == str(invite.via)


@pytest.mark.parametrize(
    ("contact", "transport"), [("<sip:agent@192.0.2.2>", "udp"), ("<sip:agent@192.0.2.2;transport=tcp>", "tcp")]
)
def test_small_requests_of_the_call_go_as_the_contact_says(contact: str, transport: str) -> None:
    core = Core()
    call = core.call()
    ((invite, _),) = core.sent()
    core.answer(invite, 200, contact)
    call.hang_up(core.now)
    assert [(request.method, hop.transport) for request, hop in core.sent()] == [("ACK", transport), ("BYE", transport)]


def test_a_large_request_within_a_call_goes_by_tcp_too_and_falls_back() -> None:
    core = Core()
    call = core.call({"X-Context": "small"})
    ((invite, _),) = core.sent()
    core.answer(invite, 200)
    core.sent()
    call.refer(Uri.parse("sip:desk@192.0.2.9"), core.now, LARGE)
    ((refer, hop),) = core.sent()
    assert (refer.method, hop, refer.via.transport) == ("REFER", TCP, "TCP")
    core.agent.fail_connection(TCP, core.now)
    ((refer, hop),) = core.sent()
    assert (refer.method, hop, refer.via.transport) == ("REFER", UDP, "UDP")


def test_a_large_ack_goes_by_tcp_where_the_peer_has_shown_that_it_has_it() -> None:
    core = Core()
    core.call()
    ((invite, _),) = core.sent()
    response = respond_to(invite, 200, tag="far", headers=[("Contact", "<sip:agent@192.0.2.2>")])
    response.headers.add("Record-Route", f"<sip:192.0.2.2;lr;x={'r' * 1300}>")
    core.agent.receive_message(bytes(response), TCP, core.now)
    ((ack, hop),) = core.sent()
    assert (ack.method, hop.transport, ack.via.transport) == ("ACK", "tcp", "TCP")


# On sockets


class Peer:
    """A callee on UDP that answers every call; on TCP at the same port as well, if the test listens there."""

    def __init__(self) -> None:
        self.calls: list[EndpointCall] = []
        self.endpoint: Endpoint

    def take(self, call: EndpointCall) -> None:
        self.calls.append(call)
        call.answer(Negotiation("127.0.0.1", 40000, 1, loopback=True).answer(call.core.invite.body)[0])


@asynccontextmanager
async def pair(port: int = 0) -> AsyncIterator[tuple[Endpoint, Peer]]:
    """A phone and a peer, which listens on UDP `port`."""
    peer = Peer()
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS, limits=StreamLimits(trial=0.3))
    peer.endpoint = await Endpoint.open("127.0.0.1", port, SETTINGS, peer.take)
    try:
        yield phone, peer
    finally:
        await phone.close()
        await peer.endpoint.close()


def offer(host: str) -> bytes:
    return Negotiation(host, 40002, 1, loopback=True).offer()


async def until(events: asyncio.Queue[Event], wanted: Callable[[Event], bool]) -> Event:
    async with asyncio.timeout(60):
        while not wanted(event := await events.get()):
            assert not isinstance(event, CallEnded), event
    return event


async def answered(phone: Endpoint, target: str) -> tuple[EndpointCall, asyncio.Queue[Event]]:
    call = await phone.call(target, body=offer, headers=LARGE)
    events: asyncio.Queue[Event] = asyncio.Queue()
    call.listen(events.put_nowait)
    await until(events, lambda event: isinstance(event, CallAnswered))
    return call, events


async def test_calls_and_transfers_reach_a_peer_with_tcp_by_tcp() -> None:
    async with pair(free_port(socket.SOCK_DGRAM, socket.SOCK_STREAM)) as (phone, peer):
        host, port = peer.endpoint.local_address
        await peer.endpoint.listen("tcp", host, port)
        call, events = await answered(phone, f"sip:agent@{host}:{port}")
        assert peer.calls[0].core.invite.via.transport == "TCP"
        call.refer(Uri.parse("sip:desk@127.0.0.1"), LARGE)
        await until(events, lambda event: isinstance(event, TransferProgressed))
        call.hang_up()
        await call.closed.wait()


async def test_calls_reach_a_peer_whose_tcp_port_is_closed_by_udp() -> None:
    async with pair() as (phone, peer):
        host, port = peer.endpoint.local_address
        call, _ = await answered(phone, f"sip:agent@{host}:{port}")
        assert peer.calls[0].core.invite.via.transport == "UDP"
        call.hang_up()
        await call.closed.wait()


async def test_calls_reach_a_peer_whose_tcp_port_drops_everything_by_udp_soon() -> None:
    async with pair(free_port(socket.SOCK_DGRAM, socket.SOCK_STREAM)) as (phone, peer):
        host, port = peer.endpoint.local_address
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as deaf:
            deaf.bind((host, port))
            deaf.listen(0)
            # Who fills the backlog leaves all later connections without an answer.
            waiting = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(4)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex((host, port))
            call, _ = await answered(phone, f"sip:agent@{host}:{port}")
            assert peer.calls[0].core.invite.via.transport == "UDP"
            call.hang_up()
            await call.closed.wait()
            for one in waiting:
                one.close()


@pytest.mark.end_to_end
@pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed")
@pytest.mark.parametrize(("mode", "transport"), [("t1", "TCP"), ("u1", "UDP")])
async def test_sipp_takes_a_large_call_by_what_it_listens_on(tmp_path: Path, mode: str, transport: str) -> None:
    port = free_port(socket.SOCK_DGRAM, socket.SOCK_STREAM)
    command = ("sipp", "-sn", "uas", "-i", "127.0.0.1", "-p", str(port), "-t", mode, "-m", "1", "-trace_msg")
    sipp = await asyncio.create_subprocess_exec(
        *command, "-message_file", str(tmp_path / "messages"), cwd=tmp_path,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    try:
        async with asyncio.timeout(60):
            while not _is_bound(port, mode):
                await asyncio.sleep(0.05)
            call, _ = await answered(phone, f"sip:agent@127.0.0.1:{port}")
            call.hang_up()
            await call.closed.wait()
            assert await sipp.wait() == 0
    finally:
        if sipp.returncode is None:
            sipp.kill()
            await sipp.wait()
        await phone.close()
    assert f"Via: SIP/2.0/{transport} " in (tmp_path / "messages").read_text()


def _is_bound(port: int, mode: str) -> bool:
    """Whether somebody listens there, without disturbing who does."""
    table = "/proc/net/tcp" if mode == "t1" else "/proc/net/udp"
    return f":{port:04X} " in Path(table).read_text()
