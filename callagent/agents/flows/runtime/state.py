"""Dictionaries of the project API that are read and written as attributes."""

from __future__ import annotations

from typing import Any, NoReturn


class State(dict[Any, Any]):
    """`conv.state`: a missing attribute is None, a missing item a `KeyError`."""

    def __getattr__(self, name: str) -> Any:
        # Pickle and copy look for these; None in their place would be called.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        self.pop(name, None)


class Variant(State):
    """The active variant's attributes; falsy when the project has none."""


class Entities(State):
    """What the caller has given, by entity name; a missing one is None."""


class ReadOnlyDict(dict[Any, Any]):
    """`conv.real_time_config`: reads like a dict, refuses to be changed."""

    def _refuse(self, *_arguments: Any, **_more: Any) -> NoReturn:
        raise TypeError("this mapping is read-only")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse


RealtimeConfig = ReadOnlyDict
