from __future__ import annotations

import math
import random
import struct
import wave
from pathlib import Path

import pytest

from callagent.audio import InBandDigits
from callagent.audio.dtmf import _COLUMNS, _KEYS, _ROWS
from callagent.rtp.codec import PCMU

SPEECH = sorted((Path(__file__).parents[1] / "data" / "speech").glob("*.wav"))
DIGITS = "123A456B789C*0#D"


def pressed(digit: str, seconds: float = 0.1, *, amplitude: float = 6000, twist: float = 1.0) -> list[float]:
    row = next(index for index, keys in enumerate(_KEYS) if digit in keys)
    low, high = _ROWS[row], _COLUMNS[_KEYS[row].index(digit)]
    return [
        amplitude * (math.sin(2 * math.pi * low * n / 8000) + twist * math.sin(2 * math.pi * high * n / 8000))
        for n in range(int(8000 * seconds))
    ]


def pause(seconds: float = 0.1) -> list[float]:
    return [0.0] * int(8000 * seconds)


def heard(samples: list[float], detector: InBandDigits | None = None) -> str:
    """Through G.711, as it comes from the wire."""
    detector = detector or InBandDigits()
    pcm = struct.pack(f"<{len(samples)}h", *(max(-32768, min(32767, int(sample))) for sample in samples))
    pcm = PCMU.decode(PCMU.encode(pcm))
    frames = (pcm[at : at + 320] for at in range(0, len(pcm) - 319, 320))
    return "".join(digit for frame in frames if (digit := detector.receive(frame)))


def test_every_digit_is_heard_once() -> None:
    samples = pause()
    for digit in DIGITS:
        samples += pressed(digit) + pause()
    assert heard(samples) == DIGITS


def test_the_same_digit_twice_is_two_digits_and_a_long_one_is_one() -> None:
    assert heard(pressed("5") + pause(0.06) + pressed("5") + pause()) == "55"
    assert heard(pressed("5", 3.0) + pause()) == "5"


@pytest.mark.parametrize("offset", range(0, 160, 20))
def test_a_key_of_70_ms_is_heard_wherever_it_begins_in_a_frame(offset: int) -> None:
    assert heard([0.0] * offset + pressed("9", 0.07) + pause()) == "9"


@pytest.mark.parametrize("twist", [0.5, 2.0])
def test_tones_of_uneven_level_are_heard(twist: float) -> None:
    assert heard(pressed("3", amplitude=3000, twist=twist) + pause()) == "3"


def test_tones_in_noise_are_heard() -> None:
    chance = random.Random(1)
    samples = pause() + pressed("4") + pause() + pressed("#") + pause()
    assert heard([sample + chance.gauss(0, 600) for sample in samples]) == "4#"


def test_single_tones_and_silence_are_no_digits() -> None:
    single = [8000 * math.sin(2 * math.pi * 770 * n / 8000) for n in range(8000)]
    dial_tone = [6000 * (math.sin(2 * math.pi * 350 * n / 8000) + math.sin(2 * math.pi * 440 * n / 8000))
                 for n in range(8000)]  # fmt: skip
    assert heard(single) == heard(dial_tone) == heard(pause(1.0)) == ""


@pytest.mark.parametrize("path", SPEECH, ids=lambda path: path.stem)
def test_speech_is_no_digit(path: Path) -> None:
    with wave.open(str(path)) as file:
        assert file.getframerate() == 8000
        pcm = file.readframes(file.getnframes())
    assert heard(list(struct.unpack(f"<{len(pcm) // 2}h", pcm))) == ""
