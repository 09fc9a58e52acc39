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
    TlsSettings,
    TransferProgressed,
    TransferRequested,
    TransferState,
    Uri,
    UserAgentSettings,
)
from tests.end_to_end.baresip import free_port
from tests.end_to_end.test_kamailio import PATIENCE, stop, until_it_listens
from tests.sip.test_connections import make_certificate

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("kamailio") is None, reason="kamailio is not installed"),
]
SETTINGS = UserAgentSettings(admit=lambda host: "proxy", accepts_transfers=True)


@contextmanager
def relay(folder: Path, following: str, tls: TlsSettings | None = None) -> Iterator[int]:
    """The port of a proxy that sends what is new to `following`; with `tls` it speaks nothing else."""
    folder.mkdir()
    port = free_port(socket.SOCK_STREAM)
    text = (Path(__file__).parent / "kamailio_relay.cfg").read_text()
    for name, value in (("PORT", str(port)), ("NEXT", following), ("FOLDER", str(folder))):
        text = text.replace(name, value)
    (folder / "kamailio.cfg").write_text(text)
    if tls is not None:
        (folder / "tls.cfg").write_text(
            f"[server:default]\nmethod = TLSv1.2+\nprivate_key = {tls.key}\ncertificate = {tls.certificate}\n"
            f"[client:default]\nmethod = TLSv1.2+\nverify_certificate = yes\nca_list = {tls.trusted}\n"
        )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["kamailio", "-f", str(folder / "kamailio.cfg"), "-DD", "-E", "-m", "32", "-M", "4",
             "-Y", str(folder), "-P", str(folder / "pid"),
             *([] if tls is None else ["-A", "WITH_TLS"])],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until_it_listens(port, folder / "log")
        yield port
    finally:
        stop(process)


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
        async with asyncio.timeout(PATIENCE):
            while not (found := [event for event in self.events if isinstance(event, kind)]):
                await asyncio.sleep(0.01)
        return found[-1]


@pytest.mark.parametrize("who", ["caller", "agent"])
@pytest.mark.parametrize("transport", ["udp", "tcp", "tls"])
async def test_every_request_takes_both(transport: str, who: str, tmp_path: Path) -> None:
    agent, caller = Party(), Party()
    certificate, key = make_certificate(tmp_path, "everybody")
    tls = TlsSettings(certificate, key, trusted=certificate) if transport == "tls" else None
    server = await Endpoint.open("127.0.0.1", 0, SETTINGS, agent.take, tls=tls)
    port = server.local_address[1] if transport == "udp" else (await server.listen(transport, "127.0.0.1", 0))[1]
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS, tls=tls)
    if tls is not None:
        await phone.listen("tls", "127.0.0.1", 0)
    with (
        relay(tmp_path / "inner", f"sip:127.0.0.1:{port};transport={transport}", tls) as inner,
        relay(tmp_path / "outer", f"sip:127.0.0.1:{inner};transport={transport}", tls) as outer,
    ):

        def offer(host: str) -> bytes:
            return Negotiation(host, 40004, 1, loopback=True).offer()

        proxy = Uri.parse(f"sip:127.0.0.1:{outer}" + (";transport=tls" if tls else ""))
        caller.follow(await phone.call("sip:agent@callagent.test", body=offer, proxy=proxy))
        await caller.until(CallAnswered)
        await agent.until(CallConfirmed)
        assert agent.call is not None
        assert caller.call is not None
        dialog = agent.call.core.dialog
        assert dialog is not None
        assert dialog.peer.transport == transport
        # Kamailio writes two entries where the transport changes.
        assert {inner, outer} <= {route.uri.port for route in dialog.route_set}
        caller.call.reoffer(Negotiation("127.0.0.1", 40004, 1, loopback=True).offer())
        await caller.until(OfferAnswered)
        agent.call.refer(Uri.parse("sip:desk@127.0.0.1:9"))
        async with asyncio.timeout(PATIENCE):
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
