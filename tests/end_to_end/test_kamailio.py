"""Kamailio as the carrier's edge: we register at it, are called through it, call through it and hang up through it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from callagent.sip import (
    CallAnswered,
    CallEnded,
    Credentials,
    Endpoint,
    EndpointCall,
    Event,
    Negotiation,
    TlsSettings,
    Trunks,
    TrunkSettings,
    Uri,
    UserAgentSettings,
)
from tests.end_to_end.baresip import START_SECONDS, free_port, is_open
from tests.sip.test_connections import make_certificate

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("kamailio") is None, reason="kamailio is not installed"),
]
SETTINGS = UserAgentSettings(admit=lambda host: "local")
PATIENCE = 60.0


@dataclass
class Carrier:
    udp: int
    tls: int
    certificate: Path

    def server(self, transport: str) -> str:
        port = self.tls if transport == "tls" else self.udp
        return f"sip:127.0.0.1:{port};transport={transport}"


@pytest.fixture
def carrier(tmp_path: Path) -> Iterator[Carrier]:
    certificate, key = make_certificate(tmp_path, "carrier")
    udp, tls = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    (tmp_path / "tls.cfg").write_text(
        f"[server:default]\nmethod = TLSv1.2+\nprivate_key = {key}\ncertificate = {certificate}\n"
        "[client:default]\nmethod = TLSv1.2+\nverify_certificate = no\n"
    )
    text = (Path(__file__).parent / "kamailio.cfg").read_text()
    for name, value in (("UDP_PORT", udp), ("TLS_PORT", tls), ("FOLDER", tmp_path)):
        text = text.replace(name, str(value))
    (tmp_path / "kamailio.cfg").write_text(text)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["kamailio", "-f", str(tmp_path / "kamailio.cfg"), "-DD", "-E", "-m", "32", "-M", "4",
             "-Y", str(tmp_path), "-P", str(tmp_path / "pid")],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until_it_listens(tls, tmp_path / "log")
        yield Carrier(udp, tls, certificate)
    finally:
        stop(process)


def until_it_listens(port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_open(socket.SOCK_STREAM, port):
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Agent:
    """Takes every call."""

    def __init__(self) -> None:
        self.calls: list[EndpointCall] = []

    def __call__(self, call: EndpointCall) -> None:
        self.calls.append(call)
        call.ring()
        call.answer(Negotiation(call.local_host(), 40000, 1, loopback=True).answer(call.core.invite.body)[0])


async def endpoint(carrier: Carrier, transport: str, agent: Agent | None = None) -> Endpoint:
    key = carrier.certificate.with_suffix(".key")
    tls = TlsSettings(carrier.certificate, key, trusted=carrier.certificate)
    opened = await Endpoint.open("127.0.0.1", 0, SETTINGS, agent, tls=tls)
    if transport != "udp":
        await opened.listen(transport, "127.0.0.1", 0)
    return opened


async def registered(opened: Endpoint, carrier: Carrier, transport: str, password: str = "secret") -> Trunks:
    credentials = Credentials("agent", password, "carrier.test")
    server = Uri.parse(carrier.server(transport))
    trunks = Trunks(opened, [TrunkSettings("carrier", server, credentials, register=True, keep_alive=0.5)])
    trunks.start()
    async with asyncio.timeout(PATIENCE):
        while trunks.states["carrier"].reachable is None or not trunks.states["carrier"].registered:
            await asyncio.sleep(0.02)
            if password != "secret" and trunks.states["carrier"].reachable:
                break
    return trunks


async def until(events: list[Event], kind: type[Event]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not any(isinstance(event, kind) for event in events):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("transport", ["udp", "tcp", "tls"])
async def test_registered_called_through_the_proxy_and_hung_up_by_either_side(transport: str, carrier: Carrier) -> None:
    agent = Agent()
    ours, phone = await endpoint(carrier, transport, agent), await endpoint(carrier, "udp")
    trunks = await registered(ours, carrier, transport)
    assert trunks.admit("127.0.0.1") == "carrier"
    for who in ("phone", "agent"):
        events: list[Event] = []
        call = await phone.call(
            f"sip:agent@127.0.0.1:{carrier.udp}",
            body=lambda host: Negotiation(host, 40002, 1, loopback=True).offer(),
            credentials=Credentials("caller", "secret", "carrier.test"),
        )
        call.listen(events.append)
        await until(events, CallAnswered)
        answered = agent.calls[-1]
        async with asyncio.timeout(PATIENCE):
            while not answered.core.is_established:
                await asyncio.sleep(0.01)
        # The proxy is on the way twice where it changes the transport.
        assert len(answered.core.invite.headers.tokens("Record-Route")) == (1 if transport == "udp" else 2)
        (call if who == "phone" else answered).hang_up()
        async with asyncio.timeout(PATIENCE):
            await call.closed.wait()
            await answered.closed.wait()
    await trunks.close()
    await ours.close()
    await phone.close()


async def test_after_leaving_nobody_is_there(carrier: Carrier) -> None:
    ours, phone = await endpoint(carrier, "udp", Agent()), await endpoint(carrier, "udp")
    trunks = await registered(ours, carrier, "udp")
    await trunks.close()
    events: list[Event] = []
    call = await phone.call(
        f"sip:agent@127.0.0.1:{carrier.udp}",
        body=lambda host: Negotiation(host, 40002, 1, loopback=True).offer(),
        credentials=Credentials("caller", "secret", "carrier.test"),
    )
    call.listen(events.append)
    await until(events, CallEnded)
    (ended,) = [event for event in events if isinstance(event, CallEnded)]
    assert ended.status == 404
    await ours.close()
    await phone.close()


async def test_a_wrong_password_is_tried_once_and_the_trunk_stays_unregistered(carrier: Carrier) -> None:
    ours = await endpoint(carrier, "udp")
    trunks = await registered(ours, carrier, "udp", "wrong")
    assert trunks.states["carrier"].registered is False
    await trunks.close()
    await ours.close()
