"""Builds the responses to a request (RFC 3261 §8.2.6)."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from callagent.sip.address import Address
from callagent.sip.headers import Headers
from callagent.sip.message import Request, Response

METHODS = ("INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "INFO", "UPDATE", "MESSAGE", "NOTIFY", "PRACK")
KNOWN_METHODS = (*METHODS, "REFER", "REGISTER", "SUBSCRIBE", "PUBLISH")

_REASONS = {
    100: "Trying", 180: "Ringing", 183: "Session Progress", 200: "OK", 202: "Accepted", 302: "Moved Temporarily",
    406: "Not Acceptable", 408: "Request Timeout", 415: "Unsupported Media Type", 416: "Unsupported URI Scheme",
    420: "Bad Extension", 422: "Session Interval Too Small", 423: "Interval Too Brief",
    480: "Temporarily Unavailable", 481: "Call/Transaction Does Not Exist",
    482: "Loop Detected", 483: "Too Many Hops", 486: "Busy Here", 487: "Request Terminated",
    488: "Not Acceptable Here", 491: "Request Pending", 500: "Server Internal Error",
    505: "Version Not Supported", 513: "Message Too Large", 600: "Busy Everywhere", 603: "Decline",
    604: "Does Not Exist Anywhere", 606: "Not Acceptable",
}  # fmt: skip


def reason_phrase(status: int) -> str:
    if status in _REASONS:
        return _REASONS[status]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def respond_to(
    request: Request,
    status: int,
    *,
    tag: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
) -> Response:
    """A response that goes back the request's way. A body is SDP."""
    response = Response(copy_headers(request.headers, tag), body, status=status, reason=reason_phrase(status))
    if 100 < status < 300 and request.method == "INVITE":
        for route in request.headers.values("Record-Route"):
            response.headers.add("Record-Route", route)
    for name, value in headers:
        response.headers.add(name, value)
    if body:
        response.headers.set("Content-Type", "application/sdp")
    return response


def copy_headers(received: Headers, tag: str | None) -> Headers:
    """What every response repeats. A To without a tag gets ours, also one that cannot be read."""
    headers = Headers()
    for name in ("Via", "From", "To", "Call-ID", "CSeq"):
        values = received.values(name)
        headers.take_over(name, [_with_tag(value, tag) for value in values] if name == "To" and tag else values)
    return headers


def _with_tag(to: str, tag: str) -> str:
    try:
        address = Address.parse(to)
    except ValueError:
        return to
    return to if address.tag is not None else f"{to};tag={tag}" if ">" in to else str(address.with_tag(tag))
