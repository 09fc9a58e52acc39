"""Durations as the API writes them."""

from __future__ import annotations

import re
from typing import Any


def seconds_of(value: Any) -> float:
    """Of a duration as `5s` or a number; 0: none."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*s?\s*", str(value)) if value is not None else None
    return float(found[1]) if found else 0.0
