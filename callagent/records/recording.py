"""Recordings of calls: written while the call runs, compressed when it is over, and measured for the dashboard.

A recording is a stereo WAV file, caller left, agent right. Frames are placed by the time they were received or sent, so
both sides stay aligned through loss and silence. At most about two seconds are held in memory; a thread writes them.

pydub and ffmpeg convert an ended recording. pydub holds a whole recording in memory, so this module is run as a program
for each: the process gives the memory back when it ends, and does not delay the loop that carries the calls' audio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import sqlite3
import sys
import threading
import wave
from concurrent.futures import Future
from io import BytesIO
from pathlib import Path
from typing import IO, Final, Literal

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE
from callagent.call_info import RecordingWish
from callagent.errors import UserError
from callagent.json_values import JsonObject
from callagent.log import get_logger
from callagent.records.store import Store

log = get_logger(__name__)

_SILENCE: Final = bytes(FRAME_BYTES)
_HOLD_FRAMES: Final = 50
"""Frames held before they are written, so that a late frame of the other side still gets its place."""
_AHEAD_FRAMES: Final = _HOLD_FRAMES // 2
"""How far a side may run ahead of the clock when a stall ends and its frames come all at once. Further frames are left
out: with them, all later frames of the other side would come after their places were written."""
_GAPLESS_FRAMES: Final = 3
"""A frame that is off its time by no more than this follows the one before it without a gap."""
_MAX_QUEUED_FRAMES: Final = 500
"""Frames that wait for the thread; further ones are dropped."""
RECORDING_CLOSE_SECONDS: Final = 5.0
"""Seconds that the disk has to take the rest of a recording."""
_MAX_GAP_FRAMES: Final = 50 * 60
"""A frame further ahead of the file than this minute is left out: its time cannot be right."""


class StereoRecording:
    """Writes the recording of a call.

    Each of `left` and `right` may be called from one thread, whichever it is. Neither they nor `end` block.
    """

    def __init__(self, path: Path, started: float) -> None:
        """Begin a file at `path`; `started` is the monotonic second of its first sample. The thread opens it."""
        self.path = path
        self.error: str | None = None
        """Why the file is empty, or ends before the call does; None: nothing has failed."""
        self.written = False
        """Whether there was a file at any time."""
        self._started = started
        self._frames: queue.Queue[tuple[int, int, bytes] | None] = queue.Queue(_MAX_QUEUED_FRAMES)
        self._next = [0, 0]
        """The place of the next frame of each side, in frames since the start."""
        self.dropped = 0
        """Frames that were left out because the disk was too slow."""
        self.discarded = False
        self._paused = False
        self._done: Future[None] = Future()
        threading.Thread(target=self._write, name="recording", daemon=True).start()

    def left(self, pcm: bytes, now: float) -> None:
        """Take a frame of the caller, received at `now`."""
        self._put(0, pcm, now)

    def right(self, pcm: bytes, now: float) -> None:
        """Take a frame of the agent, sent at `now`."""
        self._put(1, pcm, now)

    def end(self) -> Future[None]:
        """Have the thread write the rest and close the file. Return a future that is then done. Never blocks."""
        try:
            self._frames.put_nowait(None)
        except queue.Full:
            self.error = self.error or "the disk was too slow for the end of the recording"
            # One frame is dropped for the end mark, without which the thread would never stop.
            with contextlib.suppress(queue.Empty):
                self._frames.get_nowait()
            self._frames.put_nowait(None)
        return self._done

    def close(self) -> None:
        """Write the rest and close the file; wait for this `RECORDING_CLOSE_SECONDS` at most."""
        with contextlib.suppress(TimeoutError):
            self.end().result(RECORDING_CLOSE_SECONDS)

    def control(self, wish: RecordingWish) -> None:
        """Pause, resume or discard the recording. A pause is recorded as silence; a discarded recording stays so."""
        match wish:
            case "pause" | "resume":
                self._paused = wish == "pause"
            case "discard":
                self.discarded = True
                # A frame wakes the thread, which removes the file.
                self._put(0, _SILENCE, self._started)

    def _put(self, side: int, pcm: bytes, now: float) -> None:
        due = int((now - self._started) / FRAME_SECONDS)
        # Frames arrive with jitter: only a real gap moves the place, and never back to frames that were placed already.
        gapless = abs(due - self._next[side]) <= _GAPLESS_FRAMES
        place = self._next[side] if gapless else max(due, self._next[side])
        if place - due > _AHEAD_FRAMES:
            return
        self._next[side] = place + 1
        if self._paused:
            pcm = _SILENCE
        try:
            self._frames.put_nowait((place, side, pcm))
        except queue.Full:
            self.dropped += 1

    def _write(self) -> None:
        try:
            self._write_file()
        finally:
            self._done.set_result(None)

    def _write_file(self) -> None:
        try:
            self._record()
        except OSError as error:
            self.error = str(error)
            log.error("recording_stopped", path=str(self.path), error=str(error))
            # The queue is emptied until its end, so that neither frames nor the end mark wait for room in it.
            while self._frames.get() is not None:
                pass
        if self.discarded:
            self.path.unlink(missing_ok=True)

    def _record(self) -> None:
        """Write frames until the end. Raises `OSError`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # `wave` gets an open file: one that it opened itself would stay open if the header could not be written.
        with self.path.open("wb") as disk:
            self.written = True
            file = wave.open(disk, "wb")  # noqa: SIM115 - closed below, where its errors are ours
            try:
                file.setnchannels(2)
                file.setsampwidth(2)
                file.setframerate(SAMPLE_RATE)
                self._write_frames(file)
            finally:
                file.close()

    def _write_frames(self, file: wave.Wave_write) -> None:
        held: dict[int, list[bytes]] = {}
        written = 0
        while (item := self._frames.get()) is not None:
            if self.discarded:
                self.path.unlink(missing_ok=True)
                continue
            place, side, pcm = item
            if written <= place < written + _MAX_GAP_FRAMES:
                held.setdefault(place, [_SILENCE, _SILENCE])[side] = pcm
            while place - written > _HOLD_FRAMES:
                file.writeframes(_interleave(*held.pop(written, (_SILENCE, _SILENCE))))
                written += 1
        if not self.discarded:
            for place in range(written, max(held, default=written - 1) + 1):
                file.writeframes(_interleave(*held.pop(place, (_SILENCE, _SILENCE))))


