"""Caller and callee of a SIP call, as an INVITE names them, and the URIs and addresses of calls that we place."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType

from callagent.call_info import NO_HEADERS, CallInfo
from callagent.json_values import JsonObject, list_at, object_at, parse_object, text_at
from callagent.sip import Address, Dialog, Headers, Request, Uri, escape_user, host_reference, parse_reasons

MAX_AGE = 60.0
"""Seconds that a PASSporT is valid; an older one may be a replay from another call (RFC 8224 §12.1)."""
_MAX_LENGTH = 8 * 1024
"""Characters of the longest Identity header that is parsed."""
_INFO = re.compile(r"info\s*=\s*<([^<>]*)>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Passport:
    """The SHAKEN PASSporT of an Identity header field, a token of the caller's network (RFC 8224, 8225, 8588).

    It is parsed, and its signature is not verified.
    """

    attestation: str
    """`A`: the network knows the caller and its right to the number; `B`: the caller only; `C`: neither."""
    origin: str
    """The digits of the calling number."""
    destinations: tuple[str, ...]
    issued: float
    """Seconds since 1970."""
    origin_id: str
    url: str
    """The URL of the signer's certificate, which is never fetched."""

    @classmethod
    def parse(cls, value: str) -> Passport:
        """Parse an Identity header field of type `shaken`. Raises `ValueError`."""
        token, _, rest = value.strip().partition(";")
        if len(value) > _MAX_LENGTH or token.count(".") != 2:
            raise ValueError("Identity is not valid")
        # A compact JWS: header, claims and signature, each in base64 without padding (RFC 7515 §3.1).
        header, claims = (_decode(part) for part in token.split(".")[:2])
        if header.get("ppt") != "shaken" or header.get("typ") != "passport":
            raise ValueError("Identity is not a SHAKEN PASSporT")
        attestation, issued, origin = text_at(claims, "attest"), claims.get("iat"), claims.get("orig")
        if attestation not in ("A", "B", "C") or type(issued) is not int or not isinstance(origin, Mapping):
            raise ValueError("PASSporT is not valid")
        return cls(
            attestation,
            _digits(origin.get("tn")),
            tuple(_digits(number) for number in list_at(object_at(claims, "dest"), "tn")),
            float(issued),
            str(claims.get("origid") or "")[:128],
            url[1] if (url := _INFO.search(rest)) else "",
        )

    def is_for(self, caller: str, now: float) -> bool:
        """Whether the PASSporT is about this caller and was issued within `MAX_AGE` seconds of `now`."""
        # Only digits are compared: networks write the same number with and without a plus sign.
        return bool(self.origin) and self.origin == _digits(caller) and abs(now - self.issued) <= MAX_AGE


