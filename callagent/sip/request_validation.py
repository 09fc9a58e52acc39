"""What a request needs to be served (RFC 3261 §8.2): each check gives the refusal, or None."""

from __future__ import annotations

from collections.abc import Callable

from callagent.sip.dialog import EXTENSIONS, Wire, too_short
from callagent.sip.message import KNOWN_METHODS, Request, Via, host_reference
from callagent.sip.transaction import ServerTransaction

_SCHEMES = ("sip", "sips", "tel")

Refusal = tuple[int, list[tuple[str, str]]]


def refusal_of(wire: Wire, transaction: ServerTransaction) -> Refusal | None:
    """The first thing that we cannot do, in the order of §8.2."""
    for check in _CHECKS:
        refusal = check(wire, transaction)
        if refusal is not None:
            return refusal
    return None


def _check_method(wire: Wire, transaction: ServerTransaction) -> Refusal | None:
    method = transaction.request.method
    if method not in KNOWN_METHODS:
        return 501, []
    return (405, []) if method not in wire.methods else None


def _check_way(wire: Wire, transaction: ServerTransaction) -> Refusal | None:
    request = transaction.request
    if request.uri.scheme not in _SCHEMES:
        return 416, []
    if request.recipient.tag is not None:
        return None
    # Seventy hops to a voice agent are a loop. OPTIONS asks who is at the end of so many (§11).
    hops = request.headers.get("Max-Forwards")
    if hops is not None and int(hops) == 0 and request.method != "OPTIONS":
        return 483, []
    host, port = wire.local(transaction.source)
    ours = Via(transaction.source.transport.upper(), host_reference(host), port).sent_by
    return (482, []) if any(via.sent_by == ours for via in request.vias) else None


def _check_extensions(wire: Wire, transaction: ServerTransaction) -> Refusal | None:
    required = [tag for tag in transaction.request.headers.tokens("Require") if tag.lower() not in EXTENSIONS]
    return (420, [("Unsupported", ", ".join(required))]) if required else None


def _check_contact(wire: Wire, transaction: ServerTransaction) -> Refusal | None:
    """Where the call's requests are sent to: an INVITE has to say it (§8.1.1.8); those of RFC 2543 need not."""
    request = transaction.request
    needed = request.method == "INVITE" and request.recipient.tag is None and request.via.has_unique_branch
    return (400, []) if needed and not request.contacts else None


def _check_session(wire: Wire, transaction: ServerTransaction) -> Refusal | None:
    request = transaction.request
    if request.method in ("INVITE", "UPDATE") and too_short(request, wire.settings.shortest_session):
        return 422, [("Min-SE", str(wire.settings.shortest_session))]
    return None


def _check_content(wire: Wire, transaction: ServerTransaction) -> Refusal | None:
    request: Request = transaction.request
    if request.method not in ("INVITE", "UPDATE", "PRACK"):
        return None
    coding = request.headers.get("Content-Encoding")
    if coding is not None and coding.lower() != "identity":
        return 415, [("Accept-Encoding", "identity")]
    if request.body and request.content_type != "application/sdp":
        return 415, [("Accept", "application/sdp")]
    accepted = [item.partition(";")[0].strip().lower() for item in request.headers.tokens("Accept")]
    if accepted and not {"application/sdp", "application/*", "*/*"}.intersection(accepted):
        # 399 is any other warning (§20.43): every response of ours with a body has a session description.
        return 406, [("Warning", '399 callagent "The answer would be application/sdp"')]
    return None


_CHECKS: tuple[Callable[[Wire, ServerTransaction], Refusal | None], ...] = (
    _check_method, _check_way, _check_extensions, _check_contact, _check_session, _check_content,
)  # fmt: skip
