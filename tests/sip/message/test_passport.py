from __future__ import annotations

import base64
import json

import pytest

from callagent.sip import Passport

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
    assert Passport.parse(identity()).fits(caller, 1_700_000_000 + at) is fits


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
