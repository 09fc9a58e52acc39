from __future__ import annotations

from ipaddress import ip_network

import pytest

from callagent.legs.sip.factory import SipLegs
from callagent.legs.sip.media import TrunkMedia, negotiation_towards, negotiation_with, rtp_parameters
from callagent.rtp import Pump, RtpPorts, available_codecs
from callagent.sip import Encryption, Hop, NotAcceptable, UserAgentSettings
from tests.sip.test_offer_answer import offer

KEY = "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:" + "A" * 40
MEDIA = TrunkMedia(("PCMU",), networks=(ip_network("198.51.100.0/24"),), in_band_digits=True)


def test_keys_count_over_tls_only() -> None:
    for transport, encrypted in (("tls", True), ("tcp", False), ("udp", False)):
        negotiation = negotiation_with(Hop("192.0.2.1", 5061, transport), "192.0.2.2", 5000, MEDIA)
        agreement = negotiation.answer(offer("m=audio 4000 RTP/AVP 0", KEY))[1]
        assert (rtp_parameters(agreement, MEDIA).keys is not None) is encrypted


@pytest.mark.parametrize(
    ("target", "offered"),
    [
        ("sips:a@192.0.2.1", True),
        ("sip:a@192.0.2.1;transport=TLS", True),
        ("sip:a@192.0.2.1", False),
        ("sip:a@192.0.2.1;transport=tcp", False),
    ],
)
def test_keys_are_offered_over_tls_only(target: str, offered: bool) -> None:
    assert (b"a=crypto" in negotiation_towards(target, "192.0.2.2", 5000, TrunkMedia()).offer()) is offered


def test_on_loopback_nobody_else_reads_the_keys() -> None:
    assert b"a=crypto" in negotiation_towards("sip:a@127.0.0.1", "127.0.0.1", 5000, TrunkMedia()).offer()
    off = TrunkMedia(encryption=Encryption.OFF)
    assert b"a=crypto" not in negotiation_towards("sip:a@127.0.0.1", "127.0.0.1", 5000, off).offer()


def test_what_is_agreed_on_reaches_the_media_session() -> None:
    negotiation = negotiation_with(Hop("127.0.0.1", 5060), "127.0.0.1", 5000, MEDIA)
    body = offer("m=audio 4000 RTP/AVP 0 101 98", KEY, "a=rtpmap:98 CN/8000", "a=rtcp:4009", host="127.0.0.1")
    agreement = negotiation.answer(body)[1]
    parameters = rtp_parameters(agreement, MEDIA)
    assert (parameters.codec.name, parameters.telephone_event, parameters.comfort_noise) == ("PCMU", 101, 98)
    assert parameters.control == ("127.0.0.1", 4009)
    assert parameters.networks == MEDIA.networks
    assert parameters.in_band_digits

    assert parameters.keys is not None
    assert parameters.keys.receive == bytes(30)
    assert agreement.send_key is not None
    assert parameters.keys.send == agreement.send_key.key


@pytest.mark.parametrize(("formats", "in_band"), [("0 101", False), ("0", True)])
def test_keys_in_the_audio_are_read_unless_telephone_events_were_negotiated(formats: str, in_band: bool) -> None:
    negotiation = negotiation_with(Hop("192.0.2.1", 5060), "192.0.2.2", 5000, TrunkMedia())
    agreement = negotiation.answer(offer(f"m=audio 4000 RTP/AVP {formats}"))[1]
    assert rtp_parameters(agreement, TrunkMedia()).in_band_digits is in_band


def test_keys_in_the_audio_are_read_where_the_answer_takes_no_telephone_events() -> None:
    negotiation = negotiation_towards("sip:a@192.0.2.1", "192.0.2.2", 5000, TrunkMedia())
    assert b"telephone-event" in negotiation.offer()
    agreement = negotiation.accept(offer("m=audio 4000 RTP/AVP 0"))
    assert rtp_parameters(agreement, TrunkMedia()).in_band_digits


def test_a_trunk_that_requires_encryption_gets_nothing_in_the_clear() -> None:
    media = TrunkMedia(encryption=Encryption.REQUIRED)
    with pytest.raises(NotAcceptable):
        negotiation_with(Hop("192.0.2.1", 5060), "192.0.2.2", 5000, media).answer(offer("m=audio 4000 RTP/AVP 0", KEY))
    with pytest.raises(NotAcceptable):
        negotiation_towards("sip:a@192.0.2.1", "192.0.2.2", 5000, media).offer()


def test_only_codecs_that_are_installed_are_offered() -> None:
    body = negotiation_towards("sip:a@192.0.2.1", "192.0.2.2", 5000, TrunkMedia()).offer().lower()
    for name in ("PCMU", "PCMA", "G722", "OPUS"):
        assert (f" {name}/".lower().encode() in body) is (name in available_codecs())


async def test_the_codecs_are_loaded_before_the_first_call() -> None:
    available_codecs.cache_clear()
    legs = SipLegs(RtpPorts("127.0.0.1", 29100, 29101), Pump())
    await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: None))
    assert available_codecs.cache_info().currsize == 1
    await legs.close()
