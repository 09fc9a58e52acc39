"""Offers and answers about encryption, the better codecs, RTCP, and several media lines over a call's life."""

from __future__ import annotations

import base64

import pytest

from callagent.sip import Agreement, Encryption, MediaPolicy, Negotiation, NotAcceptable
from callagent.sip.session_description import Direction, MediaDescription, SessionDescription
from tests.processor_time import processor_seconds
from tests.sip.test_offer_answer import offer

ALL = ("PCMU", "PCMA", "G722", "OPUS")
KEY = base64.b64encode(bytes(range(30))).decode()
OTHER_KEY = base64.b64encode(bytes(30)).decode()
CRYPTO = f"a=crypto:4 AES_CM_128_HMAC_SHA1_80 inline:{KEY}|2^20"
SECURE = "m=audio 4000 RTP/SAVP 0 101"
PLAIN = "m=audio 4000 RTP/AVP 0 101"


def side(
    encryption: Encryption = Encryption.OFF,
    *,
    host: str = "192.0.2.2",
    codecs: tuple[str, ...] = ALL,
    confidential: bool = True,
    peer: str | None = None,
) -> Negotiation:
    policy = MediaPolicy(codecs, encryption, confidential=confidential)
    return Negotiation(host, 5000, 7, loopback=False, policy=policy, peer=peer)


def audio_of(body: bytes) -> MediaDescription:
    return next(media for media in SessionDescription.parse(body).media if media.kind == "audio" and media.port)


# Codecs


@pytest.mark.parametrize(
    ("attributes", "milliseconds"),
    [
        ((), 20),
        (("a=ptime:20",), 20),
        (("a=ptime:40",), 40),
        (("a=ptime:30",), 20),
        (("a=ptime:60", "a=maxptime:50"), 40),
        (("a=ptime:200",), 60),
        (("a=maxptime:10",), 20),
        (("a=maxptime:120",), 20),
        (("a=ptime:10",), 20),
        (("a=ptime:2.5",), 20),
        (("a=ptime:forty",), 20),
    ],
)
def test_packets_are_as_long_as_the_peer_asks_in_whole_frames(attributes: tuple[str, ...], milliseconds: int) -> None:
    answer, agreement = side().answer(offer(PLAIN, *attributes))
    assert agreement.packet_time == milliseconds
    assert b"a=ptime:20\r\n" in answer


def test_g722_is_taken_at_its_8000_hertz_also_where_a_phone_writes_16000() -> None:
    for rate in (8000, 16000):
        answer, agreement = side().answer(offer("m=audio 4000 RTP/AVP 9 0 101", f"a=rtpmap:9 G722/{rate}"))
        assert (agreement.codec, agreement.payload_type, agreement.telephone_event_rate) == ("G722", 9, 8000)
        assert b"a=rtpmap:9 G722/8000\r\n" in answer


def test_opus_keeps_the_peers_number_and_takes_digits_at_its_own_clock() -> None:
    more = ("a=rtpmap:96 opus/48000/2", "a=rtpmap:97 telephone-event/48000", "a=rtpmap:98 telephone-event/16000")
    answer, agreement = side().answer(offer("m=audio 4000 RTP/AVP 96 98 101 97 0", *more))
    assert (agreement.codec, agreement.payload_type) == ("OPUS", 96)
    assert (agreement.telephone_event, agreement.telephone_event_rate) == (97, 48000)
    assert b"m=audio 5000 RTP/AVP 96 97\r\n" in answer
    assert b"a=rtpmap:96 opus/48000/2\r\n" in answer
    assert b"a=rtpmap:97 telephone-event/48000\r\n" in answer


@pytest.mark.parametrize(("rates", "number", "rate"), [(("16000",), 97, 16000), (("16000", "8000"), 98, 8000)])
def test_digits_at_another_clock_are_better_than_none(rates: tuple[str, ...], number: int, rate: int) -> None:
    more = [f"a=rtpmap:{97 + index} telephone-event/{each}" for index, each in enumerate(rates)]
    body = offer("m=audio 4000 RTP/AVP 96 97 98", "a=rtpmap:96 opus/48000/2", *more)
    agreement = side().answer(body)[1]
    assert (agreement.telephone_event, agreement.telephone_event_rate) == (number, rate)


def test_codecs_that_a_trunk_does_not_have_are_passed_over() -> None:
    assert side(codecs=("PCMA",)).answer(offer("m=audio 4000 RTP/AVP 9 0 8"))[1].codec == "PCMA"


