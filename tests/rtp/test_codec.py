from __future__ import annotations

import audioop

import pytest

from callagent.audio import FRAME_BYTES
from callagent.rtp.codec import PCMA, PCMU, Codec, available_codecs, open_codec
from tests.rtp.streams import tone

needs_g722 = pytest.mark.skipif("G722" not in available_codecs(), reason="extra 'codecs' is not installed")
needs_opus = pytest.mark.skipif("OPUS" not in available_codecs(), reason="extra 'codecs' or libopus is not installed")
BOTH = [pytest.param("G722", marks=needs_g722), pytest.param("OPUS", marks=needs_opus)]


def opened(name: str) -> Codec:
    codec = open_codec(name)
    assert codec is not None
    return codec


@pytest.mark.parametrize(("codec", "silence"), [(PCMU, 0xFF), (PCMA, 0xD5)])
def test_both_laws_keep_the_sound(codec: Codec, silence: int) -> None:
    frame = tone(0)
    payload = codec.encode(frame)
    assert len(payload) == 160
    assert codec.encode(codec.decode(payload)) == payload
    assert codec.encode(bytes(2)) == bytes([silence])


def test_names_are_case_insensitive() -> None:
    assert open_codec("pcmu") is PCMU
    assert open_codec("PCMA") is PCMA
    assert open_codec("g729") is None
    assert str(PCMA) == "PCMA/8000"


def test_a_number_of_the_peers_own_is_kept() -> None:
    codec = open_codec("PCMU", 96)
    assert codec is not None
    assert codec.payload_type == 96
    assert not codec.is_like(PCMU)
    assert open_codec("PCMU", 0) is PCMU


@pytest.mark.parametrize("name", BOTH)
def test_the_codecs_with_a_memory_keep_a_tone(name: str) -> None:
    encoder, decoder = opened(name), opened(name)
    decoded = [decoder.decode(encoder.encode(tone(index))) for index in range(50)]
    assert {len(frame) for frame in decoded} == {FRAME_BYTES}
    assert encoder.is_stateful
    for frame in decoded[10:]:
        assert audioop.rms(frame, 2) == pytest.approx(audioop.rms(tone(0), 2), rel=0.15)


@pytest.mark.parametrize("name", BOTH)
def test_a_decoder_finds_its_way_when_the_stream_begins_anew(name: str) -> None:
    decoder = opened(name)
    for _ in range(2):
        encoder = opened(name)
        decoded = [decoder.decode(encoder.encode(tone(index))) for index in range(50)]
    assert audioop.rms(decoded[-1], 2) == pytest.approx(audioop.rms(tone(0), 2), rel=0.15)


@needs_g722
def test_g722_says_8000_hertz_and_sends_160_octets_a_frame() -> None:
    codec = opened("g722")
    assert (str(codec), codec.payload_type, codec.frame_units) == ("G722/8000", 9, 160)
    assert len(codec.encode(tone(0))) == 160


@needs_opus
def test_opus_says_48000_hertz_and_takes_packets_of_every_length() -> None:
    import opuslib_next

    codec = opened("opus")
    assert (str(codec), codec.frame_units, codec.units(320)) == ("OPUS/48000", 960, 1920)
    encoder = opuslib_next.Encoder(48000, 2, "audio")
    for milliseconds in (10, 20, 40, 60):
        samples = 48 * milliseconds
        assert len(codec.decode(encoder.encode(bytes(4 * samples), samples))) == 16 * milliseconds


@needs_opus
@pytest.mark.parametrize("garbage", [b"", b"\xff\xff\xff", b"\x03"])
def test_what_is_no_opus_is_not_valid(garbage: bytes) -> None:
    with pytest.raises(ValueError, match="not valid"):
        opened("opus").decode(garbage)


def test_the_cheapest_codecs_come_first() -> None:
    assert available_codecs()[:2] == ("PCMU", "PCMA")
