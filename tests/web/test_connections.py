"""Slow and many connections: none is kept for ever, and none takes the place of another address."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from callagent.carriers.twilio.call_control import TwilioSettings
from callagent.sip import TlsSettings
from callagent.web import connections as connection
from tests.carriers.twilio.fake_twilio import ACCOUNT_SID, AUTH_TOKEN
from tests.web.dashboard_server import Served, serve_dashboard
from tests.web.entry import HEADERS, TOKEN
from tests.web.proxies import make_certificate

KEY = f"Authorization: Bearer {TOKEN}\r\n"
TWILIO = TwilioSettings(ACCOUNT_SID, AUTH_TOKEN, "https://phone.example.com", "http://127.0.0.1:9")


class Peer:
    """A connection that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, text: str) -> None:
        self.writer.write(text.encode())
        await self.writer.drain()

    async def answer(self) -> tuple[int, str]:
        """Of one request; a connection that was cut has status 0."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, ""
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head.split()[1]), (await self.reader.readexactly(length)).decode()

    async def is_cut(self) -> None:
        """Wait for it; the time is the test's own limit."""
        try:
            while await self.reader.read(4096):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        self.writer.close()


async def connect(served: Served, host: str = "127.0.0.1") -> Peer:
    port = int(served.url.rpartition(":")[2])
    return Peer(*await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connection, "BODY_SECONDS", 0.5)
    return


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same, but none that a busy machine would miss."""
    monkeypatch.setattr(connection, "HEADER_SECONDS", 2.0)
    monkeypatch.setattr(connection, "BODY_SECONDS", 2.0)
    return


HALF_SENT = {
    "nothing": "",
    "half a request line": "GET /hea",
    "half a header": "GET /health HTTP/1.1\r\nHost: x\r\nX-A: ",
    "half a body of a login": "POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    'Content-Length: 100\r\n\r\n{"name"',
    "half a body of a webhook": "POST /twilio/voice HTTP/1.1\r\nHost: x\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nCallSid=C",
    "half a body of an event": "POST /external-events HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhal",
    "half a chunked body": f"POST /api/calls HTTP/1.1\r\nHost: x\r\n{KEY}Content-Type: application/json\r\n"
    "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("sent", HALF_SENT.values(), ids=HALF_SENT.keys())
async def test_what_is_half_sent_is_cut(tmp_path: Path, sent: str) -> None:
    async with serve_dashboard(tmp_path, count=1, twilio=TWILIO) as served, asyncio.timeout(60):
        peer = await connect(served)
        await peer.send(sent)
        await peer.is_cut()
        peer.close()


@pytest.mark.usefixtures("short")
async def test_half_a_second_request_is_cut(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1) as served, asyncio.timeout(60):
        peer = await connect(served)
        await peer.send(f"GET /health HTTP/1.1\r\nHost: x\r\n{KEY}\r\n")
        assert (await peer.answer())[0] == 200
        await peer.send("GET /he")
        await peer.is_cut()
        peer.close()


@pytest.mark.usefixtures("short")
async def test_a_body_that_nobody_wants_is_not_waited_for(tmp_path: Path) -> None:
    """Refused at the header; aiohttp reads on for a moment, so that the answer arrives, then closes."""
    async with serve_dashboard(tmp_path, count=1) as served, asyncio.timeout(60):
        peer = await connect(served)
        await peer.send("POST /api/calls HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhal")
        assert (await peer.answer())[0] == 401
        await peer.is_cut()
        peer.close()


@pytest.mark.usefixtures("quick")
async def test_one_octet_now_and_then_gains_no_time(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1) as served, asyncio.timeout(60):
        peer = await connect(served)

        async def drip() -> None:
            await peer.send("GET /health HTTP/1.1\r\nHost: x\r\n")
            while True:
                await peer.send("X: 1\r\n")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        await peer.is_cut()
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        peer.close()


@pytest.mark.usefixtures("short")
async def test_a_connection_waits_idle_for_its_next_request(tmp_path: Path) -> None:
    """Longer than a header may take: proxies and browsers keep connections."""
    async with serve_dashboard(tmp_path, count=1) as served, asyncio.timeout(60):
        peer = await connect(served)
        for _ in range(2):
            await peer.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await peer.answer())[0] == 200
            await asyncio.sleep(2.5)
        peer.close()


async def test_an_idle_connection_is_closed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.web.entry.IDLE_SECONDS", 0.5)
    async with serve_dashboard(tmp_path, count=1) as served, asyncio.timeout(60):
        peer = await connect(served)
        await peer.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.answer())[0] == 200
        await peer.is_cut()
        peer.close()


@pytest.mark.usefixtures("short")
async def test_streams_and_sockets_outlive_every_deadline(tmp_path: Path) -> None:
    async with (
        serve_dashboard(tmp_path, count=1) as served,
        aiohttp.ClientSession(headers=HEADERS) as session,
        session.get(served.url + "/api/live/events") as stream,
        session.ws_connect(served.url + "/ws/google.cloud.ces.v1.SessionService/BidiRunSession/locations/us") as socket,
    ):
        await stream.content.readline()
        await asyncio.sleep(2.5)
        await socket.send_str("no session")
        assert "error" in await socket.receive_str()
        assert not stream.content.at_eof()


# Places ---------------------------------------------------------------------------------------------------------------


async def health(served: Served, host: str) -> int:
    peer = await connect(served, host)
    try:
        await peer.send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return (await peer.answer())[0]
    except ConnectionError:
        return 0
    finally:
        peer.close()


async def test_an_address_takes_only_its_own_places(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1, per_address=20) as served, asyncio.timeout(60):
        silent = [await connect(served) for _ in range(20)]
        assert await health(served, "127.0.0.1") == 0
        assert await health(served, "127.0.0.2") == 200
        silent[0].close()
        while await health(served, "127.0.0.1") != 200:
            await asyncio.sleep(0.02)
        for peer in silent[1:]:
            peer.close()


async def test_who_was_let_in_takes_no_place(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1, per_address=3) as served, asyncio.timeout(60):
        known = []
        for _ in range(10):
            known.append(peer := await connect(served))
            await peer.send(f"GET /api/me HTTP/1.1\r\nHost: x\r\n{KEY}\r\n")
            assert (await peer.answer())[0] == 200
        refused = await connect(served)
        await refused.send("GET /api/me HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await refused.answer())[0] == 401
        for peer in [*known, refused]:
            peer.close()


async def test_connections_of_our_proxies_are_not_counted(tmp_path: Path) -> None:
    from ipaddress import ip_network

    ways_in: dict[str, Any] = {"proxies": (ip_network("127.0.0.1/32"),)}
    async with serve_dashboard(tmp_path, count=1, per_address=2, ways_in=ways_in) as served, asyncio.timeout(60):
        peers = [await connect(served) for _ in range(10)]
        assert await health(served, "127.0.0.1") == 200
        for peer in peers:
            peer.close()


# TLS ------------------------------------------------------------------------------------------------------------------


def trust(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


async def serial_of(served: Served, context: ssl.SSLContext) -> str:
    port = int(served.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    serial = str(writer.get_extra_info("peercert")["serialNumber"])
    writer.close()
    return serial


async def test_https_with_a_certificate_that_is_read_again(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, serial=1)
    first = trust(certificate)
    async with serve_dashboard(tmp_path, count=1, tls=TlsSettings(certificate, key)) as served:
        async with aiohttp.ClientSession(headers=HEADERS) as session:
            async with session.get(served.url + "/api/me", ssl=first) as answer:
                assert (await answer.json())["name"] == "local"
            call_id = served.records[-1].id
            async with session.get(f"{served.url}/api/calls/{call_id}/recording", ssl=first) as answer:
                assert (answer.status, (await answer.read())[:4]) == (200, b"RIFF")
        assert await serial_of(served, first) == "01"
        make_certificate(tmp_path, serial=2)
        assert await serial_of(served, trust(certificate)) == "02"
        key.write_text("not a key")
        assert await serial_of(served, trust(certificate)) == "02"


async def test_who_shakes_no_hand_takes_a_place_and_loses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callagent.web.connections.HANDSHAKE_SECONDS", 0.5)
    tls = TlsSettings(*make_certificate(tmp_path))
    async with serve_dashboard(tmp_path, count=1, tls=tls, per_address=5) as served, asyncio.timeout(60):
        silent = [await connect(served) for _ in range(5)]
        for peer in silent:
            await peer.is_cut()
            peer.close()
        assert tls.certificate is not None
        assert await serial_of(served, trust(tls.certificate))
