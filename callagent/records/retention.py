"""Deletion of calls, of one caller or after a number of days, with their rows, search words and recordings."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from callagent.errors import UserError
from callagent.log import get_logger
from callagent.records.store import Store

log = get_logger(__name__)

_BATCH: Final = 500
"""Calls that are deleted in one transaction."""
_INTERVAL_SECONDS: Final = 3600.0


def delete_calls_of(path: Path, number: str, *, outbox: bool) -> int:
    """Delete every ended call of a number from the store at `path`, without a running server.

    Return how many there were. Raises `UserError`. `outbox`: whether the deletion has to reach PostgreSQL, too.
    """
    if not path.is_file():
        raise UserError(f"no call has been recorded: '{path}' does not exist (setting records.path)")

    async def delete() -> int:
        store = Store(path, outbox=outbox)
        try:
            return await delete_caller(store, number)
        finally:
            await store.close()

    return asyncio.run(delete())


async def delete_caller(store: Store, number: str) -> int:
    """Delete every ended call of a number, with its recording. Return how many there were."""
    return await _delete(store, "from_number = ? AND ended_at IS NOT NULL", (number,))


async def delete_older(store: Store, days: int) -> int:
    """Delete the ended calls that began more than `days` days ago. Return how many there were."""
    return await _delete(store, "started_at < ? AND ended_at IS NOT NULL", (_before(days),))


async def delete_recordings_older(store: Store, days: int) -> int:
    """Delete the recordings of ended calls that began more than `days` days ago; keep the records. Return how many."""
    files: list[Path] = []

    def write(connection: sqlite3.Connection) -> None:
        found = connection.execute(
            "SELECT id, recording FROM calls WHERE started_at < ? AND ended_at IS NOT NULL AND recording IS NOT NULL",
            (_before(days),),
        ).fetchall()
        files[:] = [Path(path) for _, path in found]
        for call_id, _ in found:
            connection.execute(
                "UPDATE calls SET recording = NULL, record = json_set(record, '$.recording', NULL) WHERE id = ?",
                (call_id,),
            )
            store.add_outbox_line(connection, "call", call_id)

    await store.write(write)
    await asyncio.to_thread(_unlink, files)
    return len(files)


async def delete_expired(store: Store, days: int, recording_days: int) -> None:
    """Delete calls and recordings that are too old, every hour, until cancelled. With 0 days they are kept for ever."""
    while True:
        try:
            calls = await delete_older(store, days) if days else 0
            recordings = await delete_recordings_older(store, recording_days) if recording_days else 0
        except (sqlite3.Error, OSError, queue.Full) as error:
            log.error("retention_failed", error=str(error))
        else:
            if calls or recordings:
                log.info("expired_calls_deleted", calls=calls, recordings=recordings)
        await asyncio.sleep(_INTERVAL_SECONDS)


async def _delete(store: Store, condition: str, values: Sequence[str]) -> int:
    """Delete the calls that meet a condition. Return how many there were."""
    total = 0
    while True:
        # Calls are deleted in batches, because the writes of live calls would have to wait for one large transaction.
        found: list[tuple[int, str, str | None]] = []
        await store.write(partial(_delete_batch, store, condition, values, found))
        await asyncio.to_thread(_unlink, [Path(path) for _, _, path in found if path])
        total += len(found)
        if len(found) < _BATCH:
            return total


def _delete_batch(
    store: Store,
    condition: str,
    values: Sequence[str],
    found: list[tuple[int, str, str | None]],
    connection: sqlite3.Connection,
) -> None:
    """Delete `_BATCH` calls at most that meet a condition; put number, id and recording of each into `found`."""
    found[:] = connection.execute(
        f"SELECT number, id, recording FROM calls WHERE {condition} LIMIT {_BATCH}", values
    ).fetchall()
    for number, call_id, _ in found:
        connection.execute("DELETE FROM calls_words WHERE rowid = ?", (number,))
        # The call's row is deleted last: the trigger that subtracts a metric from the daily sums reads its project.
        for table, column in (("turns", "call_id"), ("metrics", "call_id"), ("calls", "id")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (call_id,))
        store.add_outbox_line(connection, "deletion", call_id)


def _unlink(files: Sequence[Path]) -> None:
    """Delete recordings. Called after the rows were changed, so that the store never names a file that is gone."""
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            log.error("recording_not_deleted", path=str(file), error=str(error))


def _before(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