def _interleave(left: bytes, right: bytes) -> bytes:
    import audioop

    both = audioop.tostereo(left, 2, 1, 0)
    return audioop.add(both, audioop.tostereo(right, 2, 0, 1), 2)


RecordingFormat = Literal["wav", "opus", "mp3"]

_BITRATES: Final = {"opus": "32k", "mp3": "48k"}
_MAX_CONVERSION_SECONDS: Final = 900.0
_NICENESS: Final = 10
"""The conversion gets the processor time that the calls leave."""
_MAX_QUEUED: Final = 10_000
"""Recordings that wait for their conversion."""


def require_converter(form: RecordingFormat) -> None:
    """Raise `UserError` if the program that converts recordings to `form` is missing."""
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
    # Only a complete file gets the name `target`: a process that is killed leaves one with another name.
    partial.replace(target)


class RecordingConversion:
    """Converts one recording after the other, those that a killed server left first."""

    def __init__(self, store: Store, form: RecordingFormat) -> None:
        self._store = store
        self._form = form
        self._waiting: asyncio.Queue[tuple[str, Path]] = asyncio.Queue(_MAX_QUEUED)

    def add(self, call_id: str, path: Path) -> None:
        """Queue the recording of an ended call; if the queue is full, it is converted after the next start."""
        try:
            self._waiting.put_nowait((call_id, path))
        except asyncio.QueueFull:
            log.warning(
                "recording_not_converted",
                path=str(path),
                error="too many wait; the next start converts it",
            )

    async def run(self) -> None:
        """Convert recordings, until cancelled: those that an earlier server left, then those that are queued."""
        try:
            unconverted = await asyncio.to_thread(_find_unconverted, self._store.path)
        except sqlite3.Error as error:
            log.error("recordings_not_found", error=str(error))
            unconverted = []
        for call_id, path in unconverted:
            await self._try_to_convert(call_id, path)
        while True:
            await self._try_to_convert(*await self._waiting.get())

    async def _try_to_convert(self, call_id: str, source: Path) -> None:
        """Convert one recording; if the disk or store fails, keep the WAV file for the next start."""
        try:
            await self._convert(call_id, source)
        except (sqlite3.Error, OSError, queue.Full) as error:
            log.error("recording_not_converted", path=str(source), error=str(error) or type(error).__name__)

    async def _convert(self, call_id: str, source: Path) -> None:
        target = source.with_suffix(f".{self._form}")
        command = ("-m", "callagent.records.recording", str(source), str(target))
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(_MAX_CONVERSION_SECONDS):
                _, error_output = await process.communicate()
        except TimeoutError:
            error_output = b"it took too long"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            error = error_output.decode(errors="replace").strip()[-400:]
            log.error("recording_not_converted", path=str(source), error=error)
            return
        # The WAV file is removed after the store is changed, so that the file that the store names always exists.
        await self._store.write(lambda connection: self._set_recording(connection, call_id, target))
        await asyncio.to_thread(source.unlink, missing_ok=True)

    def _set_recording(self, connection: sqlite3.Connection, call_id: str, target: Path) -> None:
        changed = connection.execute(
            "UPDATE calls SET recording = ?, record = json_set(record, '$.recording', ?) "
            "WHERE id = ? AND recording IS NOT NULL",
            (str(target), str(target), call_id),
        )
        if changed.rowcount:
            self._store.add_outbox_line(connection, "call", call_id)
        else:
            # The call or its recording was deleted meanwhile, so the copy is deleted, too.
            target.unlink(missing_ok=True)


