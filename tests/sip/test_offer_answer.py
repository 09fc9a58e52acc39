"""Offers and answers: codecs, hold, refusals, and where media may not be sent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callagent.sip import Negotiation, NotAcceptable
from callagent.sip.session_description import Direction, SessionDescription


def offer(media: str = "m=audio 4000 RTP/AVP 0 8 101", *more: str, host: str = "192.0.2.1") -> bytes:
    lines = ["v=0", f"o=- 1 1 IN IP4 {host}", "s=-", f"c=IN IP4 {host}", "t=0 0", media]
    return "\r\n".join([*lines, "a=rtpmap:101 telephone-event/8000", *more, ""]).encode()


def ours(*, loopback: bool = False) -> Negotiation:
    return Negotiation("192.0.2.2", 5000, 7, loopback=loopback)


def test_the_peers_first_codec_that_we_have_is_taken() -> None:
    answer, agreement = ours().answer(offer("m=audio 4000 RTP/AVP 18 8 0 101"))
    assert (agreement.codec, agreement.telephone_event, agreement.remote) == ("PCMA", 101, ("192.0.2.1", 4000))
    assert not agreement.is_held
    assert b"m=audio 5000 RTP/AVP 8 101\r\n" in answer
    assert b"a=ptime:20\r\n" in answer
    assert b"a=sendrecv\r\n" in answer


def test_a_line_may_be_indented() -> None:
    _, agreement = ours().answer(offer("m=audio 4000 RTP/AVP 8 101", "\t  a=fmtp:101 0-11,16", " a=sendrecv"))
    assert (agreement.codec, agreement.telephone_event) == ("PCMA", 101)


def test_telephone_events_keep_the_peers_number_and_are_left_out_without_one() -> None:
    body = offer("m=audio 4000 RTP/AVP 0 96", "a=rtpmap:96 telephone-event/8000")
    assert ours().answer(body)[1].telephone_event == 96
    answer, agreement = ours().answer(offer("m=audio 4000 RTP/AVP 0"))
    assert agreement.telephone_event is None
    assert b"telephone-event" not in answer


@pytest.mark.parametrize(
    ("attribute", "direction", "held"),
    [
        ("sendonly", Direction.RECVONLY, True),
        # The peer only listens (RFC 3264 §5.1): it is to hear us.
        ("recvonly", Direction.SENDONLY, False),
        ("inactive", Direction.INACTIVE, True),
    ],
)
def test_directions_are_answered_in_the_mirror_and_hold_a_peer_that_does_not_listen(
    attribute: str, direction: Direction, held: bool
) -> None:
    answer, agreement = ours().answer(offer("m=audio 4000 RTP/AVP 0", f"a={attribute}"))
    assert agreement.is_held is held
    assert agreement.direction is direction
    assert f"a={direction.value}\r\n".encode() in answer


def test_the_old_hold_by_address_is_understood() -> None:
    _, agreement = ours().answer(offer(host="0.0.0.0"))
    assert agreement.is_held
    assert agreement.remote is None


def test_a_stream_switched_off_stays_answered() -> None:
    answer, agreement = ours().answer(offer("m=audio 0 RTP/AVP 0"))
    assert agreement.is_held
    assert b"m=audio 0 RTP/AVP" in answer


def test_other_streams_are_refused_in_their_places() -> None:
    body = offer("m=video 4100 RTP/AVP 31\r\nm=audio 4000 RTP/AVP 0\r\nm=audio 4200 RTP/SAVP 0")
    answer, agreement = ours().answer(body)
    ports = [(media.kind, media.port) for media in SessionDescription.parse(answer).media]
    assert ports == [("video", 0), ("audio", 5000), ("audio", 0)]
    assert agreement.remote == ("192.0.2.1", 4000)


@pytest.mark.parametrize(
    "body",
    [
        offer("m=audio 4000 RTP/AVP 18 9"),
        offer("m=audio 4000 RTP/SAVP 0"),
        offer("m=video 4000 RTP/AVP 31"),
        offer(host="media.example.com"),
        offer(host="224.0.0.1"),
        offer(host="255.255.255.255"),
        offer(host="127.0.0.1"),
        offer("m=audio 80 RTP/AVP 0"),
        offer("m=audio 5000 RTP/AVP 0", host="192.0.2.2"),
    ],
    ids=["codec", "srtp", "video", "name", "multicast", "broadcast", "loopback", "privileged", "ourselves"],
)
def test_what_cannot_or_must_not_be_used_is_not_acceptable(body: bytes) -> None:
    with pytest.raises(NotAcceptable):
        ours().answer(body)


def test_loopback_is_a_target_for_a_server_on_loopback() -> None:
    assert ours(loopback=True).answer(offer(host="127.0.0.1"))[1].remote == ("127.0.0.1", 4000)


def test_ipv6_addresses_are_written_as_such() -> None:
    body = offer().replace(b"IN IP4 192.0.2.1", b"IN IP6 2001:db8::1")
    answer, agreement = Negotiation("2001:db8::2", 5000, 7, loopback=False).answer(body)
    assert agreement.remote == ("2001:db8::1", 4000)
    assert b"c=IN IP6 2001:db8::2\r\n" in answer


def test_the_version_grows_only_when_the_description_changes() -> None:
    negotiation = ours()
    versions = []
    for body in (offer(), offer(), offer("m=audio 4000 RTP/AVP 8"), offer("m=audio 4000 RTP/AVP 8")):
        versions.append(SessionDescription.parse(negotiation.answer(body)[0]).version)
    assert versions == [7, 7, 8, 8]


def test_two_sides_agree() -> None:
    phone, server = Negotiation("192.0.2.1", 4000, 1, loopback=False), ours()
    answer, theirs = server.answer(phone.offer())
    agreement = phone.accept(answer)
    assert (agreement.codec, agreement.remote, agreement.telephone_event) == ("PCMU", ("192.0.2.2", 5000), 101)
    assert theirs.remote == ("192.0.2.1", 4000)


@pytest.mark.parametrize(
    "damage",
    [
        b"v=1",
        b"",
        b"v=0",
        offer().replace(b"o=- 1 1", b"o=- x 1"),
        offer("m=audio 4000 RTP/AVP"),
        offer("m=audio 70000 RTP/AVP 0"),
        offer("m=audio 4000 RTP/AVP " + "0 " * 33),
        offer("\r\n".join(["m=audio 4000 RTP/AVP 0"] * 9)),
        offer(*(["m=audio 4000 RTP/AVP 0"] + ["a=x"] * 65)),
        offer() + b"a=" + b"x" * 8192,
        offer().replace(b"c=IN IP4", b"c=IN IP5"),
    ],
)
def test_damaged_or_oversized_descriptions_are_refused(damage: bytes) -> None:
    with pytest.raises(ValueError, match=r"not valid|too|range"):
        SessionDescription.parse(damage)


@given(st.binary(max_size=600), st.integers(0, 200))
@settings(max_examples=500)
def test_any_bytes_are_answered_or_refused(noise: bytes, at: int) -> None:
    for body in (noise, offer()[:at] + noise[:4] + offer()[at + 4 :]):
        try:
            answer, _ = ours().answer(body)
        except ValueError:
            continue
        SessionDescription.parse(answer)
