"""Recordings made smaller once their call is over, by pydub and ffmpeg, in a process of its own for each.

pydub holds a whole recording in memory; a process of its own gives the memory back and keeps off the calls' loop.
"""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

from callagent.errors import UserError
from callagent.log import get_logger
from callagent.records.store import Store

log = get_logger(__name__)

RecordingFormat = Literal["wav", "opus", "mp3"]

_BITRATES: Final = {"opus": "32k", "mp3": "48k"}
_MAX_SECONDS: Final = 900.0
_NICENESS: Final = 10
_MAX_QUEUED: Final = 10_000


def expect_converter(form: RecordingFormat) -> None:
    """Raise `UserError` where recordings cannot be made `form`."""
    if form != "wav" and shutil.which("ffmpeg") is None:
        raise UserError(
            f'setting records.recording_format = "{form}" needs the program ffmpeg: install it, or set it to "wav"'
        )


def convert(source: Path, target: Path) -> None:
    """Write the recording at `source` to `target`, in the format of its name. Raises `OSError`. Blocks."""
    from pydub import AudioSegment
    from pydub.exceptions import PydubException

    form = target.suffix[1:]
    partial = target.with_suffix(f".partial.{form}")
    try:
        with source.open("rb") as file:
            AudioSegment.from_wav(file).export(str(partial), format=form, bitrate=_BITRATES[form]).close()
    except PydubException as error:
        partial.unlink(missing_ok=True)
        raise OSError(f"{source.name} cannot be converted: {error}") from None
    # Only a whole file has the name.
    partial.replace(target)


class RecordingConversion:
    """Converts one recording after the other; those that a killed server left come first."""

    def __init__(self, store: Store, form: RecordingFormat) -> None:
        self._store = store
        self._form = form
        self._waiting: asyncio.Queue[tuple[str, Path]] = asyncio.Queue(_MAX_QUEUED)

    def add(self, call_id: str, path: Path) -> None:
        """A call is over; what does not fit waits for the next start."""
        try:
            self._waiting.put_nowait((call_id, path))
        except asyncio.QueueFull:
            log.warning("recording_not_converted", path=str(path), error="too many wait")

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            left = await asyncio.to_thread(_left, self._store.path)
        except sqlite3.Error as error:
            log.error("recordings_not_found", error=str(error))
            left = []
        for call_id, path in left:
            await self._try(call_id, path)
        while True:
            await self._try(*await self._waiting.get())

    async def _try(self, call_id: str, source: Path) -> None:
        """Convert one; a disk or store that fails leaves the WAV file for the next start."""
        try:
            await self._convert(call_id, source)
        except (sqlite3.Error, OSError, queue.Full) as error:
            log.error("recording_not_converted", path=str(source), error=str(error) or type(error).__name__)

    async def _convert(self, call_id: str, source: Path) -> None:
        target = source.with_suffix(f".{self._form}")
        command = ("-m", "callagent.records.conversion", str(source), str(target))
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(_MAX_SECONDS):
                _, said = await process.communicate()
        except TimeoutError:
            said = b"it took too long"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            error = said.decode(errors="replace").strip()[-400:]
            log.error("recording_not_converted", path=str(source), error=error)
            return
        await self._store.write(lambda connection: self._moved(connection, call_id, target))
        await asyncio.to_thread(source.unlink, missing_ok=True)

    def _moved(self, connection: sqlite3.Connection, call_id: str, target: Path) -> None:
        changed = connection.execute(
            "UPDATE calls SET recording = ?, record = json_set(record, '$.recording', ?) "
            "WHERE id = ? AND recording IS NOT NULL",
            (str(target), str(target), call_id),
        )
        if changed.rowcount:
            self._store.note(connection, "call", call_id)
        else:
            # Deleted meanwhile: the copy goes too.
            target.unlink(missing_ok=True)


def _left(store: Path) -> list[tuple[str, Path]]:
    with closing(sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT id, recording FROM calls WHERE ended_at IS NOT NULL AND recording LIKE '%.wav'"
        ).fetchall()
    return [(call_id, Path(path)) for call_id, path in rows if Path(path).is_file()]


def _main() -> int:
    os.nice(_NICENESS)
    source, target = sys.argv[1:]
    try:
        convert(Path(source), Path(target))
    except OSError as error:
        print(error, file=sys.stderr)  # noqa: T201 - what the server reads
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
