"""When media that does not come is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RtpSettings:
    """Seconds without a packet after which the media has timed out."""

    first_packet_timeout: float = 30.0
    packet_timeout: float = 20.0
    hold_timeout: float = 300.0


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

    def expire(self, heard: float | None, now: float) -> str | None:
        """What was waited for in vain; `heard` is when the last packet came."""
        if self._held:
            limit = self._settings.hold_timeout
        elif heard is None:
            limit = self._settings.first_packet_timeout
        else:
            limit = self._settings.packet_timeout
        if self._expired or now - max(self._since, heard or self._since) < limit:
            return None
        self._expired = True
        return f"no media for {limit:g} s"
