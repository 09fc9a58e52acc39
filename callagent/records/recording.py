"""A call as a stereo WAV file, caller left, agent right, written while the call runs.

Frames are placed by the time they were heard or sent, so both sides stay aligned through loss and silence. At most
about two seconds are held in memory; a thread of its own writes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import wave
from concurrent.futures import Future
from pathlib import Path

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE
from callagent.call_info import RecordingWish
from callagent.log import get_logger

log = get_logger(__name__)

_SILENCE = bytes(FRAME_BYTES)
_HOLD_FRAMES = 50
_AHEAD_FRAMES = _HOLD_FRAMES // 2
"""So far a side may run ahead of the clock when a stall ends and its frames come all at once; those beyond are left
out. Further ahead it would push everything that the other side says from then on out of what is held."""
_MAX_QUEUED_FRAMES = 500
RECORDING_CLOSE_SECONDS = 5.0
"""For the disk to take the rest."""
_MAX_GAP_FRAMES = 50 * 60


class StereoRecording:
    """`left` and `right` may be called from any one thread each and never block, nor does `end`."""

    def __init__(self, path: Path, started: float) -> None:
        """Begin a file at `path`; `started` is the monotonic second of its first sample. The thread opens it."""
        self.path = path
        self.error: str | None = None
        """Why the file holds nothing, or ends before the call does; None: nothing has failed."""
        self.written = False
        """Whether there is a file."""
        self._started = started
        self._frames: queue.Queue[tuple[int, int, bytes] | None] = queue.Queue(_MAX_QUEUED_FRAMES)
        self._next = [0, 0]
        self.dropped = 0
        """Frames that the disk was too slow for."""
        self.discarded = False
        self._paused = False
        self._done: Future[None] = Future()
        threading.Thread(target=self._write, name="recording", daemon=True).start()

    def left(self, pcm: bytes, now: float) -> None:
        """A frame of the caller, received at `now`."""
        self._put(0, pcm, now)

    def right(self, pcm: bytes, now: float) -> None:
        """A frame of the agent, sent at `now`."""
        self._put(1, pcm, now)

    def end(self) -> Future[None]:
        """Write the rest and close the file; what is returned is done then. Never blocks."""
        try:
            self._frames.put_nowait(None)
        except queue.Full:
            self.error = self.error or "the disk did not take what was still to be written"
            # Nobody records any more: there is room after this.
            with contextlib.suppress(queue.Empty):
                self._frames.get_nowait()
            self._frames.put_nowait(None)
        return self._done

    def close(self) -> None:
        """The same, and wait for it, for some seconds at most."""
        with contextlib.suppress(TimeoutError):
            self.end().result(RECORDING_CLOSE_SECONDS)

    def control(self, wish: RecordingWish) -> None:
        """While it pauses, the time passes as silence; what is discarded stays so."""
        match wish:
            case "pause" | "resume":
                self._paused = wish == "pause"
            case "discard":
                self.discarded = True
                self._put(0, _SILENCE, self._started)

    def _put(self, side: int, pcm: bytes, now: float) -> None:
        due = int((now - self._started) / FRAME_SECONDS)
        # Frames that follow each other stay gapless; only a real pause (three frames) moves the place.
        place = self._next[side] if abs(due - self._next[side]) <= 3 else max(due, self._next[side])
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
            # Nobody who records or closes may wait for a thread that has stopped.
            while self._frames.get() is not None:
                pass
        if self.discarded:
            self.path.unlink(missing_ok=True)

    def _record(self) -> None:
        """Write what comes until the end. Raises `OSError`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Not opened by name: where the header cannot be written, `wave` would leave its own file to the collector.
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
