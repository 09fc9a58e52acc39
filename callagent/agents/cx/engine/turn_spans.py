"""How long the parts of a turn took, as the Session API tells it: one span for the turn, its parts below it.

Parts are requests to the model, callbacks around agents and models, and tools; callbacks around a tool that is Python
are in the tool's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

MAX_SPANS = 500
"""Of one turn; what comes later is in the turn's time only."""
Plain = dict[str, Any]


class Spans:
    """Of one call; emptied after each turn."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began = clock()
        self._children: list[tuple[float, Plain]] = []

    def begin(self) -> None:
        """A turn starts."""
        self._began = self._clock()
        self._children.clear()

    @contextmanager
    def measured(self, name: str, **attributes: Any) -> Iterator[Plain]:
        """A part that begins and ends here; attributes may be added to what it gives."""
        began = self._clock()
        try:
            yield attributes
        finally:
            self.add(name, began, self._clock(), attributes)

    def ended(self, name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
        """A part that ends now."""
        now = self._clock()
        self.add(name, now - seconds, now, attributes)

    def add(self, name: str, began: float, ended: float, attributes: Mapping[str, Any]) -> None:
        if len(self._children) < MAX_SPANS:
            self._children.append((began, span(name, began, ended, attributes)))

    def whole(self, attributes: Mapping[str, Any]) -> Plain:
        """The turn's span; its parts in the order in which they began."""
        children = [each for _, each in sorted(self._children, key=lambda child: child[0])]
        return {**span("turn", self._began, self._clock(), attributes), "childSpans": children}


def span(name: str, began: float, ended: float, attributes: Mapping[str, Any]) -> Plain:
    """In the API's form: times in RFC 3339, durations in seconds."""
    return {
        "name": name,
        "startTime": _instant(began),
        "endTime": _instant(ended),
        "duration": f"{max(0.0, ended - began):.6f}s",
        "attributes": {key: value for key, value in attributes.items() if value not in (None, "")},
    }


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
