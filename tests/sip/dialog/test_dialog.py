"""Dialogs: route sets of both roles, strict routers, next hops, CSeq."""

from __future__ import annotations

import pytest

from callagent.sip import Address, Headers, Hop, Request, Response, Uri
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.message import hop_of

PEER = Hop("192.0.2.50", 5070)
CONTACT = Address.parse("<sip:agent@192.0.2.2:5060>")


def invite(*record_route: str, contact: str = "<sip:phone@192.0.2.1:5062>") -> Request:
    headers = Headers([("From", "<sip:a@example.com>;tag=a"), ("To", "<sip:b@example.com>"), ("Call-ID", "x")])
    headers.add("CSeq", "4 INVITE")
    headers.add("Contact", contact)
    for route in record_route:
        headers.add("Record-Route", route)
    return Request(headers, b"", "INVITE", Uri.parse("sip:b@example.com"))


def server(*record_route: str, contact: str = "<sip:phone@192.0.2.1:5062>") -> Dialog:
    return Dialog.of_server(invite(*record_route, contact=contact), "ours", PEER, CONTACT)


def test_a_server_takes_the_route_in_the_order_it_came() -> None:
    dialog = server("<sip:192.0.2.9;lr>, <sip:192.0.2.8;lr>")
    request = dialog.request("BYE")
    assert request.headers.values("Route") == ["<sip:192.0.2.9;lr>", "<sip:192.0.2.8;lr>"]
    assert str(request.uri) == "sip:phone@192.0.2.1:5062"
    assert dialog.next_hop() == Hop("192.0.2.9", 5060)


def test_a_client_takes_the_route_backwards() -> None:
    response = Response(Headers(invite("<sip:192.0.2.9;lr>", "<sip:192.0.2.8;lr>").headers), status=200)
    response.headers.set("To", "<sip:b@example.com>;tag=theirs")
    dialog = Dialog.of_client(invite(), response, PEER, CONTACT)
    assert dialog.key == ("x", "a", "theirs")
    assert [str(route) for route in dialog.route_set] == ["<sip:192.0.2.8;lr>", "<sip:192.0.2.9;lr>"]
    assert dialog.next_hop() == Hop("192.0.2.8", 5060)
    assert str(dialog.request("ACK", 4).cseq) == "4 ACK"
    assert str(dialog.request("BYE").cseq) == "5 BYE"


def test_a_strict_router_is_the_request_uri_and_the_target_the_last_route() -> None:
    dialog = server("<sip:192.0.2.9>, <sip:192.0.2.8;lr>")
    request = dialog.request("BYE")
    assert str(request.uri) == "sip:192.0.2.9"
    assert request.headers.values("Route") == ["<sip:192.0.2.8;lr>", "<sip:phone@192.0.2.1:5062>"]
    assert dialog.next_hop() == Hop("192.0.2.9", 5060)


def test_without_a_route_requests_go_to_the_contact_or_where_the_peer_sent_from() -> None:
    assert server().next_hop() == Hop("192.0.2.1", 5062)
    assert server(contact="<sip:phone@pbx.example.com>").next_hop() == PEER
    assert server("<sip:proxy.example.com;lr>").next_hop() == PEER
    assert server(contact="<sip:phone@192.0.2.1;transport=tcp>").next_hop() == PEER


def test_the_contact_moves_with_a_target_refresh() -> None:
    dialog = server()
    dialog.refresh_target(invite(contact="<sip:moved@192.0.2.77>"))
    assert dialog.next_hop().host == "192.0.2.77"
    dialog.refresh_target(Request())
    assert dialog.next_hop().host == "192.0.2.77"


def test_older_requests_are_out_of_order() -> None:
    dialog = server()
    numbers = [5, 9, 8, 9, 10]
    results = []
    for number in numbers:
        request = invite()
        request.headers.set("CSeq", f"{number} INVITE")
        results.append(dialog.is_in_order(request))
    assert results == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("uri", "hop"),
    [
        ("sip:a@192.0.2.1", Hop("192.0.2.1", 5060)),
        ("sip:a@[2001:db8::1]:5070", Hop("2001:db8::1", 5070)),
        ("sip:a@example.com;maddr=192.0.2.3;transport=TCP", Hop("192.0.2.3", 5060, "tcp")),
        ("sip:a@example.com", None),
        ("tel:+15550100", None),
    ],
)
def test_only_addresses_are_hops(uri: str, hop: Hop | None) -> None:
    assert hop_of(Uri.parse(uri)) == hop


def test_a_name_is_followed_once_it_was_found() -> None:
    dialog = server(contact="<sip:desk@pbx.example.com>")
    uri = dialog.unresolved_uri()
    assert uri == dialog.remote_target
    assert dialog.next_hop() == dialog.peer
    assert uri is not None
    dialog.resolved[uri] = Hop("198.51.100.7", 5080)
    assert dialog.next_hop() == Hop("198.51.100.7", 5080)
    assert dialog.unresolved_uri() is None
