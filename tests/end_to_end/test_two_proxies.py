"""Two Kamailio processes in a row between a phone and us, both on the way of every request (Record-Route)."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from callagent.sip import (
    CallAnswered,
    CallClosed,
    CallConfirmed,
    CallEnded,
    EndCause,
    Endpoint,
    EndpointCall,
    Event,
    Negotiation,
    OfferAnswered,
    OfferReceived,
    TransferProgressed,
    TransferRequested,
    TransferState,
    Uri,
    UserAgentSettings,
)
from tests.end_to_end.baresip import free_port
from tests.end_to_end.test_kamailio import _until_it_listens

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("kamailio") is None, reason="kamailio is not installed"),
]
SETTINGS = UserAgentSettings(admit=lambda host: "proxy", accepts_transfers=True)


@contextmanager
def relay(folder: Path, following: str) -> Iterator[int]:
    """The port of a proxy that sends what is new to `following`."""
    folder.mkdir()
    port = free_port(socket.SOCK_STREAM)
    text = (Path(__file__).parent / "kamailio_relay.cfg").read_text()
    (folder / "kamailio.cfg").write_text(text.replace("UDP_PORT", str(port)).replace("NEXT", following))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["kamailio", "-f", str(folder / "kamailio.cfg"), "-DD", "-E", "-m", "32", "-M", "4",
             "-Y", str(folder), "-P", str(folder / "pid")],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _until_it_listens(port, folder / "log")
        yield port
    finally:
        process.terminate()
        process.wait(10)


class Party:
    """One end: remembers what it hears, takes what it is asked."""

    def __init__(self) -> None:
        self.call: EndpointCall | None = None
        self.events: list[Event] = []

    def take(self, call: EndpointCall) -> None:
        """A call that came in."""
        self.follow(call)
        call.ring()
        call.answer(Negotiation(call.local_host(), 40000, 1, loopback=True).answer(call.core.invite.body)[0])

    def follow(self, call: EndpointCall) -> None:
        self.call = call
        call.listen(lambda event: self._hear(call, event))

    def _hear(self, call: EndpointCall, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, OfferReceived):
            call.accept_offer(Negotiation(call.local_host(), 40002, 1, loopback=True).answer(event.body)[0])
        elif isinstance(event, TransferRequested):
            call.report_transfer(200)

    async def until(self, kind: type[Event]) -> Event:
        async with asyncio.timeout(15):
            while not (found := [event for event in self.events if isinstance(event, kind)]):
                await asyncio.sleep(0.01)
        return found[-1]


@pytest.mark.parametrize("who", ["caller", "agent"])
@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_every_request_takes_both(transport: str, who: str, tmp_path: Path) -> None:
    agent, caller = Party(), Party()
    server = await Endpoint.open("127.0.0.1", 0, SETTINGS, agent.take)
    port = server.local_address[1] if transport == "udp" else (await server.listen("tcp", "127.0.0.1", 0))[1]
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    with (
        relay(tmp_path / "inner", f"sip:127.0.0.1:{port};transport={transport}") as inner,
        relay(tmp_path / "outer", f"sip:127.0.0.1:{inner};transport={transport}") as outer,
    ):

        def offer(host: str) -> bytes:
            return Negotiation(host, 40004, 1, loopback=True).offer()

        caller.follow(
            await phone.call("sip:agent@callagent.test", body=offer, proxy=Uri.parse(f"sip:127.0.0.1:{outer}"))
        )
        await caller.until(CallAnswered)
        await agent.until(CallConfirmed)
        assert agent.call is not None
        assert caller.call is not None
        dialog = agent.call.core.dialog
        assert dialog is not None
        # Kamailio writes two entries where the transport changes.
        assert {inner, outer} <= {route.uri.port for route in dialog.route_set}
        caller.call.reoffer(Negotiation("127.0.0.1", 40004, 1, loopback=True).offer())
        await caller.until(OfferAnswered)
        agent.call.refer(Uri.parse("sip:desk@127.0.0.1:9"))
        outcome = await agent.until(TransferProgressed)
        while isinstance(outcome, TransferProgressed) and not outcome.state.is_final:
            await asyncio.sleep(0.01)
            outcome = await agent.until(TransferProgressed)
        assert isinstance(outcome, TransferProgressed)
        assert outcome.state is TransferState.SUCCEEDED
        leaving, left = (caller, agent) if who == "caller" else (agent, caller)
        assert leaving.call is not None
        leaving.call.hang_up()
        ended = await left.until(CallEnded)
        assert isinstance(ended, CallEnded)
        assert ended.cause is EndCause.REMOTE
        await leaving.until(CallClosed)
    await phone.close()
    await server.close()
