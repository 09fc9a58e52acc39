"""API and dashboard on loopback, over a store of made-up calls."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from aiohttp import web

from callagent.agents import Handoff
from callagent.call import AudioTap, CallState
from callagent.call_info import EndReason, RecordingWish
from callagent.carriers.browser.routes import PhoneRoutes
from callagent.carriers.twilio.call_control import TwilioSettings
from callagent.carriers.twilio.webhooks import TwilioRoutes
from callagent.records import CallRecord, Spoken, Store, TurnEntry
from callagent.records.reader import Reader, ReadingProcess, SqliteDatabase
from callagent.records.retention import delete_caller
from callagent.session_api import SessionRoutes
from callagent.sip import TlsSettings
from callagent.turns import FloorState
from callagent.web import Routes, ServerHooks, captions_of, make_app
from callagent.web.access import Access
from callagent.web.accounts import Account
from callagent.web.api import Dashboard
from tests.records.synthetic import synthetic_records
from tests.web.entry import access_of, listening

HOOKS = ServerHooks(lambda leg: None, lambda: True, lambda: False, lambda: "")


@dataclass
class LiveCall:
    """What a watcher sees of a call that is on."""

    record: CallRecord
    state: Enum = CallState.TALKING
    floor: Enum = FloorState.LISTENING
    partial: str = ""
    ended: list[EndReason] = field(default_factory=list)

    taken_over: list[Handoff] = field(default_factory=list)
    wishes: list[RecordingWish] = field(default_factory=list)
    taps: list[AudioTap] = field(default_factory=list)
    answered: bool = True

    def end(self, reason: EndReason) -> None:
        self.ended.append(reason)

    def control_recording(self, wish: RecordingWish) -> None:
        self.wishes.append(wish)

    def take_over(self, handoff: Handoff) -> None:
        self.taken_over.append(handoff)

    def listen_in(self) -> tuple[AudioTap, Callable[[], None]] | None:
        if not self.answered:
            return None
        tap = AudioTap()
        self.taps.append(tap)
        return tap, lambda: self.taps.remove(tap)


@dataclass
class Served:
    url: str
    store: Store
    records: list[CallRecord]
    calls: dict[str, Any]
    access: Access
    app: web.Application


def live_call(call_id: str = "live1") -> LiveCall:
    record = CallRecord(
        id=call_id, wire="sip", project_id="parcels", from_number="+15550100", started_at="2026-01-02T03:04:05Z"
    )
    record.turns = [
        TurnEntry(number=0, spoken=[Spoken("Hello, how can I help?", "speech", 0.5, 2.0)]),
        TurnEntry(number=1, user_input="where is my parcel", flow="parcel_service", step="welcome"),
    ]
    return LiveCall(record)


def write_recording(path: Path, seconds: float = 2.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        half = int(8000 * seconds / 2)
        file.writeframes(b"\x00\x40\x00\x00" * half + b"\x00\x00\x00\x20" * half)


@asynccontextmanager
async def serve_dashboard(
    folder: Path,
    accounts: Sequence[Account] = (),
    *,
    count: int = 30,
    projects: Sequence[Any] = (),
    change: Any = None,
    ways_in: Mapping[str, Any] | None = None,
    twilio: TwilioSettings | None = None,
    per_address: int = 256,
    tls: TlsSettings | None = None,
    **more: Any,
) -> AsyncIterator[Served]:
    records = list(synthetic_records(count))
    recording = folder / "recordings" / f"{records[-1].id}.wav"
    write_recording(recording)
    records[-1].recording = str(recording)
    if change:
        change(records)
    store = Store(folder / "calls.db")
    for record in records:
        await store.ended(record)
        await store.metric(record.id, 1, "PARCEL_FOUND", True)
    process = ReadingProcess()
    reader = Reader(SqliteDatabase(store.path, process), process)
    calls: dict[str, Any] = {}

    async def forget(number: str) -> int:
        return await delete_caller(store, number)

    recordings = folder / "recordings"
    dashboard = Dashboard(reader, lambda: calls, lambda: projects, recordings, forget, **more)
    access = access_of(accounts, **(ways_in or {}))
    hooks = replace(HOOKS, captions=lambda call_id: captions_of(calls[call_id]) if call_id in calls else None)
    added: list[Routes] = [PhoneRoutes(hooks), SessionRoutes(lambda: projects, hooks)]
    if twilio is not None:
        added.append(TwilioRoutes(twilio, hooks))
    app = make_app(hooks, added, dashboard, access)
    try:
        async with listening(app, access, per_address=per_address, tls=tls) as url:
            yield Served(url, store, records, calls, access, app)
    finally:
        await reader.close()
        await store.close()
