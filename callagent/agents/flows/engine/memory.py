"""`conv.memory`: values that earlier calls of the same caller have stored in files."""

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
from typing import Protocol

from callagent.agents.flows.format import RepeatCaller
from callagent.call_info import CallInfo
from callagent.json_values import JsonObject, MutableJsonObject, list_at, number_at, object_at
from callagent.log import get_logger

log = get_logger(__name__)
MAX_BYTES = 64 * 1024
"""Bytes of JSON that are stored for one caller."""
READ_SECONDS = 1.0
"""Deadline for reading before the start function; after it the call goes on without a memory."""
WRITE_SECONDS = 5.0
"""Deadline for writing after the end function."""
MAX_REASONS = 20
"""The newest reasons of handoffs that are stored."""
_LINE = "line"
"""Key of the statistics of the caller's calls (`conv.memory.line_memory`)."""
_FIELDS = "fields"
"""Key of the values from `conv.state`."""


class MemoryStore(Protocol):
    """A store of callers' memories. An owner is the key of one caller's memory in one project."""

    async def read(self, owner: str) -> MutableJsonObject:
        """Return the memory last written for `owner`; empty: none, or one that is damaged."""

    async def write(self, owner: str, memory: JsonObject) -> None: ...


@dataclass(frozen=True, slots=True)
class FileMemory:
    """One JSON file per caller, named by a hash, so that a listing of the folder reveals no number."""

    folder: Path

    async def read(self, owner: str) -> MutableJsonObject:
        return await asyncio.to_thread(self._read, self._path(owner))

    async def write(self, owner: str, memory: JsonObject) -> None:
        text = json.dumps(memory, default=str)
        # The old memory stays, because a part of the new one would be worth less.
        if len(text) > MAX_BYTES:
            log.error("memory_not_stored", error=f"{len(text)} bytes are more than the limit of {MAX_BYTES}")
            return
        await asyncio.to_thread(self._write, self._path(owner), text)

    def _path(self, owner: str) -> Path:
        return self.folder / f"{hashlib.sha256(owner.encode()).hexdigest()[:40]}.json"

    def _read(self, path: Path) -> MutableJsonObject:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        # A damaged file counts as none, so that an earlier call's file cannot make this call fail.
        except (OSError, ValueError) as error:
            log.error("memory_unreadable", file=path.name, error=str(error))
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, path: Path, text: str) -> None:
        """Write a new file and rename it, so that a reader finds the old memory or the new one, never a part."""
        try:
            # Other users of the machine must not read what callers have said.
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".new")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
        except OSError as error:
            log.error("memory_not_stored", file=path.name, error=str(error))


@dataclass(slots=True)
class CallerMemory:
    """The memory of one call's caller: read before the start function, written after the end function."""

    store: MemoryStore | None
    project: str
    repeat_caller: RepeatCaller
    owner: str | None = None
    stored: MutableJsonObject | None = None
    """The memory as it was read; None: not read."""

    async def open(self, info: CallInfo, attributes: Mapping[str, object]) -> MutableJsonObject:
        """Read the memory and return it as the worker's context: `memory` and `line_memory`."""
        self.owner = self._find_owner(info, attributes, {})
        if self.store is None or self.owner is None:
            return {}
        try:
            async with asyncio.timeout(READ_SECONDS):
                self.stored = await self.store.read(self.owner)
        except TimeoutError:
            log.error("memory_not_read", error=f"the disk did not answer within {READ_SECONDS:g} s")
            return {}
        return {"memory": object_at(self.stored, _FIELDS), "line_memory": object_at(self.stored, _LINE)}

    async def close(
        self,
        info: CallInfo,
        state: JsonObject,
        *,
        now: datetime,
        language: str,
        handoff: JsonObject | None,
    ) -> None:
        """Store the state keys that the project names; keys stored by earlier calls stay."""
        # If a state key identifies the caller, the owner is known only now.
        owner = self.owner or self._find_owner(info, {}, state)
        if self.store is None or owner is None:
            return
        # A memory that was not read at the start is read now, because writing without it would lose its values.
        stored = self.stored if self.stored is not None else await self.store.read(owner)
        keys = self.repeat_caller.state_keys
        fields = {**object_at(stored, _FIELDS), **{key: state[key] for key in keys if key in state}}
        line = object_at(stored, _LINE)
        reasons = [*list_at(line, "handoff_reasons"), *([handoff.get("reason")] if handoff else ())][-MAX_REASONS:]
        statistics: JsonObject = {
            "returning": True,
            "contact_count": int(number_at(line, "contact_count")) + 1,
            "last_seen": now.isoformat(),
            "preferred_language": language,
            "handoff_count": int(number_at(line, "handoff_count")) + bool(handoff),
            "handoff_reasons": reasons,
            "top_handoff_reason": max(reasons, key=reasons.count, default=None),
        }
        await self.store.write(owner, {_FIELDS: fields, _LINE: statistics})

    def _find_owner(self, info: CallInfo, attributes: Mapping[str, object], state: JsonObject) -> str | None:
        """Return the owner of the caller's memory in this project; None: the caller is unknown or excluded."""
        if not self.repeat_caller.enabled:
            return None
        kind, _, name = self.repeat_caller.identifier_source.partition(":")
        # `state` is empty at the start of the call.
        places: dict[str, Mapping[str, object]] = {
            "sip_headers": info.headers,
            "integration_attributes": attributes,
            "state": state,
        }
        value = places[kind].get(name) if kind in places else info.caller
        if not value or str(value) in self.repeat_caller.excluded:
            return None
        # The project is part of the owner, because a caller has a memory of its own in each project.
        return f"{self.project}\n{value}"