def test_a_number_that_means_something_else_is_believed() -> None:
    body = offer("m=audio 4000 RTP/AVP 0 96", "a=rtpmap:0 GSM/8000", "a=rtpmap:96 pcmu/8000")
    agreement = side().answer(body)[1]
    assert (agreement.codec, agreement.payload_type) == ("PCMU", 96)


def test_comfort_noise_is_answered_where_it_was_offered() -> None:
    answer, agreement = side().answer(offer("m=audio 4000 RTP/AVP 0 13 101"))
    assert agreement.comfort_noise == 13
    assert b"m=audio 5000 RTP/AVP 0 101 13\r\n" in answer
    assert side().answer(offer())[1].comfort_noise is None


def test_comfort_noise_is_offered_beside_codecs_of_its_clock_and_is_for_the_peer_to_take() -> None:
    ours = side()
    assert b"RTP/AVP 0 8 9 101 13\r\n" in ours.offer().replace(b"107 ", b"").replace(b" 103", b"")
    assert ours.accept(offer("m=audio 4000 RTP/AVP 0 13")).comfort_noise == 13
    assert b" 13" not in side(codecs=("OPUS",)).offer().split(b"m=audio", 1)[1].split(b"\r\n", 1)[0]
    plain = side()
    plain.offer()
    assert plain.accept(offer("m=audio 4000 RTP/AVP 0 101")).comfort_noise is None


def test_an_offer_names_every_codec_of_the_trunk_and_an_answer_may_choose_other_numbers() -> None:
    ours = side(codecs=("OPUS", "PCMA"))
    assert b"m=audio 5000 RTP/AVP 107 8 101 103 13\r\n" in ours.offer()
    more = ("a=rtpmap:120 opus/48000/2", "a=rtpmap:121 telephone-event/48000")
    agreement = ours.accept(offer("m=audio 4000 RTP/AVP 120 121", *more))
    assert (agreement.payload_type, agreement.offered_payload_type) == (120, 107)
    assert (agreement.telephone_event, agreement.offered_telephone_event) == (121, 103)


# RTCP


@pytest.mark.parametrize(
    ("attributes", "control"),
    [
        ((), None),
        (("a=rtcp-mux",), ("192.0.2.1", 4000)),
        (("a=rtcp:4444",), ("192.0.2.1", 4444)),
        (("a=rtcp:4444 IN IP4 192.0.2.9",), ("192.0.2.9", 4444)),
        (("a=rtcp:4444", "a=rtcp-mux"), ("192.0.2.1", 4000)),
        (("a=rtcp:80",), None),
        (("a=rtcp:4444 IN IP4 127.0.0.1",), None),
        (("a=rtcp:4444 IN IP4 example.com",), None),
        (("a=rtcp:junk",), None),
    ],
)
def test_rtcp_goes_where_the_peer_reads_it(attributes: tuple[str, ...], control: tuple[str, int] | None) -> None:
    answer, agreement = side().answer(offer(PLAIN, *attributes))
    assert agreement.control == control
    assert (b"a=rtcp-mux\r\n" in answer) == ("a=rtcp-mux" in attributes)


def test_one_port_for_both_is_offered_and_used_when_it_is_taken() -> None:
    ours = side()
    assert b"a=rtcp-mux\r\n" in ours.offer()
    assert ours.accept(offer(PLAIN)).control is None
    assert ours.accept(offer(PLAIN, "a=rtcp-mux")).control == ("192.0.2.1", 4000)


# Encryption


@pytest.mark.parametrize("protocol", ["RTP/SAVP", "RTP/SAVPF", "RTP/AVP", "RTP/AVPF"])
@pytest.mark.parametrize("encryption", [Encryption.ALLOWED, Encryption.REQUIRED])
def test_offered_keys_are_answered_with_one_of_ours(protocol: str, encryption: Encryption) -> None:
    answer, agreement = side(encryption).answer(offer(f"m=audio 4000 {protocol} 0 101", CRYPTO))
    assert agreement.receive_key is not None
    assert agreement.send_key is not None
    assert agreement.receive_key.key == bytes(range(30))
    assert agreement.send_key.key != agreement.receive_key.key
    assert f"m=audio 5000 {protocol} 0 101\r\na=rtpmap".encode() in answer
    assert f"a=crypto:4 {agreement.send_key.suite} inline:".encode() in answer


