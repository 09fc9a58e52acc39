"""The files of a call: what its code keeps under names, version by version. Nothing of it is written anywhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from callagent.errors import CallagentError

Part = Mapping[str, Any]
"""`{"text"}` or `{"inline_data": {"mime_type", "data"}}`."""
Files = dict[str, list[Part]]
"""Versions by name."""
USER = "user:"
"""Names that begin so are the caller's: they are there in the caller's next call."""
MAX_BYTES = 8 * 1024 * 1024
"""Of all versions of a call's files."""
MAX_CALLERS_BYTES = 1024 * 1024
"""Of those of the caller."""
MAX_VERSIONS = 200
"""Of all files together."""
_TEXTS = ("application/csv", "application/json", "application/svg+xml", "application/xml")
_ENDINGS = (".csv", ".txt", ".json", ".xml")


class ArtifactRefused(CallagentError):
    """A call's files take no more."""


class Artifacts:
    def __init__(self, callers: Files | None = None, keep: Callable[[Files], None] = lambda files: None) -> None:
        """`callers`: the caller's own, which outlive the call; `keep` is told when they change."""
        self._own: Files = {}
        self._callers: Files = {} if callers is None else callers
        self._keep = keep

    def save(self, name: str, part: Part) -> int:
        """The version's number, from 0. Raises `ArtifactRefused`."""
        files, most = self._files(name), MAX_CALLERS_BYTES if name.startswith(USER) else MAX_BYTES
        versions = [each for row in files.values() for each in row]
        size = _size(part)
        if size is None:
            raise ArtifactRefused(f"'{name}': a text or data is needed")
        if len(versions) >= MAX_VERSIONS or size + sum(_size(each) or 0 for each in versions) > most:
            raise ArtifactRefused(f"'{name}': {MAX_VERSIONS} artifacts of {most >> 20} MiB together are kept, no more")
        files.setdefault(name, []).append(copy.deepcopy(part))
        if files is self._callers:
            self._keep(files)
        return len(files[name]) - 1

    def load(self, name: str, version: int | None = None) -> Part | None:
        """The newest one without a version; None: there is none."""
        versions = self._files(name).get(name) or []
        if version is None:
            return versions[-1] if versions else None
        return versions[version] if 0 <= version < len(versions) else None

    def names(self) -> list[str]:
        return sorted([*self._own, *self._callers])

    def find(self, wanted: str) -> Part | None:
        """By a name as models give it: they leave `user:` away."""
        found = self.load(wanted)
        return found if found is not None else self.load(f"{USER}{wanted}")

    def _files(self, name: str) -> Files:
        return self._callers if name.startswith(USER) else self._own


def readable(part: Part, name: str) -> str:
    """An artifact as a model can read it."""
    blob = part.get("inline_data")
    if not isinstance(blob, Mapping):
        return str(part.get("text") or "")
    kind = str(blob.get("mime_type") or "application/octet-stream").partition(";")[0].strip().lower()
    data = blob.get("data") or b""
    raw = data if isinstance(data, bytes) else str(data).encode()
    if kind.startswith("text/") or kind in _TEXTS or name.lower().endswith(_ENDINGS):
        return raw.decode("utf-8", "replace")
    size = len(raw) / 1024
    return f"[Binary artifact: {name}, type: {kind}, size: {size:.1f} KB. Content cannot be displayed inline.]"


def _size(part: Part) -> int | None:
    """Bytes; None: it is neither text nor data."""
    if isinstance(part.get("text"), str):
        return len(part["text"].encode())
    blob = part.get("inline_data")
    data = blob.get("data") if isinstance(blob, Mapping) else None
    return len(data) if isinstance(data, (bytes, str)) else None
