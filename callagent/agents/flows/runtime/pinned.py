"""The `datetime` module as a project sees it while the clock is pinned: `now()` and `today()` are the pinned instant.

Projects ask `datetime.now()` as often as `conv.clock`. Objects that are made are ordinary dates and times: they can be
pickled and outlive the pinning.
"""

from __future__ import annotations

import datetime as real
from types import ModuleType
from typing import Any


def pinned_datetime(instant: real.datetime) -> ModuleType:
    """`instant` has a zone. A stand-in for the module `datetime`."""

    class Meta(type):
        _stands_for: type

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, cls._stands_for)

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return issubclass(subclass, cls._stands_for)

    class Date(real.date, metaclass=Meta):
        _stands_for = real.date

        def __new__(cls, *given: Any, **named: Any) -> Any:
            return real.date(*given, **named)

        @classmethod
        def today(cls) -> Any:
            return instant.astimezone().date()

    class DateTime(real.datetime, metaclass=Meta):
        _stands_for = real.datetime

        def __new__(cls, *given: Any, **named: Any) -> Any:
            return real.datetime(*given, **named)

        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> Any:
            return instant.astimezone().replace(tzinfo=None) if tz is None else instant.astimezone(tz)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

        @classmethod
        def utcnow(cls) -> Any:
            return instant.astimezone(real.UTC).replace(tzinfo=None)

    module = ModuleType("datetime", real.__doc__)
    module.__dict__.update(vars(real), date=Date, datetime=DateTime)
    return module


def replace_in(namespace: dict[str, Any], pinned: ModuleType) -> None:
    """Put the pinned classes where a module has the real ones."""
    stand_ins = {id(real): pinned, id(real.datetime): pinned.datetime, id(real.date): pinned.date}
    for name, value in list(namespace.items()):
        if id(value) in stand_ins:
            namespace[name] = stand_ins[id(value)]
