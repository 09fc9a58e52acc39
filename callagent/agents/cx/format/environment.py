"""`environment.json`: what an export leaves open because it differs from place to place.

Beside values of the app, its tools and its toolsets it has the servers of their OpenAPI descriptions (`url`). Wherever
the export has `$env_var`, the value of the same place is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FILE = "environment.json"
OPEN = "$env_var"


class Environment:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def app(self, data: dict[str, Any]) -> dict[str, Any]:
        """The app's main file, filled in."""
        return _filled(data, self._data.get("app"))

    def object(self, kind: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """A tool or toolset by its folder or as it is displayed, filled in."""
        own = self._data.get(kind)
        known = own if isinstance(own, Mapping) else {}
        return _filled(data, known.get(name) or known.get(str(data.get("displayName"))))


def with_server(schema: str, own: Mapping[str, Any]) -> str:
    """An OpenAPI description with the server of its tool or toolset."""
    url = own.get("url")
    return schema.replace(OPEN, url) if isinstance(url, str) and url != OPEN else schema


def _filled(data: dict[str, Any], values: Any) -> dict[str, Any]:
    """Only what is open or not there: the rest is the app's."""
    if not isinstance(values, Mapping):
        return data
    filled = dict(data)
    for key, value in values.items():
        had = filled.get(key)
        if isinstance(had, dict) and isinstance(value, Mapping):
            filled[key] = _filled(had, value)
        elif had is None or had == OPEN:
            filled[key] = value
    return filled
