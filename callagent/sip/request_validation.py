"""Validation of requests before they are served (RFC 3261 §8.2): each check returns a refusal, or None."""

from __future__ import annotations

from collections.abc import Callable

from callagent.sip.dialog import EXTENSIONS, UserAgentCore, is_too_short
from callagent.sip.message import KNOWN_METHODS, Request, Via, host_reference
from callagent.sip.transaction import ServerTransaction

_SCHEMES = ("sip", "sips", "tel")

Refusal = tuple[int, list[tuple[str, str]]]
"""Status and header fields of the response."""


def refusal_of(core: UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    """Return the refusal of the first check that fails, in the order of §8.2; None if the request can be served."""
    for check in _CHECKS:
        refusal = check(core, transaction)
        if refusal is not None:
            return refusal
    return None


def _check_method(core: UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    method = transaction.request.method
    if method not in KNOWN_METHODS:
        return 501, []
    return (405, []) if method not in core.methods else None


def _check_route(core: UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    request = transaction.request
    if request.uri.scheme not in _SCHEMES:
        return 416, []
    if request.recipient.tag is not None:
        return None
    # OPTIONS with Max-Forwards 0 asks the element at that hop, like traceroute, and is answered (§11).
    hops = request.headers.get("Max-Forwards")
    if hops is not None and int(hops) == 0 and request.method != "OPTIONS":
        return 483, []
    host, port = core.local_address(transaction.source)
    ours = Via(transaction.source.transport.upper(), host_reference(host), port).sent_by
    return (482, []) if any(via.sent_by == ours for via in request.vias) else None


def _check_extensions(core: UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    required = [tag for tag in transaction.request.headers.tokens("Require") if tag.lower() not in EXTENSIONS]
    return (420, [("Unsupported", ", ".join(required))]) if required else None


def _check_contact(core: UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    """Refuse an INVITE without a Contact (§8.1.1.8), unless an RFC 2543 peer sent it."""
    request = transaction.request
    needed = request.method == "INVITE" and request.recipient.tag is None and request.via.has_unique_branch
    return (400, []) if needed and not request.contacts else None


def _check_session(core: UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    request = transaction.request
    if request.method in ("INVITE", "UPDATE") and is_too_short(request, core.settings.shortest_session):
        return 422, [("Min-SE", str(core.settings.shortest_session))]
    return None


def _check_content(core: UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
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
        # All bodies of ours are SDP. 399 is the code for miscellaneous warnings (§20.43).
        return 406, [("Warning", '399 callagent "The answer would be application/sdp"')]
    return None


_CHECKS: tuple[Callable[[UserAgentCore, ServerTransaction], Refusal | None], ...] = (
    _check_method, _check_route, _check_extensions, _check_contact, _check_session, _check_content,
)  # fmt: skip
