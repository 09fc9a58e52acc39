"""`conv.memory`: what earlier calls of the same caller left, stored in files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from callagent.agents.flows.format import RepeatCaller
from callagent.call_info import CallInfo
from callagent.log import get_logger

log = get_logger(__name__)
MAX_BYTES = 64 * 1024
"""Bytes of JSON that are stored for one caller."""
READ_SECONDS = 1.0
"""Deadline of the disk before the start function; after it the call goes on without a memory."""
WRITE_SECONDS = 5.0
"""Deadline of the disk after the end function."""
_LINE = "line"
_FIELDS = "fields"


class MemoryStore(Protocol):
    """Where callers' memories are stored, by an owner: project and caller."""

    async def read(self, owner: str) -> dict[str, Any]:
        """Return what was written for `owner` last; empty: nothing. Never raises for a lost or damaged entry."""

    async def write(self, owner: str, memory: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class FileMemory:
    """One JSON file per caller, named by a hash, so that a listing of the folder reveals no number."""

    folder: Path

    async def read(self, owner: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._read, self._path(owner))

    async def write(self, owner: str, memory: Mapping[str, Any]) -> None:
        text = json.dumps(memory, default=str)
        if len(text) > MAX_BYTES:
            log.error("memory_not_kept", reason=f"{len(text)} bytes are too many")
            return
        await asyncio.to_thread(self._write, self._path(owner), text)

    def _path(self, owner: str) -> Path:
        return self.folder / f"{hashlib.sha256(owner.encode()).hexdigest()[:40]}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.error("memory_unreadable", file=path.name, error=str(error))
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, path: Path, text: str) -> None:
        """Write a new file and rename it, so that a reader finds the old memory or the new one, never a part."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".new")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
        except OSError as error:
            log.error("memory_not_kept", file=path.name, error=str(error))


@dataclass(slots=True)
class CallerMemory:
    """The memory of one call's caller: read before the start function, written after the end function."""

    store: MemoryStore | None
    project: str
    repeat_caller: RepeatCaller
    owner: str | None = None
    kept: dict[str, Any] | None = None

    async def open(self, info: CallInfo, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Read the memory and return it as the worker's context: `memory` and `line_memory`."""
        self.owner = self._identifier(info, attributes, {})
        if self.store is None or self.owner is None:
            return {}
        try:
            async with asyncio.timeout(READ_SECONDS):
                self.kept = await self.store.read(self.owner)
        except TimeoutError:
            log.error("memory_not_read", error=f"the disk did not answer within {READ_SECONDS:g} s")
            return {}
        return {"memory": self.kept.get(_FIELDS) or {}, "line_memory": self.kept.get(_LINE) or {}}

    async def close(
        self,
        info: CallInfo,
        state: Mapping[str, Any],
        *,
        now: datetime,
        language: str,
        handoff: Mapping[str, Any] | None,
    ) -> None:
        """Store the state keys that the project names; keys stored by earlier calls stay."""
        owner = self.owner or self._identifier(info, {}, state)
        if self.store is None or owner is None:
            return
        kept = self.kept if self.kept is not None else await self.store.read(owner)
        keys = self.repeat_caller.state_keys
        fields = {**(kept.get(_FIELDS) or {}), **{key: state[key] for key in keys if key in state}}
        line = kept.get(_LINE) or {}
        reasons = [*(line.get("handoff_reasons") or ()), *([handoff.get("reason")] if handoff else ())][-20:]
        known = {
            "returning": True,
            "contact_count": int(line.get("contact_count") or 0) + 1,
            "last_seen": now.isoformat(),
            "preferred_language": language,
            "handoff_count": int(line.get("handoff_count") or 0) + bool(handoff),
            "handoff_reasons": reasons,
            "top_handoff_reason": max(reasons, key=reasons.count, default=None),
        }
        await self.store.write(owner, {_FIELDS: fields, _LINE: known})

    def _identifier(self, info: CallInfo, attributes: Mapping[str, Any], state: Mapping[str, Any]) -> str | None:
        """Return who the caller is within this project; None where the caller cannot be told or is excluded."""
        if not self.repeat_caller.enabled:
            return None
        kind, _, name = self.repeat_caller.identifier_source.partition(":")
        places: dict[str, Mapping[str, Any]] = {
            "sip_headers": info.headers,
            "integration_attributes": attributes,
            "state": state,
        }
        value = places[kind].get(name) if kind in places else info.caller
        if not value or str(value) in self.repeat_caller.excluded:
            return None
        return f"{self.project}\n{value}"
