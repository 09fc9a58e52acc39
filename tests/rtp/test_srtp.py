from __future__ import annotations

import secrets

import pytest

from callagent.rtp import PCMU, RtpSender
from callagent.rtp.srtp import OVERLAP_SECONDS, SrtpKeys, SrtpReceiver, SrtpSender

SUITES = {
    "AES_CM_128_HMAC_SHA1_80": (30, 10),
    "AES_CM_128_HMAC_SHA1_32": (30, 4),
    "AEAD_AES_128_GCM": (28, 16),
    "AEAD_AES_256_GCM": (44, 16),
}
SUITE = "AES_CM_128_HMAC_SHA1_80"


def packets(count: int) -> list[bytes]:
    sender = RtpSender(PCMU)
    return [sender.frame_to_send(None) for _ in range(count)]


@pytest.mark.parametrize("suite", SUITES)
def test_packets_come_out_as_they_went_in_and_carry_the_tag_of_their_suite(suite: str) -> None:
    length, tag = SUITES[suite]
    key = secrets.token_bytes(length)
    sender, receiver = SrtpSender(suite, key), SrtpReceiver(suite, key, None, 0.0)
    for packet in packets(3):
        protected = sender.protect(packet)
        assert len(protected) == len(packet) + tag
        assert protected[12:172] != packet[12:]
        assert receiver.unprotect(protected, 0.0) == packet
    report = b"\x80\xc9\x00\x01\x00\x00\x00\x05"
    protected = sender.protect_rtcp(report)
    assert receiver.unprotect_rtcp(protected, 0.0) == report


@pytest.mark.parametrize("suite", SUITES)
def test_what_is_not_the_peers_is_not_valid(suite: str) -> None:
    key = secrets.token_bytes(SUITES[suite][0])
    sender, receiver = SrtpSender(suite, key), SrtpReceiver(suite, key, None, 0.0)
    (packet,) = packets(1)
    protected = sender.protect(packet)
    damaged = protected[:-1] + bytes([protected[-1] ^ 1])
    stranger = SrtpSender(suite, secrets.token_bytes(len(key))).protect(packet)
    for bad in (packet, damaged, stranger, b"", b"\x80", b"\x80\x00" + bytes(2000)):
        with pytest.raises(ValueError, match=r"not valid|too long"):
            receiver.unprotect(bad, 0.0)
    assert receiver.unprotect(protected, 0.0) == packet
    with pytest.raises(ValueError, match="replay"):
        receiver.unprotect(protected, 0.0)


def test_after_a_change_of_keys_the_packets_on_their_way_still_count() -> None:
    old, new = secrets.token_bytes(30), secrets.token_bytes(30)
    before, after = SrtpSender(SUITE, old), SrtpSender(SUITE, new)
    receiver = SrtpReceiver(SUITE, new, SrtpReceiver(SUITE, old, None, 0.0), 10.0)
    first, second, third = packets(3)
    assert receiver.unprotect(before.protect(first), 10.1) == first
    assert receiver.unprotect(after.protect(second), 10.1) == second
    with pytest.raises(ValueError, match="not valid"):
        receiver.unprotect(before.protect(third), 10.1 + OVERLAP_SECONDS)


def test_the_number_of_roll_overs_is_kept() -> None:
    key = secrets.token_bytes(30)
    sender, receiver = SrtpSender(SUITE, key), SrtpReceiver(SUITE, key, None, 0.0)
    for packet in packets(70000):
        assert receiver.unprotect(sender.protect(packet), 0.0) == packet


@pytest.mark.parametrize(("suite", "length"), [("AES_CM_128_HMAC_SHA1_80", 29), ("F8_128_HMAC_SHA1_80", 30)])
def test_other_suites_and_lengths_are_refused(suite: str, length: int) -> None:
    with pytest.raises(ValueError, match=f"SRTP key for '{suite}' is not valid"):
        SrtpSender(suite, bytes(length))


def test_keys_are_not_shown() -> None:
    keys = SrtpKeys(SUITE, b"secret-secret", SUITE, b"secret-secret")
    assert "secret" not in repr(keys)
