"""From a caller's first sound to the agent's silence, in audio time: the embedded detector, recorded callers."""

from __future__ import annotations

import array
import math
import random
import struct
import wave
from collections.abc import Callable
from pathlib import Path

import pytest

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE
from callagent.turns.voice_activity_gate import Edge, VoiceActivityGate, VoiceEdge

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.local
CALLERS = sorted((Path(__file__).parents[1] / "data" / "speech").glob("c*.wav"))
LINE_NOISE = 20
"""Of 32768: -64 dBFS."""


def new_gate() -> VoiceActivityGate:
    from callagent.speech.voice_activity import SileroVoiceActivity

    return VoiceActivityGate(SileroVoiceActivity())


def told(samples: list[float]) -> list[tuple[VoiceEdge, float]]:
    """Every edge and the end of the frame it came with."""
    gate, edges = new_gate(), []
    pcm = struct.pack(f"<{len(samples)}h", *(max(-32768, min(32767, round(sample))) for sample in samples))
    for start in range(0, len(pcm) - FRAME_BYTES + 1, FRAME_BYTES):
        now = (start // FRAME_BYTES + 1) * FRAME_SECONDS
        edges += [(edge, now) for edge in gate.feed(pcm[start : start + FRAME_BYTES], now)]
    return edges


def read(path: Path) -> list[int]:
    with wave.open(str(path)) as file:
        assert file.getframerate() == SAMPLE_RATE
        return list(array.array("h", file.readframes(file.getnframes())))


def onset(samples: list[int]) -> int:
    """The first sample of 10 ms within 30 dB of the loudest, the most of the next 30 ms being so too."""
    size = SAMPLE_RATE // 100
    levels = [math.hypot(*samples[at : at + size]) for at in range(0, len(samples) - size, size)]
    loud = [level > max(levels) / 31.6 for level in levels]
    return next(at for at in range(len(loud)) if loud[at] and sum(loud[at : at + 4]) >= 3) * size


def test_the_trigger_comes_within_a_quarter_of_a_second_of_the_first_sound() -> None:
    noise, delays = random.Random(1), []
    assert CALLERS
    for path in CALLERS:
        speech = read(path)
        for lead in (8000, 8077, 8154):
            samples = [noise.gauss(0, LINE_NOISE) for _ in range(lead)]
            samples += [sample + noise.gauss(0, LINE_NOISE) for sample in speech]
            barged = [now for edge, now in told(samples) if edge.edge is Edge.BARGED]
            delays.append(barged[0] - (lead + onset(speech)) / SAMPLE_RATE)
    delays.sort()
    assert delays[0] > 0
    assert delays[len(delays) // 2] <= 0.12
    assert delays[-1] <= 0.25


TONES = {
    key: (low, high)
    for low, keys in zip((697, 770, 852, 941), ("123A", "456B", "789C", "*0#D"), strict=True)
    for key, high in zip(keys, (1209, 1336, 1477, 1633), strict=True)
}
"""Hertz (ITU-T Q.23)."""
Sound = Callable[[random.Random, int], float]
NOISES: dict[str, Sound] = {
    "white, -50 dBFS": lambda noise, _: noise.gauss(0, 104),
    "white, -38 dBFS": lambda noise, _: noise.gauss(0, 412),
    "mains hum": lambda _, at: 583 * math.sin(0.0393 * at) + 328 * math.sin(0.1178 * at),
    "clicks": lambda noise, at: noise.gauss(0, 3000 if at % 12000 < 400 else 20),
    "ringing": lambda _, at: 3000 * (math.sin(0.3456 * at) + math.sin(0.377 * at)) if at % 48000 < 16000 else 0,
}


@pytest.mark.parametrize("name", NOISES)
def test_noise_does_not_silence_the_agent(name: str) -> None:
    noise = random.Random(2)
    assert told([NOISES[name](noise, at) for at in range(20 * SAMPLE_RATE)]) == []


@pytest.mark.parametrize(("seconds", "pause", "hiss"), [(0.1, 0.1, 8), (0.2, 0.3, 8), (0.1, 0.1, 104), (1.0, 0.4, 0)])
@pytest.mark.parametrize("keys", ["123A", "456B", "789C", "*0#D"])
def test_a_key_press_does_not_silence_the_agent(keys: str, seconds: float, pause: float, hiss: float) -> None:
    noise, samples = random.Random(7), [0.0] * SAMPLE_RATE
    for key in keys * 4:
        angles = [2 * math.pi * hertz / SAMPLE_RATE for hertz in TONES[key]]
        samples += [7200 * sum(math.sin(angle * at) for angle in angles) for at in range(round(seconds * SAMPLE_RATE))]
        samples += [0.0] * round(pause * SAMPLE_RATE)
    assert told([sample + noise.gauss(0, hiss) for sample in samples]) == []


def test_the_end_of_speech_is_told_within_the_hangover_and_two_windows() -> None:
    for path in CALLERS[:4]:
        speech = read(path)
        edges = told([float(sample) for sample in [0] * 8000 + speech + [0] * 8000])
        (last, now) = edges[-1]
        assert last.edge is Edge.ENDED
        assert now <= (8000 + len(speech)) / SAMPLE_RATE + 0.2 + 0.1