def _decode(part: str) -> JsonObject:
    try:
        return parse_object(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except ValueError:
        raise ValueError("Identity is not valid") from None


def _digits(number: object) -> str:
    return "".join(mark for mark in str(number or "") if mark.isascii() and mark.isdigit())


ATTESTATION = "P-Attestation-Indicator"
"""How far a trusted trunk, which verified the signature, vouches for the caller's number: `A` to `C` (ATIS-1000085)."""
UNVERIFIED_ATTESTATION = "Unverified-Attestation"
"""The same from an Identity header whose signature nobody has verified (RFC 8224 §6.2): anybody on the way of the call
may have written it. It has a name of its own, so that no agent, record or page takes it for the verified one."""

# Headers of the protocol itself (RFC 3261 §20 and the extensions we speak). The agent is told all others.
_PROTOCOL = frozenset(
    (
        "accept", "accept-encoding", "accept-language", "allow", "allow-events", "authorization", "call-id", "contact",
        "content-disposition", "content-encoding", "content-language", "content-length", "content-type", "cseq", "date",
        "expires", "from", "max-forwards", "mime-version", "min-se", "p-early-media", "proxy-authorization",
        "proxy-authenticate", "proxy-require", "record-route", "replaces", "require", "retry-after", "route", "rseq",
        "server", "session-expires", "supported", "timestamp", "to", "unsupported", "user-agent", "via",
        "www-authenticate",
    )
)  # fmt: skip


def call_info_of(invite: Request, *, outgoing: bool, trusted: bool = True) -> CallInfo:
    """Return who calls whom. For a call that we place, caller and callee are as we sent them.

    A peer that is not trusted can write anything into its headers, so only its From is read.
    """
    # The attestation that the trunk has verified comes first; an unverified claim is added only without it.
    caller, started = _caller(invite, trusted=trusted), datetime.now(UTC)
    headers = _custom_headers(invite.headers) if trusted else {}
    if trusted and ATTESTATION not in headers:
        headers |= _unverified_attestation(invite, caller, started.timestamp())
    return CallInfo(
        call_id=uuid.uuid4().hex,
        direction="outbound" if outgoing else "inbound",
        caller=caller,
        callee=_user(invite.uri),
        wire="sip",
        started=started,
        headers=MappingProxyType(headers),
        peer_call_id=clean(invite.call_id),
    )


def end_headers_and_causes(headers: Headers, *, trusted: bool) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the headers of the message that ended a call, and the causes in its Reason headers (RFC 3326)."""
    if not trusted:
        return NO_HEADERS, ()
    causes = tuple(str(reason) for reason in parse_reasons(headers.values("Reason")))
    return MappingProxyType(_custom_headers(headers)), causes


def _unverified_attestation(invite: Request, caller: str | None, now: float) -> dict[str, str]:
    """Return a header with the attestation that an Identity header claims; empty if none is about this call."""
    for value in invite.headers.values("Identity"):
        try:
            passport = Passport.parse(value)
        except ValueError:
            continue
        if passport.is_for(caller or "", now):
            return {UNVERIFIED_ATTESTATION: passport.attestation}
    return {}


def _caller(invite: Request, *, trusted: bool) -> str | None:
    """Return the identity that the trunk asserts (RFC 3325), or else the user of From; None if it is withheld."""
    privacy = {item.strip().lower() for item in (invite.headers.get("Privacy") or "").split(";")}
    # The caller asked its network to withhold the number (RFC 3323 §4.2, RFC 3325 §9.3), even if the network sent it.
    if privacy.intersection(("id", "user")):
        return None
    for value in invite.headers.values("P-Asserted-Identity") if trusted else ():
        # An invalid value is skipped: the call is still accepted, with the user of From.
        try:
            asserted = [_user(address.uri) for address in Address.parse_list(value)]
        except ValueError:
            continue
        users = [user for user in asserted if user is not None]
        if users:
            return users[0]
    sender = invite.sender.uri
    anonymous = (sender.user or "").lower() == "anonymous" or sender.host.lower().endswith("anonymous.invalid")
    return None if anonymous else _user(sender)


def _user(uri: Uri) -> str | None:
    """Return the user part without the parameters that gateways put into it (`+15551230000;npdi`)."""
    text = uri.user_text
    if text is None:
        return None
    return clean(text).partition(";")[0] or None


def _custom_headers(headers: Headers) -> dict[str, str]:
    custom: dict[str, str] = {}
    for name, value in headers:
        if name.lower() not in _PROTOCOL:
            custom[name] = f"{custom[name]}, {clean(value)}" if name in custom else clean(value)
    return custom


def clean(text: str) -> str:
    """Return the text as valid Unicode without control characters, which every log, database and page can hold."""
    # Octets that are not UTF-8 came in as surrogates (PEP 383), which neither a database nor a terminal takes.
    valid = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(character for character in valid if character.isprintable())


def target_uri(dialog: Dialog | None, target: str) -> Uri:
    """Return the URI for a REFER: a number becomes a user at the peer's host, whose trunk routes it."""
    if ":" in target:
        return Uri.parse(target)
    # The host of the peer's From, or else its address: the trunk routes the number, as it would a call of its own.
    host = dialog.remote.uri.host or host_reference(dialog.peer.host) if dialog is not None else ""
    return Uri.parse(f"sip:{escape_user(target)}@{host}")


def number_at(server: Uri, number: str) -> str:
    """Return the URI of a number at a trunk, with the trunk's port and transport."""
    return str(replace(server, user=escape_user(number), headers=None))


def caller_address(caller: str | None, server: Uri | None) -> str:
    """Return the From of a call that we place for somebody; a withheld number stays withheld (RFC 3323 §4.1.1.3)."""
    if caller is None:
        return '"Anonymous" <sip:anonymous@anonymous.invalid>'
    return escape_user(caller) if server is None else f"<sip:{escape_user(caller)}@{server.host}>"
