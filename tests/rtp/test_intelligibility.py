"""How much of speech survives loss (STOI, from 0 to 1), as the agent hears it."""

from __future__ import annotations

import random
import wave
from collections.abc import Callable
from pathlib import Path

import pytest

from callagent.rtp.codec import PCMU, RtpParameters
from callagent.rtp.packet import RtpPacket
from callagent.rtp.receiver import Received, RtpReceiver
from tests.rtp.streams import PEER

numpy = pytest.importorskip("numpy")
pystoi = pytest.importorskip("pystoi")

SPEECH = sorted((Path(__file__).parents[1] / "data" / "speech").glob("*.wav"))
TAIL_FRAMES = 25
Losses = Callable[[random.Random, int], set[int]]


def at_random(share: float) -> Losses:
    return lambda chance, count: {index for index in range(1, count) if chance.random() < share}


def in_bursts(share: float, mean: float) -> Losses:
    """Gilbert's model: once lost, the next is lost too with a chance of 1 - 1/mean."""

    def losses(chance: random.Random, count: int) -> set[int]:
        lost: set[int] = set()
        bad = False
        for index in range(1, count):
            bad = chance.random() >= 1 / mean if bad else chance.random() < share / (mean * (1 - share))
            if bad:
                lost.add(index)
        return lost

    return losses


def speech() -> bytes:
    """Every speaker in turn, in whole frames."""
    parts = []
    for path in SPEECH:
        with wave.open(str(path)) as file:
            assert file.getframerate() == 8000
            parts.append(file.readframes(file.getnframes()))
    pcm = b"".join(parts)
    return pcm[: len(pcm) // 320 * 320] + bytes(320 * TAIL_FRAMES)


def heard(pcm: bytes, lost: set[int]) -> bytes:
    receiver = RtpReceiver(RtpParameters(PCMU), 0.0)
    receiver.connect(PEER, RtpParameters(PCMU), 0.0)
    received: list[Received] = []
    tick = 0.1
    for index in range(len(pcm) // 320):
        at = index * 0.02
        while tick <= at:
            received += receiver.tick(tick)
            tick += 0.1
        while (timer := receiver.next_timer()) is not None and timer <= at:
            received += receiver.tick(timer)
        if index not in lost:
            payload = PCMU.encode(pcm[index * 320 : (index + 1) * 320])
            packet = RtpPacket(0, index & 0xFFFF, index * 160, 7, payload)
            received += receiver.receive(bytes(packet), PEER, at)
    return b"".join(frame for frame in received if isinstance(frame, bytes))


@pytest.mark.parametrize(
    ("losses", "goal"),
    [
        (at_random(0.05), 0.98),
        (at_random(0.1), 0.96),
        (at_random(0.2), 0.93),
        (in_bursts(0.2, 3), 0.83),
    ],
    ids=["5%", "10%", "20%", "20% in bursts of 3"],
)
def test_speech_stays_intelligible(losses: Losses, goal: float) -> None:
    pcm = speech()
    frames = len(pcm) // 320
    sound = heard(pcm, losses(random.Random(5), frames - TAIL_FRAMES))
    # Not a frame too many or too few: what is heard stays in time.
    assert len(sound) == len(pcm)
    clean, degraded = (numpy.frombuffer(each, dtype="<i2").astype(float) for each in (pcm, sound))
    assert pystoi.stoi(clean, degraded, 8000) >= goal


def test_without_loss_nothing_changes_but_the_coding() -> None:
    pcm = speech()
    assert heard(pcm, set()) == PCMU.decode(PCMU.encode(pcm))
