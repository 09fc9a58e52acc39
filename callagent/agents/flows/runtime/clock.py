"""`conv.clock`, which a test may pin, and the `datetime` module as a project sees it while the clock is pinned.

Projects use `datetime.now()` as often as `conv.clock`. The stand-in for the module creates ordinary dates and times,
which can be pickled.
"""

from __future__ import annotations

import datetime
from types import ModuleType
from typing import Any
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
        """The instant at which the clock is pinned; None: it runs."""
        return self._instant

    def now(self) -> datetime.datetime:
        return (self._instant or datetime.datetime.now(datetime.UTC)).astimezone(self.timezone)

    def now_utc(self) -> datetime.datetime:
        return self.now().astimezone(datetime.UTC)

    def today(self) -> datetime.date:
        return self.now().date()


class _StandIn(type):
    """Metaclass of stand-ins: `isinstance` and `issubclass` treat one as the class that it stands for."""

    _stands_for: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._stands_for)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._stands_for)


def pinned_datetime(instant: datetime.datetime) -> ModuleType:
    """Return a stand-in for the module `datetime` whose current time is `instant`, which has a time zone."""

    class Date(datetime.date, metaclass=_StandIn):
        _stands_for = datetime.date

        # An ordinary date, which can be pickled: the stand-in itself never has an instance.
        def __new__(cls, *given: Any, **named: Any) -> Any:
            return datetime.date(*given, **named)

        @classmethod
        def today(cls) -> Any:
            return instant.astimezone().date()

    class DateTime(datetime.datetime, metaclass=_StandIn):
        _stands_for = datetime.datetime

        def __new__(cls, *given: Any, **named: Any) -> Any:
            return datetime.datetime(*given, **named)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            # Without a zone: the machine's local time, as the real one returns it.
            return instant.astimezone().replace(tzinfo=None) if tz is None else instant.astimezone(tz)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

        @classmethod
        def utcnow(cls) -> Any:
            return instant.astimezone(datetime.UTC).replace(tzinfo=None)

    module = ModuleType("datetime", datetime.__doc__)
    module.__dict__.update(vars(datetime), date=Date, datetime=DateTime)
    return module


def replace_in(namespace: dict[str, object], pinned: ModuleType) -> None:
    """Replace the real module and classes by the pinned ones in a module's namespace."""
    # Compared by identity: the objects of a project's module may have comparison methods, which must not run here.
    stand_ins = {id(datetime): pinned, id(datetime.datetime): pinned.datetime, id(datetime.date): pinned.date}
    for name, value in list(namespace.items()):
        if id(value) in stand_ins:
            namespace[name] = stand_ins[id(value)]
