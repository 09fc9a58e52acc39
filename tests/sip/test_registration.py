"""Registrations: what goes out and when the next is due."""

from __future__ import annotations

import pytest

from callagent.sip import Address, Headers, Response, Uri
from callagent.sip.endpoint import _first_uri
from callagent.sip.trunks import Registration

SERVER = Uri.parse("sip:edge.example.com:5070;transport=tcp")


def registration() -> Registration:
    return Registration(SERVER, "agent")


def heard(one: Registration, status: int, *headers: tuple[str, str]) -> float:
    return one.receive(one.request(), Response(Headers(headers), status=status))


def test_requests_count_and_support_path() -> None:
    one = registration()
    first, second = one.request(), one.request(unregister=True)
    assert str(first.uri) == "sip:edge.example.com:5070;transport=tcp"
    assert (first.cseq.number, second.cseq.number) == (1, 2)
    assert first.call_id == second.call_id
    assert (first.headers.get("Expires"), second.headers.get("Expires")) == ("3600", "0")
    assert first.headers.get("Supported") == "path"


def test_it_is_refreshed_before_it_ends_and_failures_wait_longer_each_time() -> None:
    one = registration()
    assert heard(one, 200, ("Expires", "100")) == 90.0
    assert one.registered
    assert 15 <= one.receive(one.request(), None) <= 30
    assert not one.registered
    assert 30 <= heard(one, 403) <= 60
    for _ in range(10):
        longest = heard(one, 503)
    assert 300 <= longest <= 600


def test_a_registrar_that_wants_longer_ones_is_asked_again_at_once_and_but_once() -> None:
    one = registration()
    assert heard(one, 423, ("Min-Expires", "7200")) == 0.0
    assert one.request().headers.get("Expires") == "7200"
    assert heard(one, 423, ("Min-Expires", "7200")) > 0


def test_the_service_route_lasts_as_long_as_the_registration() -> None:
    one = registration()
    heard(
        one,
        200,
        ("Service-Route", "<sip:a.example.com;lr>, <sip:b.example.com;lr;x=1>"),
        ("Service-Route", "<sips:c;lr>"),
    )
    assert [str(each) for each in one.service_route] == [
        "<sip:a.example.com;lr>",
        "<sip:b.example.com;lr;x=1>",
        "<sips:c;lr>",
    ]
    # The latest 200 counts, also where it says nothing (RFC 3608 §6.1).
    heard(one, 200)
    assert one.service_route == ()
    heard(one, 200, ("Service-Route", "<sip:a.example.com;lr>"))
    one.receive(one.request(), None)
    assert one.service_route == ()


@pytest.mark.parametrize(
    "value",
    [
        "<sip:a.example.com>",
        "<tel:+15550100;lr>",
        "<sip:a.example.com;lr>, <sip:b.example.com>",
        "<broken",
        ", ".join(["<sip:a;lr>"] * 9),
    ],
)
def test_a_route_that_cannot_be_followed_is_none(value: str) -> None:
    one = registration()
    heard(one, 200, ("Service-Route", value))
    assert one.registered
    assert one.service_route == ()


@pytest.mark.parametrize(
    ("route", "server", "first"),
    [
        ("", "sip:edge.example.com;transport=tcp", "sip:edge.example.com;transport=tcp"),
        ("<sip:192.0.2.7:5080;lr>", "sip:edge.example.com", "sip:192.0.2.7:5080;lr"),
        ("<sip:EDGE.example.com:5070;lr>", str(SERVER), str(SERVER)),
        ("<sip:other.example.com;lr>", "sip:edge.example.com;transport=tls", "sip:edge.example.com;transport=tls"),
        (
            "<sip:o.example.com;lr;transport=tls>",
            "sip:edge.example.com;transport=tls",
            "sip:o.example.com;lr;transport=tls",
        ),
    ],
)
def test_a_call_goes_to_the_first_of_its_route(route: str, server: str, first: str) -> None:
    assert str(_first_uri(tuple(Address.parse_list(route)) if route else (), Uri.parse(server))) == first
