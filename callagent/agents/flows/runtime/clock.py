"""`conv.clock`: the time, which a test may pin."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo


class Clock:
    def __init__(
        self,
        instant: datetime.datetime | None = None,
        timezone: str | datetime.tzinfo | None = None,
    ) -> None:
        if instant is not None and instant.tzinfo is None:
            instant = instant.replace(tzinfo=datetime.UTC)
        self._instant = instant
        self.timezone: datetime.tzinfo = ZoneInfo(timezone) if isinstance(timezone, str) else timezone or datetime.UTC

    @property
    def pinned(self) -> datetime.datetime | None:
        """The instant that the clock stands at; None: it goes."""
        return self._instant

    def now(self) -> datetime.datetime:
        return (self._instant or datetime.datetime.now(datetime.UTC)).astimezone(self.timezone)

    def now_utc(self) -> datetime.datetime:
        return self.now().astimezone(datetime.UTC)

    def today(self) -> datetime.date:
        return self.now().date()
