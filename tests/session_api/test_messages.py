"""Audio in the forms of the Session API."""

from __future__ import annotations

import audioop
import base64
import itertools
import math
import struct

import pytest

from callagent.agents.cx import InputRefused
from callagent.session_api.messages import ENCODINGS, RATES, AudioDecoder, AudioEncoder, AudioFormat, decode_base64

FORMATS = [AudioFormat(encoding, rate) for encoding in ENCODINGS for rate in RATES]


def tone(rate: int, hertz: float, seconds: float = 0.5) -> bytes:
    return b"".join(
        struct.pack("<h", int(12000 * math.sin(hertz * 2 * math.pi * n / rate))) for n in range(int(rate * seconds))
    )


def pitch(pcm: bytes, rate: int) -> float:
    samples = struct.unpack(f"<{len(pcm) // 2}h", pcm)
    return sum(a < 0 <= b for a, b in itertools.pairwise(samples)) / (len(samples) / rate)


def linear(audio: bytes, encoding: str) -> bytes:
    return {"MULAW": audioop.ulaw2lin, "ALAW": audioop.alaw2lin}.get(encoding, lambda pcm, _: pcm)(audio, 2)


def written(pcm: bytes, encoding: str) -> bytes:
    return {"MULAW": audioop.lin2ulaw, "ALAW": audioop.lin2alaw}.get(encoding, lambda pcm, _: pcm)(pcm, 2)


@pytest.mark.parametrize("audio_format", FORMATS, ids=str)
def test_what_a_client_sends_is_heard_at_its_length_and_pitch(audio_format: AudioFormat) -> None:
    audio = written(tone(audio_format.rate, 440), audio_format.encoding)
    inward = AudioDecoder(audio_format)
    # In pieces that cut samples in two.
    pcm = b"".join(inward.feed(audio[start : start + 777]) for start in range(0, len(audio), 777))
    assert len(pcm) / 16000 == pytest.approx(0.5, abs=0.01)
    assert pitch(pcm, 8000) == pytest.approx(440, rel=0.02)
    assert audioop.rms(pcm, 2) == pytest.approx(8485, rel=0.1)


@pytest.mark.parametrize("audio_format", FORMATS, ids=str)
def test_what_we_say_reaches_a_client_at_its_length_and_pitch(audio_format: AudioFormat) -> None:
    pcm, outward = tone(8000, 440), AudioEncoder(audio_format)
    audio = b"".join(base64.b64decode(outward.feed(pcm[start : start + 320])) for start in range(0, len(pcm), 320))
    assert len(audio) / ENCODINGS[audio_format.encoding] / audio_format.rate == pytest.approx(0.5, abs=0.01)
    assert pitch(linear(audio, audio_format.encoding), audio_format.rate) == pytest.approx(440, rel=0.02)
    assert audioop.rms(linear(audio, audio_format.encoding), 2) == pytest.approx(8485, rel=0.1)


@pytest.mark.parametrize("rate", [16000, 24000])
def test_what_a_telephone_does_not_carry_is_no_noise_in_it(rate: int) -> None:
    # 6 kHz would come back as 2 kHz.
    pcm = AudioDecoder(AudioFormat("LINEAR16", rate)).feed(tone(rate, 6000))
    assert audioop.rms(pcm[800:], 2) < 500


def test_forms_are_written_in_the_ways_of_protocol_buffers() -> None:
    assert AudioFormat.parse({"audioEncoding": 2, "sampleRateHertz": "8000"}, "x") == AudioFormat("MULAW", 8000)
    assert AudioFormat.parse({"audio_encoding": "ALAW", "sample_rate_hertz": 24000}, "x") == AudioFormat("ALAW", 24000)
    for wrong in ({}, {"audioEncoding": "LINEAR16"}, {"audioEncoding": 0, "sampleRateHertz": 8000}, [], {"a": 1}):
        with pytest.raises(InputRefused):
            AudioFormat.parse(wrong, "inputAudioConfig")
    assert decode_base64("-_8") == decode_base64("+/8=") == b"\xfb\xff"
