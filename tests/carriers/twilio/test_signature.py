"""Signatures: the published vector, and what must not pass."""

from __future__ import annotations

import pytest

from callagent.carriers.twilio.webhooks import SignatureChecker

# The example of Twilio's security documentation.
URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
FORM = {
    "CallSid": "CA1234567890ABCDE",
    "Caller": "+14158675309",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
}
TOKEN = "12345"
SIGNATURE = "RSOYDt4T1cUTdK1PDd93/VVr8B8="


@pytest.fixture
def checker() -> SignatureChecker:
    return SignatureChecker(TOKEN, "https://mycompany.com")


def test_the_published_vectors_are_accepted(checker: SignatureChecker) -> None:
    assert checker.is_valid(checker.url("/myapp.php?foo=1&bar=2"), FORM, SIGNATURE)
    other = {**FORM, "Caller": "+12349013030", "From": "+12349013030"}
    assert checker.is_valid(URL, other, "0/KCTR6DLpKmkAf8muzZqo1nDgQ=")


@pytest.mark.parametrize(
    ("url", "form", "signature"),
    [
        (URL, {**FORM, "Digits": "1235"}, SIGNATURE),
        (URL, {**FORM, "Extra": "1"}, SIGNATURE),
        (URL, {name: FORM[name] for name in FORM if name != "To"}, SIGNATURE),
        (URL.replace("mycompany", "evil"), FORM, SIGNATURE),
        (URL.replace("foo=1", "foo=2"), FORM, SIGNATURE),
        (URL, FORM, SIGNATURE.lower()),
        (URL, FORM, ""),
        (URL, FORM, "é" * 28),
    ],
)
def test_what_was_changed_is_refused(checker: SignatureChecker, url: str, form: dict[str, str], signature: str) -> None:
    assert not checker.is_valid(url, form, signature)


def test_urls_are_built_on_the_public_one() -> None:
    checker = SignatureChecker(TOKEN, "https://phone.example.com/agents/")
    assert checker.url("/twilio/voice") == "https://phone.example.com/agents/twilio/voice"
    assert checker.stream_url("/twilio/media") == "wss://phone.example.com/agents/twilio/media"
    assert SignatureChecker(TOKEN, "http://127.0.0.1:8080").stream_url("/m") == "ws://127.0.0.1:8080/m"


@pytest.mark.parametrize("public_url", ["", "phone.example.com", "ftp://x", "https://", "https://x?y=1", "https://x#y"])
def test_a_public_url_that_is_none_is_an_error(public_url: str) -> None:
    with pytest.raises(ValueError, match="public URL"):
        SignatureChecker(TOKEN, public_url)


def test_an_empty_secret_is_an_error() -> None:
    with pytest.raises(ValueError, match="auth token"):
        SignatureChecker("", "https://mycompany.com")
