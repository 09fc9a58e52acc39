"""RFC 3263 against a name server on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
import pytest

from callagent.sip import Hop, Lookup, LookupFailed, Uri

RECORDS = {
    ("sip.example.com.", "NAPTR"): [
        '20 50 "s" "SIP+D2U" "" _sip._udp.example.com.',
        '10 50 "s" "SIP+D2T" "" _sip._tcp.example.com.',
        '5 50 "u" "E2U+sip" "!.*!sip:x@y!" .',
    ],
    ("_sip._tcp.example.com.", "SRV"): ["20 1 5070 b.example.com.", "10 1 5071 a.example.com."],
    ("_sip._udp.example.com.", "SRV"): ["10 1 5072 a.example.com."],
    ("_sip._udp.plain.example.com.", "SRV"): ["10 1 5080 a.example.com."],
    ("_sips._tcp.plain.example.com.", "SRV"): ["10 1 5081 a.example.com."],
    ("a.example.com.", "A"): ["192.0.2.10"],
    ("b.example.com.", "A"): ["192.0.2.20"],
}


class NameServer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.deaf:
            return
        query = dns.message.from_wire(data)
        question = query.question[0]
        key = (question.name.to_text(), dns.rdatatype.to_text(question.rdtype))
        self.asked.append(key)
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if key in RECORDS:
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", key[1], *RECORDS[key]))
        self._transport.sendto(response.to_wire(), addr)  # type: ignore[attr-defined]


@pytest.fixture
async def names() -> AsyncIterator[tuple[NameServer, Lookup]]:
    server = NameServer()
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", 0)
    )
    lookup = Lookup(socket.AF_INET, transport.get_extra_info("sockname"))
    # The machine's own resolver stays out of the test.
    lookup.addresses_of = _no_addresses  # type: ignore[method-assign]
    yield server, lookup
    transport.close()


async def _no_addresses(host: str, port: int) -> list[str]:
    return []


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sip:a@192.0.2.1", [("192.0.2.1", 5060, "udp")]),
        ("sip:a@192.0.2.1:5070;transport=TCP", [("192.0.2.1", 5070, "tcp")]),
        ("sips:a@[2001:db8::1]", [("2001:db8::1", 5061, "tls")]),
        ("sip:a@x.example.com;maddr=192.0.2.3", [("192.0.2.3", 5060, "udp")]),
        ("sip:a@a.example.com:5090", [("192.0.2.10", 5090, "udp")]),
        (
            "sip:a@sip.example.com",
            [("192.0.2.10", 5071, "tcp"), ("192.0.2.20", 5070, "tcp")],
        ),
        ("sip:a@plain.example.com", [("192.0.2.10", 5080, "udp")]),
        ("sips:a@plain.example.com", [("192.0.2.10", 5081, "tls")]),
        ("sip:a@b.example.com", [("192.0.2.20", 5060, "udp")]),
        ("sip:a@b.example.com;transport=tcp", [("192.0.2.20", 5060, "tcp")]),
    ],
)
async def test_a_uri_leads_to_its_servers_in_their_order(
    uri: str, expected: list[tuple[str, int, str]], names: tuple[NameServer, Lookup]
) -> None:
    hops = await names[1].hops(Uri.parse(uri))
    assert [(hop.host, hop.port, hop.transport) for hop in hops] == expected
    assert all(hop.name in ("", Uri.parse(uri).bare_host) for hop in hops)


async def test_answers_are_kept(names: tuple[NameServer, Lookup]) -> None:
    for _ in range(3):
        await names[1].hops(Uri.parse("sip:a@plain.example.com"))
    assert names[0].asked.count(("_sip._udp.plain.example.com.", "SRV")) == 1


async def test_a_name_that_nobody_knows_fails(names: tuple[NameServer, Lookup]) -> None:
    with pytest.raises(LookupFailed, match="no address"):
        await names[1].hops(Uri.parse("sip:a@unknown.example.com"))


async def test_a_name_server_that_does_not_answer_does_not_hold_us_up(names: tuple[NameServer, Lookup]) -> None:
    names[0].deaf = True
    async with asyncio.timeout(15):
        with pytest.raises(LookupFailed):
            await names[1].hops(Uri.parse("sip:a@sip.example.com"))


async def test_a_transport_that_we_do_not_speak_is_refused(names: tuple[NameServer, Lookup]) -> None:
    with pytest.raises(ValueError, match="UDP, TCP and TLS"):
        await names[1].hops(Uri.parse("sip:a@192.0.2.1;transport=ws"))


async def test_a_name_of_this_machine_needs_no_name_server() -> None:
    assert (await Lookup(socket.AF_INET).hops(Uri.parse("sip:a@localhost")))[0] == Hop(
        "127.0.0.1", 5060, name="localhost"
    )
