"""A link that loses, delays, swaps and doubles datagrams: as a model for clocks that jump, and between real sockets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Damage:
    loss: float = 0.0
    jitter: float = 0.0
    """Seconds: each datagram is late by anything up to it, which also changes their order."""
    reorder: float = 0.0
    """The share that is late by one packet more."""
    duplicates: float = 0.0


JITTERY = 0.05
BAD = {share: Damage(share, JITTERY, reorder=0.05, duplicates=0.02) for share in (0.05, 0.1, 0.2)}
"""By the share that is lost."""


class LossyLink:
    """The model: what becomes of each datagram."""

    def __init__(self, damage: Damage, seed: int) -> None:
        self._damage = damage
        self._chance = random.Random(seed)
        self.lost = 0
        self.passed = 0

    def delays(self) -> Iterator[float]:
        """Of each copy that arrives."""
        damage, chance = self._damage, self._chance
        if chance.random() < damage.loss:
            self.lost += 1
            return
        self.passed += 1
        for _ in range(1 + (chance.random() < damage.duplicates)):
            yield chance.uniform(0.0, damage.jitter) + (0.03 if chance.random() < damage.reorder else 0.0)


class _End(asyncio.DatagramProtocol):
    """One socket of a relay; hands on what comes in at the other."""

    def __init__(self, link: LossyLink, change: Callable[[bytes], bytes]) -> None:
        self.peer: Address = ("", 0)
        self.other: _End
        self.transport: asyncio.DatagramTransport
        self._link = link
        self._change = change

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    @property
    def address(self) -> Address:
        host, port = self.transport.get_extra_info("sockname")[:2]
        return (host, port)

    def datagram_received(self, data: bytes, source: Address) -> None:
        for delay in self._link.delays():
            asyncio.get_running_loop().call_later(delay, self.other.send, self._change(data))

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.sendto(data, self.peer)


class Relay:
    """Between a left and a right peer, who each talk to the end at their side."""

    def __init__(self, left: _End, right: _End) -> None:
        self.left = left
        self.right = right

    def join(self, left: Address, right: Address) -> None:
        self.left.peer, self.right.peer = left, right


@asynccontextmanager
async def relay(
    link: LossyLink,
    to_right: Callable[[bytes], bytes] = lambda data: data,
    to_left: Callable[[bytes], bytes] = lambda data: data,
) -> AsyncIterator[Relay]:
    loop = asyncio.get_running_loop()
    ends = []
    for change in (to_right, to_left):
        _, end = await loop.create_datagram_endpoint(lambda each=change: _End(link, each), ("127.0.0.1", 0))
        ends.append(end)
    left, right = ends
    left.other, right.other = right, left
    try:
        yield Relay(left, right)
    finally:
        left.transport.close()
        right.transport.close()
