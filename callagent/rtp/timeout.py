"""When media that does not come is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RtpSettings:
    """Seconds without a packet after which the media has timed out."""

    first_packet_timeout: float = 30.0
    packet_timeout: float = 20.0
    hold_timeout: float = 300.0
    """Also of a peer that is not expected to send: one that only listens, one whose silence is a description of noise
    (it may send nothing as long as the noise stays, RFC 3389 §3.4), and a caller whom the agent still asks to speak."""
    goodbye_timeout: float = 10.0
    """After an RTCP BYE that no packet follows: the peer's BYE is lost or late, or its stream goes on elsewhere."""


class MediaTimeout:
    """Expires once."""

    def __init__(self, settings: RtpSettings, now: float) -> None:
        self._settings = settings
        self._since = now
        self._held = False
        self._expired = False

    def restart(self, now: float) -> None:
        """From here on packets are expected."""
        self._since = now

    def hold(self, held: bool, now: float) -> None:
        self._held = held
        self._since = now

    def expire(
        self, heard: float | None, now: float, *, expected: bool = True, goodbye: float | None = None
    ) -> str | None:
        """What was waited for in vain; `heard` is when the last packet came.

        `expected`: whether the peer ought to send. `goodbye`: when its RTCP BYE came.
        """
        last = max(self._since, heard or self._since)
        what, limit = "no media", self._limit(heard, expected=expected)
        if goodbye is not None and goodbye >= last and expected and not self._held:
            ends = min(last + limit, goodbye + self._settings.goodbye_timeout)
            what, limit = "no media after a goodbye", ends - last
        if self._expired or now - last < limit:
            return None
        self._expired = True
        return f"{what} for {limit:.3g} s"

    def _limit(self, heard: float | None, *, expected: bool) -> float:
        if self._held or not expected:
            return self._settings.hold_timeout
        return self._settings.first_packet_timeout if heard is None else self._settings.packet_timeout
