"""TCP and TLS on loopback: framing, reuse, keep-alive, limits, certificates."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callagent.sip import (
    CallAnswered,
    CallEnded,
    Endpoint,
    EndpointCall,
    Event,
    Negotiation,
    StreamLimits,
    TlsSettings,
    UserAgentSettings,
)

PATIENCE = 60.0
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


def options(branch: str, body: bytes = b"") -> bytes:
    return (
        f"OPTIONS sip:agent@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/TCP 127.0.0.1:5099;branch=z9hG4bK{branch}\r\n"
        f"From: <sip:a@127.0.0.1>;tag=1\r\nTo: <sip:agent@127.0.0.1>\r\nCall-ID: {branch}\r\nCSeq: 1 OPTIONS\r\n"
        f"Max-Forwards: 70\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


@pytest.fixture
async def server() -> AsyncIterator[tuple[Endpoint, int, Answering]]:
    answering = Answering()
    limits = StreamLimits(message=0.5)
    endpoint = await Endpoint.open("127.0.0.1", 0, SETTINGS, answering, limits=limits)
    _, port = await endpoint.listen("tcp", "127.0.0.1", 0)
    yield endpoint, port, answering
    await endpoint.close()


async def read_response(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Status line and Call-ID."""
    async with asyncio.timeout(PATIENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = head.lstrip("\r\n").split("\r\n")
    return lines[0], next(line[9:] for line in lines if line.startswith("Call-ID: "))


async def test_messages_that_are_split_and_glued_are_answered_in_their_order(
    server: tuple[Endpoint, int, Answering],
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server[1])
    stream = options("a", b"four") + b"\r\n\r\n" + options("b") + options("c")
    for at in range(0, len(stream), 97):
        writer.write(stream[at : at + 97])
        await asyncio.sleep(0)
    heard = []
    while len(heard) < 3:
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
        if head.strip():
            heard.append(head.decode().partition("Call-ID: ")[2][0])
    assert heard == ["a", "b", "c"]
    writer.close()


async def test_a_keep_alive_is_answered(server: tuple[Endpoint, int, Answering]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server[1])
    writer.write(b"\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        assert await reader.readexactly(2) == b"\r\n"
    writer.close()


@pytest.mark.parametrize(
    "broken",
    [
        options("x").replace(b"Content-Length: 0", b"Content-Length: -1"),
        options("x").replace(b"Content-Length: 0", b"Content-Length: 99999999"),
        options("x").replace(b"Content-Length: 0", b"Content-Type: a/b"),
        options("x").replace(b"Content-Length: 0", b"Content-Length: 0\r\nl: 0"),
    ],
)
async def test_a_message_whose_end_nobody_knows_is_refused_and_ends_the_connection(
    broken: bytes, server: tuple[Endpoint, int, Answering]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server[1])
    writer.write(broken + options("after"))
    async with asyncio.timeout(PATIENCE):
        heard = await reader.read()
    assert heard.startswith(b"SIP/2.0 400 ")
    assert heard.count(b"SIP/2.0 400 ") + heard.count(b"SIP/2.0 200 ") == 1
    writer.close()


async def test_connections_that_say_nothing_or_half_a_message_are_closed(
    server: tuple[Endpoint, int, Answering],
) -> None:
    silent = await asyncio.open_connection("127.0.0.1", server[1])
    half = await asyncio.open_connection("127.0.0.1", server[1])
    half[1].write(options("h")[:50])
    for reader, writer in (silent, half):
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()


async def test_strangers_are_not_even_listened_to() -> None:
    endpoint = await Endpoint.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: None))
    _, port = await endpoint.listen("tcp", "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b""
    writer.close()
    await endpoint.close()


async def call_and_hang_up(phone: Endpoint, target: str) -> list[Event]:
    events: list[Event] = []
    call = await phone.call(target, body=offer)
    call.listen(events.append)
    async with asyncio.timeout(PATIENCE):
        while not events:
            await asyncio.sleep(0.01)
        if isinstance(events[0], CallAnswered):
            call.hang_up()
        await call.closed.wait()
    return events


async def test_calls_over_tcp_share_one_connection_and_the_callee_hangs_up_over_it(
    server: tuple[Endpoint, int, Answering],
) -> None:
    endpoint, port, answering = server
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    for _ in range(3):
        assert isinstance((await call_and_hang_up(phone, f"sip:a@127.0.0.1:{port};transport=tcp"))[0], CallAnswered)
    assert len(phone._connections) == len(endpoint._connections) == 1
    call = await phone.call(f"sip:a@127.0.0.1:{port};transport=tcp", body=offer)
    events: list[Event] = []
    call.listen(events.append)
    async with asyncio.timeout(PATIENCE):
        while not any(isinstance(event, CallAnswered) for event in events):
            await asyncio.sleep(0.01)
        while not answering.calls[-1].core.is_established:
            await asyncio.sleep(0.01)
        answering.calls[-1].hang_up()
        await call.closed.wait()
    assert len(endpoint._connections) == 1
    await phone.close()


async def test_where_nobody_listens_the_call_ends_at_once() -> None:
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    events = await call_and_hang_up(phone, "sip:a@127.0.0.1:9;transport=tcp")
    assert isinstance(events[0], CallEnded)
    await phone.close()


# TLS


def make_certificate(folder: Path, name: str, serial: int = 1) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}",
         "-set_serial", str(serial), "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


