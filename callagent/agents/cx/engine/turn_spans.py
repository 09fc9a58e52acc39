"""Spans of a turn as the Session API reports them (`diagnosticInfo.rootSpan`): the turn, and its parts below it.

Parts are requests to the model, callbacks around agents and models, and tools. Callbacks around a Python tool run in
the worker together with it and are part of the tool's span.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

MAX_SPANS = 500
"""Spans kept for one turn; later parts count in the turn's own duration only."""
Plain = dict[str, Any]


class TurnSpans:
    """The spans of the running turn of one call."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began = clock()
        self._children: list[tuple[float, Plain]] = []

    def begin(self) -> None:
        """Begin a turn: forget the spans of the last one."""
        self._began = self._clock()
        self._children.clear()

    @contextmanager
    def measured(self, name: str, **attributes: Any) -> Iterator[Plain]:
        """Measure the body as a span. The body may add attributes to the mapping that it is given."""
        began = self._clock()
        try:
            yield attributes
        finally:
            self.add(name, began, self._clock(), attributes)

    def add_ended(self, name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
        """Add a span that took so many seconds and ends now."""
        now = self._clock()
        self.add(name, now - seconds, now, attributes)

    def add(self, name: str, began: float, ended: float, attributes: Mapping[str, Any]) -> None:
        if len(self._children) < MAX_SPANS:
            self._children.append((began, span(name, began, ended, attributes)))

    def root_span(self, attributes: Mapping[str, Any]) -> Plain:
        """Return the turn's span with its parts, in the order in which they began."""
        children = [each for _, each in sorted(self._children, key=lambda child: child[0])]
        return {**span("turn", self._began, self._clock(), attributes), "childSpans": children}


def span(name: str, began: float, ended: float, attributes: Mapping[str, Any]) -> Plain:
    """Return a span in the API's form: times by RFC 3339, the duration as seconds with an `s`."""
    return {
        "name": name,
        "startTime": _instant(began),
        "endTime": _instant(ended),
        "duration": f"{max(0.0, ended - began):.6f}s",
        "attributes": {key: value for key, value in attributes.items() if value not in (None, "")},
    }


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
