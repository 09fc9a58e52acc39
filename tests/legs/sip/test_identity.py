"""Whom an INVITE says that calls, and who is believed."""

from __future__ import annotations

import base64
import json
import time

import pytest

from callagent.legs.sip.identity import ATTESTATION, UNVERIFIED_ATTESTATION, Passport, call_info_of
from callagent.sip import Request, parse_message


def invite(**headers: str) -> Request:
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    text = (
        "INVITE sip:+15550199@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1\r\n"
        "From: <sip:+15550100@192.0.2.1>;tag=1\r\nTo: <sip:+15550199@192.0.2.2>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n"
    )
    message = parse_message((text + "".join(lines) + "\r\n").encode())
    assert isinstance(message, Request)
    return message


SAID = {
    "P_Asserted_Identity": "<sip:+15550111@example.com>",
    "Diversion": "<sip:+15550122@example.com>;reason=no-answer",
    "History_Info": "<sip:+15550122@example.com>;index=1",
    "User_to_User": "00ff;encoding=hex",
    "Reason": 'Q.850;cause=16;text="x"',
    "X_Account": "7",
}


def test_a_trusted_trunk_is_believed_and_passed_on() -> None:
    info = call_info_of(invite(**SAID), outgoing=False, trusted=True)
    assert info.caller == "+15550111"
    assert {name.replace("-", "_") for name in info.headers} == set(SAID)


def test_of_others_only_from_counts() -> None:
    info = call_info_of(invite(**SAID, **{ATTESTATION.replace("-", "_"): "A"}), outgoing=False, trusted=False)
    assert info.caller == "+15550100"
    assert dict(info.headers) == {}


def test_a_name_with_a_space_before_the_colon_is_the_same_name() -> None:
    message = parse_message(
        bytes(invite()).replace(b"CSeq:", b"P-Asserted-Identity : <sip:+1666@example.com>\r\nX-A : 1\r\nCSeq:")
    )
    assert isinstance(message, Request)
    assert call_info_of(message, outgoing=False, trusted=False).caller == "+15550100"


@pytest.mark.parametrize(
    ("claims", "headers", "attested", "unverified"),
    [
        # Nobody has checked the signature of an Identity header: it is never told as the trunk's word.
        ({}, {}, None, "A"),
        ({"attest": "C"}, {}, None, "C"),
        ({"iat": 1}, {}, None, None),
        ({"orig": {"tn": "15550111"}}, {}, None, None),
        ({}, {"P_Attestation_Indicator": "B"}, "B", None),
    ],
)
def test_the_attestation_of_the_callers_network_is_told_as_what_it_is(
    claims: dict[str, object], headers: dict[str, str], attested: str | None, unverified: str | None
) -> None:
    value = identity(claims={**CLAIMS, "iat": int(time.time()), **claims})
    info = call_info_of(invite(Identity=value, **headers), outgoing=False, trusted=True)
    assert info.headers.get(ATTESTATION) == attested
    assert info.headers.get(UNVERIFIED_ATTESTATION) == unverified


def test_an_identity_header_of_an_untrusted_peer_is_not_told_at_all() -> None:
    value = identity(claims={**CLAIMS, "iat": int(time.time())})
    assert not call_info_of(invite(Identity=value), outgoing=False, trusted=False).headers


CLAIMS = {
    "attest": "A",
    "dest": {"tn": ["15550199"]},
    "iat": 1_700_000_000,
    "orig": {"tn": "15550100"},
    "origid": "123e4567-e89b-12d3-a456-426655440000",
}
HEADER = {"alg": "ES256", "ppt": "shaken", "typ": "passport", "x5u": "https://certificates.example.com/one.pem"}


def part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def identity(header: object = HEADER, claims: object = CLAIMS) -> str:
    return f"{part(header)}.{part(claims)}.c2ln;info=<https://certificates.example.com/one.pem>;alg=ES256;ppt=shaken"


def test_what_the_network_says_is_read() -> None:
    passport = Passport.parse(identity())
    assert (passport.attestation, passport.origin, passport.destinations) == ("A", "15550100", ("15550199",))
    assert passport.url == "https://certificates.example.com/one.pem"
    assert passport.origin_id.startswith("123e")


@pytest.mark.parametrize(
    ("caller", "at", "fits"),
    [("+15550100", 30, True), ("+15550101", 30, False), ("", 30, False), ("+15550100", 61, False)],
)
def test_it_is_for_one_caller_and_one_minute(caller: str, at: int, fits: bool) -> None:
    assert Passport.parse(identity()).is_for(caller, 1_700_000_000 + at) is fits


@pytest.mark.parametrize(
    "value",
    [
        "",
        "..",
        "a.b.c",
        "e30.e30.x",
        identity({**HEADER, "ppt": "div"}),
        identity(claims={**CLAIMS, "attest": "D"}),
        identity(claims={**CLAIMS, "attest": ["A"]}),
        identity(claims={**CLAIMS, "iat": True}),
        identity(claims={**CLAIMS, "iat": "now"}),
        identity(claims={**CLAIMS, "orig": []}),
        identity(claims=[]),
        part("x") + "." + base64.urlsafe_b64encode(b"[" * 5000).decode() + ".x",
        "x" * 9000,
    ],
)
def test_anything_else_is_not_valid(value: str) -> None:
    with pytest.raises(ValueError, match=r"valid|PASSporT"):
        Passport.parse(value)


def test_odd_numbers_are_digits_only() -> None:
    claims = {**CLAIMS, "dest": {"tn": ["+1 (555) 0199", None, "٣"]}}
    assert Passport.parse(identity(claims=claims)).destinations == ("15550199", "", "")