def _find_unconverted(store: Path) -> list[tuple[str, Path]]:
    """Return the ids of ended calls whose recordings are WAV files, with these files."""
    with contextlib.closing(sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT id, recording FROM calls WHERE ended_at IS NOT NULL AND recording LIKE '%.wav'"
        ).fetchall()
    return [(call_id, Path(path)) for call_id, path in rows if Path(path).is_file()]


def waveform(path: Path, points: int) -> JsonObject:
    """Return a recording's seconds and the loudest sample (0 to 1) of each of `points` parts. Raises `OSError`. Blocks.

    It runs in the reading process, because it decodes the whole file.
    """
    import audioop

    caller, agent = [], []
    try:
        with wave.open(_open_as_wav(path), "rb") as file:
            frames, rate = file.getnframes(), file.getframerate()
            part = max(1, -(-frames // points))
            while pcm := file.readframes(part):
                caller.append(round(audioop.max(audioop.tomono(pcm, 2, 1, 0), 2) / 32768, 3))
                agent.append(round(audioop.max(audioop.tomono(pcm, 2, 0, 1), 2) / 32768, 3))
    except (wave.Error, EOFError) as error:
        raise OSError(f"{path.name} is not a recording: {error}") from None
    return {"seconds": frames / rate, "caller": caller, "agent": agent}


def _open_as_wav(path: Path) -> IO[bytes]:
    """Return the recording as a WAV file; other formats are decoded by ffmpeg."""
    if path.suffix == ".wav":
        return path.open("rb")
    from pydub import AudioSegment
    from pydub.exceptions import PydubException

    try:
        with path.open("rb") as encoded:
            decoded = AudioSegment.from_file(encoded, format="ogg" if path.suffix == ".opus" else path.suffix[1:])
    except PydubException as error:
        raise OSError(f"{path.name} is not a recording: {error}") from None
    file = BytesIO()
    decoded.set_sample_width(2).set_frame_rate(SAMPLE_RATE).export(file, format="wav")
    file.seek(0)
    return file


def _main() -> int:
    os.nice(_NICENESS)
    source, target = sys.argv[1:]
    try:
        convert(Path(source), Path(target))
    except OSError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the server reads this
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