async def tls_server(tls: TlsSettings) -> tuple[Endpoint, int]:
    endpoint = await Endpoint.open("127.0.0.1", 0, SETTINGS, Answering(), tls=tls)
    return endpoint, (await endpoint.listen("tls", "127.0.0.1", 0))[1]


async def test_a_call_over_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    ours, theirs = make_certificate(tmp_path, "server"), make_certificate(tmp_path, "phone")
    endpoint, port = await tls_server(TlsSettings(*ours, clients=theirs[0]))
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS, tls=TlsSettings(*theirs, trusted=ours[0]))
    assert isinstance((await call_and_hang_up(phone, f"sips:a@127.0.0.1:{port}"))[0], CallAnswered)
    assert isinstance((await call_and_hang_up(phone, f"sip:a@127.0.0.1:{port};transport=tls"))[0], CallAnswered)
    bare = await Endpoint.open("127.0.0.1", 0, SETTINGS, tls=TlsSettings(trusted=ours[0]))
    assert isinstance((await call_and_hang_up(bare, f"sips:a@127.0.0.1:{port}"))[-2], CallEnded)
    for one in (phone, bare, endpoint):
        await one.close()


async def test_a_server_that_nobody_vouches_for_is_not_spoken_to(tmp_path: Path) -> None:
    endpoint, port = await tls_server(TlsSettings(*make_certificate(tmp_path, "server")))
    other = make_certificate(tmp_path, "other")
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS, tls=TlsSettings(trusted=other[0]))
    assert isinstance((await call_and_hang_up(phone, f"sips:a@127.0.0.1:{port}"))[0], CallEnded)
    await phone.close()
    await endpoint.close()


async def test_a_new_certificate_is_shown_without_a_restart_and_a_broken_one_is_not(tmp_path: Path) -> None:
    tls = TlsSettings(*make_certificate(tmp_path, "server", serial=1))
    endpoint, port = await tls_server(tls)

    async def serial() -> str:
        context = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return str(shown)

    assert await serial() == "01"
    make_certificate(tmp_path, "server", serial=2)
    assert await serial() == "02"
    assert tls.key is not None
    tls.key.write_text("not a key")
    assert await serial() == "02"
    await endpoint.close()


async def test_old_tls_is_refused(tmp_path: Path) -> None:
    endpoint, port = await tls_server(TlsSettings(*make_certificate(tmp_path, "server")))
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_1",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE):
        output, _ = await process.communicate()
    assert b"BEGIN CERTIFICATE" not in output
    await endpoint.close()


async def test_hundreds_of_idle_connections_do_not_keep_calls_out_and_are_closed(
    server: tuple[Endpoint, int, Answering],
) -> None:
    endpoint, port, _ = server
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
    phone = await Endpoint.open("127.0.0.1", 0, SETTINGS)
    for target in (f"sip:a@127.0.0.1:{endpoint.local_address[1]}", f"sip:a@127.0.0.1:{port};transport=tcp"):
        assert isinstance((await call_and_hang_up(phone, target))[0], CallAnswered)
    await phone.close()
    async with asyncio.timeout(PATIENCE):
        for reader, writer in idle:
            assert await reader.read() == b""
            writer.close()
        while len(endpoint._connections):
            await asyncio.sleep(0.01)


async def test_a_peer_that_never_reads_is_cut_off(server: tuple[Endpoint, int, Answering]) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server[1])
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    number = 0
    async with asyncio.timeout(PATIENCE):
        while not writer.transport.is_closing() and len(server[0]._connections):
            writer.write(b"".join(options(f"flood{number + step}") for step in range(200)))
            number += 200
            await asyncio.sleep(0)
            if writer.transport.get_write_buffer_size() > 4_000_000:
                await asyncio.sleep(0.05)
            if number > 40_000:
                break
    assert not len(server[0]._connections)
    writer.transport.abort()
