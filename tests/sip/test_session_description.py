from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.sip.session_description import KEY_OCTETS, Crypto, usable_crypto

KEY = base64.b64encode(bytes(range(30))).decode()
SUITE = "AES_CM_128_HMAC_SHA1_80"


@pytest.mark.parametrize("suite", KEY_OCTETS)
def test_a_line_of_ours_is_read_as_it_was_written(suite: str) -> None:
    line = Crypto.make(3, suite)
    assert Crypto.parse(str(line)) == line
    assert len(line.key) == KEY_OCTETS[suite]
    assert Crypto.make(3, suite).key != line.key


@pytest.mark.parametrize("rest", ["", "|2^20", "|1048576", " WSH=64", " -OPTIONAL=1"])
def test_lifetimes_and_hints_are_read_over(rest: str) -> None:
    assert Crypto.parse(f"1 {SUITE} inline:{KEY}{rest}").key == bytes(range(30))


def test_a_key_of_gcm_needs_no_padding() -> None:
    key = base64.b64encode(bytes(28)).decode().rstrip("=")
    assert Crypto.parse(f"1 AEAD_AES_128_GCM inline:{key}").key == bytes(28)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        f"x {SUITE} inline:{KEY}",
        f"1 {SUITE} {KEY}",
        f"1 {SUITE} inline:{KEY[:-4]}",
        f"1 {SUITE} inline:{KEY}AAAA",
        f"1 {SUITE} inline:{KEY[:-1]}",
        f"1 {SUITE} inline:{KEY}|2^20|1:4",
        f"1 {SUITE} inline:{KEY};inline:{KEY}",
        f"1 {SUITE} inline:{KEY} UNENCRYPTED_SRTP",
        f"1 {SUITE} inline:{KEY} UNAUTHENTICATED_SRTP",
        f"1 {SUITE} inline:{KEY} KDR=5",
        f"1 F8_128_HMAC_SHA1_80 inline:{KEY}",
    ],
)
def test_what_we_do_not_do_is_not_usable(value: str) -> None:
    with pytest.raises(ValueError, match="SDP"):
        Crypto.parse(value)


def test_lines_keep_their_order_and_a_tag_that_comes_twice_counts_for_nothing() -> None:
    line = f"{SUITE} inline:{KEY}"
    assert [each.tag for each in usable_crypto([f"2 {line}", "junk", f"1 {line}", f"9 {line}", f"9 {line}"])] == [2, 1]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert usable_crypto([text]) == []


def test_keys_are_not_shown() -> None:
    line = Crypto.make(1, SUITE)
    assert repr(line.key) not in repr(line)
