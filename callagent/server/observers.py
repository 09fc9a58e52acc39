"""What the server does with the calls' records: metrics, webhooks, JSON lines, retention, outbox and dashboard."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.agents import AgentProject
from callagent.call_info import CallInfo
from callagent.config import Config
from callagent.errors import UserError
from callagent.log import get_logger
from callagent.observability import Metrics
from callagent.records import (
    CallRecord,
    JsonLines,
    RecordingConversion,
    RecordWriter,
    Redaction,
    Store,
    WebhookReceiver,
    Webhooks,
    delete_caller,
    delete_expired,
    json_text,
    require_converter,
)
from callagent.workers import WORKER_FIGURES

if TYPE_CHECKING:
    from callagent.call import Call
    from callagent.observability import Telemetry
    from callagent.records import RowCopier
    from callagent.web import Dashboard

log = get_logger(__name__)


class Observers:
    """Receivers of the start and the record of each call, as the settings name them. Made by `open`."""

    def __init__(self, config: Config, writer: RecordWriter) -> None:
        self._config = config
        self.writer = writer
        self.store = writer.store
        self._redaction = redaction_of(config)
        self._outbox: RowCopier | None = None
        self._conversion: RecordingConversion | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._webhooks = Webhooks(
            [WebhookReceiver(one.url, one.secret.get_secret_value(), one.events) for one in config.webhooks]
        )
        self._telemetry: Telemetry | None = None
        self._json_lines: JsonLines | None = None
        self.metrics = Metrics()

    @classmethod
    async def open(cls, config: Config, writer: RecordWriter, stack: AsyncExitStack) -> Observers:
        """Start the receivers and background tasks that the settings ask for; `stack` ends them. Raises `UserError`."""
        # Checked at the start: a missing ffmpeg must not be noticed only when the first recording has ended.
        require_converter(config.records.recording_format)
        observers, store = cls(config, writer), writer.store
        await observers._webhooks.start()
        stack.push_async_callback(observers._webhooks.close)
        stack.push_async_callback(observers._stop)
        if config.telemetry.endpoint:
            observers._telemetry = open_telemetry(config)
            stack.push_async_callback(observers._telemetry.close)
        records = config.records
        if records.json_lines:
            observers._json_lines = JsonLines(Path(records.json_lines))
            stack.push_async_callback(observers._json_lines.close)
        if records.keep_days or records.keep_recording_days:
            observers._run(delete_expired(store, records.keep_days, records.keep_recording_days))
        if url := records.database.get_secret_value():
            observers._outbox = open_outbox(store, url)
            observers._run(observers._outbox.run())
        if records.recordings and records.recording_format != "wav":
            observers._conversion = RecordingConversion(store, records.recording_format)
            observers._run(observers._conversion.run())
        return observers

    def started(self, info: CallInfo) -> None:
        self.metrics.calls_started.add(info.wire)
        self._webhooks.send(
            "call.started",
            {"id": info.call_id, "wire": info.wire, "from_number": info.caller, "to_number": info.callee},
        )

    async def ended(self, record: CallRecord) -> None:
        # The metrics count the full record; the other receivers get it redacted.
        self.metrics.ended(record)
        if self._conversion and record.recording:
            self._conversion.add(record.id, Path(record.recording))
        data = self._redaction.record(record.to_json())
        self._webhooks.send("call.ended", data)
        if self._telemetry is not None:
            await self._telemetry.ended(data)
        if self._json_lines is not None:
            self._json_lines.add(json_text(data))

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return the metrics of calls, store and workers as Prometheus text, together with `gauges`."""
        writer, backlog = self.writer, self.writer.backlog
        gauges = {
            **gauges,
            "callagent_store_failing": ("1: records cannot be written.", float(writer.failing is not None)),
            "callagent_store_waiting": ("Entries that wait for the store, in memory.", float(len(backlog))),
            "callagent_store_lost": (
                "Entries that could not be kept, since the start.",
                float(backlog.lost),
            ),
            "callagent_spool_failing": ("1: the spool cannot be written.", float(writer.spool_failing is not None)),
        }
        if self._outbox:
            waiting = float(self._outbox.waiting)
            gauges = {**gauges, "callagent_outbox_lines": ("Rows that wait for the database.", waiting)}
        return self.metrics.text(gauges) + "".join(f"{line}\n" for line in WORKER_FIGURES.lines())

    def dashboard(
        self,
        calls: Callable[[], Mapping[str, Call]],
        projects: Callable[[], Sequence[AgentProject]],
        stack: AsyncExitStack,
    ) -> Dashboard:
        """Return the sources of the dashboard; `stack` ends the process that reads the records for it."""
        from callagent.records import Database, Reader, ReadingProcess, SqliteDatabase
        from callagent.web import Dashboard

        records, process = self._config.records, ReadingProcess()
        database: Database = SqliteDatabase(self.store.path, process)
        if url := records.database.get_secret_value():
            from callagent.records import PostgresDatabase

            database = PostgresDatabase(url)
        reader = Reader(database, process)
        stack.push_async_callback(reader.close)
        return Dashboard(
            reader=reader,
            calls=calls,
            projects=projects,
            recordings=Path(records.recordings) if records.recordings else None,
            forget=self._forget,
        )

    async def _forget(self, number: str) -> int:
        return await delete_caller(self.store, number)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        # A failure of a background task must not end calls.
        try:
            await work
        except (UserError, sqlite3.Error) as error:
            log.error("records_task_failed", error=str(error))

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def redaction_of(config: Config) -> Redaction:
    """Return the redaction of records that the settings ask for."""
    return Redaction(config.records.redact, config.records.redact_entities)


def open_outbox(store: Store, url: str) -> RowCopier:
    """Return the outbox of an external database. Raises `UserError` if its driver is not installed."""
    try:
        import asyncpg  # noqa: F401
    except ImportError:
        raise UserError("setting 'records.database' needs the extra: pip install 'callagent[postgres]'") from None
    from callagent.records import RowCopier

    return RowCopier(store, url)


def open_telemetry(config: Config) -> Telemetry:
    """Return the sender of OpenTelemetry data. Raises `MissingExtra`."""
    from callagent.observability import Telemetry

    settings = config.telemetry
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    return Telemetry(settings.endpoint, headers, config.model.name, content=settings.content)