@pytest.mark.parametrize(
    ("encryption", "confidential", "body"),
    [
        (Encryption.OFF, True, offer(SECURE, CRYPTO)),
        (Encryption.ALLOWED, True, offer(SECURE)),
        (Encryption.ALLOWED, True, offer(SECURE, "a=crypto:1 UNKNOWN inline:AAAA")),
        (Encryption.ALLOWED, False, offer(SECURE, CRYPTO)),
        (Encryption.REQUIRED, True, offer(PLAIN)),
        (Encryption.REQUIRED, False, offer(PLAIN, CRYPTO)),
        (Encryption.ALLOWED, True, offer("m=audio 4000 UDP/TLS/RTP/SAVPF 0", "a=fingerprint:sha-256 AA")),
    ],
    ids=["off", "no key", "unknown suite", "keys in the clear", "required", "required in the clear", "DTLS"],
)
def test_what_policy_forbids_is_not_acceptable(encryption: Encryption, confidential: bool, body: bytes) -> None:
    with pytest.raises(NotAcceptable):
        side(encryption, confidential=confidential).answer(body)


def test_keys_in_the_clear_are_never_answered_but_the_call_may_go_on_plain() -> None:
    answer, agreement = side(Encryption.ALLOWED, confidential=False).answer(offer(PLAIN, CRYPTO))
    assert agreement.send_key is None
    assert b"crypto" not in answer


@pytest.mark.parametrize("first", [PLAIN, SECURE])
def test_of_two_lines_the_encrypted_one_is_taken(first: str) -> None:
    second = (PLAIN if first == SECURE else SECURE).replace("4000", "4002")
    lines = [f"{line}\r\n{CRYPTO}" if "SAVP" in line else line for line in (first, second)]
    answer, agreement = side(Encryption.ALLOWED).answer(offer("\r\n".join(lines)))
    assert agreement.send_key is not None
    media = SessionDescription.parse(answer).media
    assert [bool(each.port) for each in media] == [first == SECURE, first == PLAIN]
    plain = side(Encryption.OFF).answer(offer("\r\n".join(lines)))[1]
    assert plain.send_key is None


def test_the_first_suite_that_we_have_is_taken() -> None:
    short = f"a=crypto:7 AES_CM_128_HMAC_SHA1_32 inline:{OTHER_KEY}"
    agreement = side(Encryption.ALLOWED).answer(offer(SECURE, "a=crypto:1 F8 inline:AA", short, CRYPTO))[1]
    assert agreement.receive_key is not None
    assert (agreement.receive_key.tag, agreement.receive_key.suite) == (7, "AES_CM_128_HMAC_SHA1_32")


@pytest.mark.parametrize("theirs", [Encryption.ALLOWED, Encryption.REQUIRED])
@pytest.mark.parametrize("ours", [Encryption.ALLOWED, Encryption.REQUIRED])
def test_two_sides_agree_on_keys(ours: Encryption, theirs: Encryption) -> None:
    phone, server = side(theirs, host="192.0.2.1"), side(ours)
    answer, here = server.answer(phone.offer())
    there = phone.accept(answer)
    assert (here.send_key, here.receive_key) == (there.receive_key, there.send_key)
    assert here.send_key is not None
    assert here.send_key.suite == "AEAD_AES_256_GCM"
    assert (b"RTP/SAVP" in answer) == (theirs is Encryption.REQUIRED)


def test_opportunistic_keys_are_dropped_where_the_peer_has_none() -> None:
    phone, server = side(Encryption.ALLOWED, host="192.0.2.1"), side(Encryption.OFF)
    answer, here = server.answer(phone.offer())
    assert phone.accept(answer).send_key is here.send_key is None
    assert b"crypto" not in phone.offer()


@pytest.mark.parametrize(
    "answer",
    [offer(SECURE), offer(SECURE, CRYPTO), offer(PLAIN, CRYPTO), offer(f"{PLAIN}\r\n{PLAIN}")],
    ids=["no key", "a key for no line of ours", "another protocol", "too many lines"],
)
def test_answers_that_do_not_fit_are_not_acceptable(answer: bytes) -> None:
    ours = side(Encryption.REQUIRED)
    ours.offer()
    with pytest.raises(NotAcceptable):
        ours.accept(answer)


def test_required_keys_are_not_offered_in_the_clear() -> None:
    with pytest.raises(NotAcceptable):
        side(Encryption.REQUIRED, confidential=False).offer()


def keys_of(agreement: Agreement) -> tuple[bytes, bytes]:
    assert agreement.send_key is not None
    assert agreement.receive_key is not None
    return agreement.send_key.key, agreement.receive_key.key


