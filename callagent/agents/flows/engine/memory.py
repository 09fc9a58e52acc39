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
from typing import Protocol

from callagent.agents.flows.format import RepeatCaller
from callagent.call_info import CallInfo
from callagent.json_values import JsonObject, MutableJsonObject, list_at, number_at, object_at
from callagent.log import get_logger

log = get_logger(__name__)
MAX_BYTES = 64 * 1024
"""Bytes of JSON that are stored for one caller."""
READ_SECONDS = 1.0
"""Deadline of the disk before the start function; after it the call goes on without a memory."""
WRITE_SECONDS = 5.0
"""Deadline of the disk after the end function."""
MAX_REASONS = 20
"""Reasons of handoffs that are remembered, the newest."""
_LINE = "line"
_FIELDS = "fields"


class MemoryStore(Protocol):
    """Where callers' memories are stored, by an owner: project and caller."""

    async def read(self, owner: str) -> MutableJsonObject:
        """Return what was written for `owner` last; empty: nothing. Never raises for a lost or damaged entry."""

    async def write(self, owner: str, memory: JsonObject) -> None: ...


@dataclass(frozen=True, slots=True)
class FileMemory:
    """One JSON file per caller, named by a hash, so that a listing of the folder reveals no number."""

    folder: Path

    async def read(self, owner: str) -> MutableJsonObject:
        return await asyncio.to_thread(self._read, self._path(owner))

    async def write(self, owner: str, memory: JsonObject) -> None:
        text = json.dumps(memory, default=str)
        # The old memory stays: a part of the new one would be worth less.
        if len(text) > MAX_BYTES:
            log.error("memory_not_kept", reason=f"{len(text)} bytes are too many")
            return
        await asyncio.to_thread(self._write, self._path(owner), text)

    def _path(self, owner: str) -> Path:
        return self.folder / f"{hashlib.sha256(owner.encode()).hexdigest()[:40]}.json"

    def _read(self, path: Path) -> MutableJsonObject:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        # A damaged file counts as none. The call must not fail because of what an earlier one has left.
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
            log.error("memory_not_kept", file=path.name, error=str(error))


@dataclass(slots=True)
class CallerMemory:
    """The memory of one call's caller: read before the start function, written after the end function."""

    store: MemoryStore | None
    project: str
    repeat_caller: RepeatCaller
    owner: str | None = None
    kept: MutableJsonObject | None = None

    async def open(self, info: CallInfo, attributes: Mapping[str, object]) -> MutableJsonObject:
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
        return {"memory": object_at(self.kept, _FIELDS), "line_memory": object_at(self.kept, _LINE)}

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
        # Where the state names the caller, that is known only now: such a caller's memory was not read at the start.
        owner = self.owner or self._identifier(info, {}, state)
        if self.store is None or owner is None:
            return
        # Read again where it was not: to write without it would lose what the earlier calls have left.
        kept = self.kept if self.kept is not None else await self.store.read(owner)
        keys = self.repeat_caller.state_keys
        fields = {**object_at(kept, _FIELDS), **{key: state[key] for key in keys if key in state}}
        line = object_at(kept, _LINE)
        reasons = [*list_at(line, "handoff_reasons"), *([handoff.get("reason")] if handoff else ())][-MAX_REASONS:]
        known: JsonObject = {
            "returning": True,
            "contact_count": int(number_at(line, "contact_count")) + 1,
            "last_seen": now.isoformat(),
            "preferred_language": language,
            "handoff_count": int(number_at(line, "handoff_count")) + bool(handoff),
            "handoff_reasons": reasons,
            "top_handoff_reason": max(reasons, key=reasons.count, default=None),
        }
        await self.store.write(owner, {_FIELDS: fields, _LINE: known})

    def _identifier(self, info: CallInfo, attributes: Mapping[str, object], state: JsonObject) -> str | None:
        """Return who the caller is within this project; None where the caller cannot be told or is excluded."""
        if not self.repeat_caller.enabled:
            return None
        kind, _, name = self.repeat_caller.identifier_source.partition(":")
        # The state is asked for at the end of the call only: at its start it is empty.
        places: dict[str, Mapping[str, object]] = {
            "sip_headers": info.headers,
            "integration_attributes": attributes,
            "state": state,
        }
        value = places[kind].get(name) if kind in places else info.caller
        if not value or str(value) in self.repeat_caller.excluded:
            return None
        # The project is part of the owner: the same caller has a memory with each of them.
        return f"{self.project}\n{value}"
