"""Streams of packets for the tests, and the network that spoils them."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterable, Iterator

from callagent.audio import FRAME_SAMPLES
from callagent.rtp.codec import PCMU
from callagent.rtp.packet import RtpPacket

PEER = ("192.0.2.1", 4000)
Arrival = tuple[float, RtpPacket]


def tone(index: int, hertz: float = 200.0, samples: int = FRAME_SAMPLES) -> bytes:
    """Frame `index` of a steady tone."""
    start = index * samples
    return struct.pack(
        f"<{samples}h", *(int(8000 * math.sin(2 * math.pi * hertz * (start + n) / 8000)) for n in range(samples))
    )


def audio(
    count: int, *, ssrc: int = 7, sequence: int = 65500, timestamp: int = 4294967000, start: float = 0.0
) -> Iterator[Arrival]:
    """Packets every 20 ms; both numbers wrap early."""
    for index in range(count):
        yield (
            start + index * 0.02,
            RtpPacket(
                0,
                (sequence + index) & 0xFFFF,
                (timestamp + index * FRAME_SAMPLES) & 0xFFFFFFFF,
                ssrc,
                PCMU.encode(tone(index)),
            ),
        )


def lossy(arrivals: Iterable[Arrival], share: float, seed: int = 1) -> list[Arrival]:
    chance = random.Random(seed)
    return [arrival for arrival in arrivals if chance.random() >= share]


def jittery(arrivals: Iterable[Arrival], deviation: float, seed: int = 1) -> list[Arrival]:
    """Each packet late by a random time, which also puts them out of order."""
    chance = random.Random(seed)
    return sorted(((at + abs(chance.gauss(0, deviation)), packet) for at, packet in arrivals), key=lambda each: each[0])
