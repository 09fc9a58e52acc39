"""The noise that a peer describes instead of sending it (RFC 3389): its level; its spectrum is left out (§3.2)."""

from __future__ import annotations

import audioop
import random
from functools import cache

from callagent.audio import FRAME_BYTES

_TABLE_SAMPLES = 4096
_TABLE_LEVEL = 4000.0
_OVERLOAD = 32768.0
"""The level of 0 dBov."""


class ComfortNoise:
    """Of one description."""

    def __init__(self, payload: bytes) -> None:
        """Raises `ValueError` for an empty payload."""
        if not payload:
            raise ValueError("comfort noise is not valid")
        self._factor = _OVERLOAD * 10 ** (-(payload[0] & 0x7F) / 20) / _TABLE_LEVEL

    def frame(self) -> bytes:
        start = 2 * random.randrange(_TABLE_SAMPLES - FRAME_BYTES // 2)
        return audioop.mul(_table()[start : start + FRAME_BYTES], 2, self._factor)


@cache
def _table() -> bytes:
    from array import array

    chance = random.Random(3389)
    samples = (round(chance.gauss(0, _TABLE_LEVEL)) for _ in range(_TABLE_SAMPLES))
    return array("h", (max(-32768, min(32767, sample)) for sample in samples)).tobytes()