def test_keys_go_on_while_the_peer_repeats_its_own_and_change_with_it() -> None:
    ours = side(Encryption.ALLOWED)
    first = keys_of(ours.answer(offer(SECURE, CRYPTO))[1])
    held = keys_of(ours.answer(offer(SECURE, CRYPTO, "a=sendonly"))[1])
    assert held == first
    rekeyed = keys_of(ours.answer(offer(SECURE, CRYPTO.replace(KEY, OTHER_KEY)))[1])
    assert rekeyed[1] == bytes(30)
    assert rekeyed[0] != first[0]
    again = audio_of(ours.offer()).values("crypto")
    assert again == [f"1 AES_CM_128_HMAC_SHA1_80 inline:{base64.b64encode(rekeyed[0]).decode()}"]


def test_a_refused_change_leaves_the_keys_as_they_are() -> None:
    ours = side(Encryption.ALLOWED)
    first = keys_of(ours.answer(offer(SECURE, CRYPTO))[1])
    with pytest.raises(NotAcceptable):
        ours.answer(offer("m=audio 4000 RTP/SAVP 18", CRYPTO.replace(KEY, OTHER_KEY)))
    assert keys_of(ours.answer(offer(SECURE, CRYPTO))[1]) == first


# Several lines, and the life of a call


def test_our_own_offer_within_a_call_has_the_peers_lines_numbers_and_order() -> None:
    ours = side()
    body = offer("m=video 4100 RTP/AVP 31\r\nm=audio 4000 RTP/AVP 96 97", "a=rtpmap:96 opus/48000/2",
                 "a=rtpmap:97 telephone-event/48000")  # fmt: skip
    ours.answer(body)
    again = SessionDescription.parse(ours.offer(Direction.SENDONLY))
    assert [(each.kind, bool(each.port)) for each in again.media] == [("video", False), ("audio", True)]
    assert again.media[1].formats == ("96", "97")
    assert again.media[1].direction is Direction.SENDONLY
    agreement = ours.accept(body.replace(b"video 4100", b"video 0"))
    assert agreement.payload_type == agreement.offered_payload_type == 96


def test_a_line_in_use_is_taken_before_one_that_comes_to_it() -> None:
    ours = side()
    ours.answer(offer("m=audio 0 RTP/AVP 0\r\nm=audio 4002 RTP/AVP 0"))
    assert ours.answer(offer("m=audio 4000 RTP/AVP 0\r\nm=audio 4002 RTP/AVP 0"))[1].remote == ("192.0.2.1", 4002)


def test_a_line_whose_target_is_forbidden_gives_way_to_the_next() -> None:
    body = offer("m=audio 80 RTP/AVP 0\r\nm=audio 4002 RTP/AVP 0")
    assert side().answer(body)[1].remote == ("192.0.2.1", 4002)


def test_directions_and_addresses_come_from_the_line_before_the_session() -> None:
    body = offer("m=audio 4000 RTP/AVP 0\r\nc=IN IP4 192.0.2.8\r\na=sendrecv").replace(b"t=0 0", b"t=0 0\r\na=inactive")
    agreement = side().answer(body)[1]
    assert agreement.remote == ("192.0.2.8", 4000)
    assert agreement.direction is Direction.SENDRECV
    whole = offer().replace(b"t=0 0", b"t=0 0\r\na=inactive")
    assert side().answer(whole)[1].direction is Direction.INACTIVE


# Where media goes


@pytest.mark.parametrize(
    "host",
    ["0.1.2.3", "169.254.1.1", "240.0.0.1", "::ffff:127.0.0.1", "::1", "ff02::1", "fe80::1", "2001:db8::1", "1.2.3"],
)
def test_addresses_that_nobody_should_be_sent_to_are_not_acceptable(host: str) -> None:
    body = offer().replace(b"c=IN IP4 192.0.2.1", f"c=IN IP{6 if ':' in host else 4} {host}".encode())
    with pytest.raises(NotAcceptable):
        side().answer(body)


def test_behind_a_translator_the_address_of_the_signalling_stands_for_the_private_one() -> None:
    body = offer(host="10.0.0.5")
    assert side(peer="198.51.100.7").answer(body)[1].remote == ("198.51.100.7", 4000)
    assert side(peer="10.0.0.1").answer(body)[1].remote == ("10.0.0.5", 4000)
    assert side(peer="198.51.100.7").answer(offer())[1].remote == ("192.0.2.1", 4000)


def test_hostile_descriptions_are_read_in_good_time() -> None:
    lines = [f"m=audio 4000 RTP/AVP {' '.join(str(n) for n in range(96, 127))}"]
    lines += [f"a=rtpmap:{96 + n % 31} x/8000" for n in range(60)]
    body = offer("\r\n".join(lines))[:8192]

    def work() -> None:
        for _ in range(10):
            with pytest.raises(ValueError, match="codec"):
                side(Encryption.ALLOWED).answer(body)

    assert processor_seconds(work, 0.5) < 0.5
