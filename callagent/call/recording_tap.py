"""A leg's media with those who hear it too: the recording, and people who listen in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.call.recorder import Recorder
from callagent.call_info import MediaStatistics, RecordingWish
from callagent.legs import FrameSink, FrameSource, Media
from callagent.log import Logger
from callagent.records import StereoRecording
from callagent.records.recording import CLOSE_SECONDS

_SILENCE = bytes(FRAME_BYTES)
_BEHIND = 0.5
"""Seconds that a listener may be behind; more is dropped."""


class TappedMedia:
    """Passes everything through; what is heard goes left, what is sent goes right."""

    def __init__(self, media: Media, recording: StereoRecording | None = None) -> None:
        self._media = media
        self._recording = recording
        self.caller_hidden = False
        """Whether recording and listeners hear nothing of the caller: digits that nobody may know are being keyed or
        said, and the tones of keys are in the audio too."""
        self._taps: tuple[AudioTap, ...] = ()
        """Replaced whole: the pump thread reads it."""

    def listen_in(self) -> tuple[AudioTap, Callable[[], None]]:
        """A listener's ear, and what takes it away."""
        tap = AudioTap()
        self._taps = (*self._taps, tap)

        def leave() -> None:
            self._taps = tuple(one for one in self._taps if one is not tap)

        return tap, leave

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        recording = self._recording

        def heard(pcm: bytes, now: float) -> None:
            kept = _SILENCE if self.caller_hidden else pcm
            if recording is not None:
                recording.left(kept, now)
            for tap in self._taps:
                tap.caller.append(kept)
            sink(pcm, now)

        def sent() -> bytes | None:
            frame = source()
            if frame is not None:
                if recording is not None:
                    recording.right(frame, monotonic())
                for tap in self._taps:
                    tap.agent.append(frame)
            return frame

        self._media.start(heard, sent)

    def clear(self) -> float:
        return self._media.clear()

    def unheard(self) -> float:
        return self._media.unheard()

    def statistics(self) -> MediaStatistics:
        return self._media.statistics()


class AudioTap:
    """What one listener has not heard yet. Both sides are appended to by other threads, and taken from here."""

    def __init__(self) -> None:
        frames = int(_BEHIND / FRAME_SECONDS)
        self.caller: deque[bytes] = deque(maxlen=frames)
        self.agent: deque[bytes] = deque(maxlen=frames)

    def frame(self) -> tuple[bytes, bytes] | None:
        """The next 20 ms of caller and agent; None: neither has any."""
        if not self.caller and not self.agent:
            return None
        return _next(self.caller), _next(self.agent)


def _next(frames: deque[bytes]) -> bytes:
    return frames.popleft() if frames else _SILENCE


class RecordingTap:
    """Who hears one call besides its parties: its recording, where calls are recorded, and people who listen in."""

    def __init__(self, folder: Path | None, recorder: Recorder, log: Logger) -> None:
        self._folder = folder
        self._recorder = recorder
        self._log = log
        self._recording: StereoRecording | None = None
        self._media: TappedMedia | None = None

    def over(self, media: Media, now: float, place: str = "") -> Media:
        """`media`, heard from now on; `place`: where below the folder of recordings the project wants its own."""
        self._recording = self._begin(self._folder, place, now) if self._folder else None
        self._media = TappedMedia(media, self._recording)
        return self._media

    def listen_in(self) -> tuple[AudioTap, Callable[[], None]] | None:
        """A listener's ear, and what takes it away; None before the call is answered."""
        return self._media.listen_in() if self._media else None

    def control(self, wish: RecordingWish) -> None:
        if self._recording is None:
            return
        self._recording.control(wish)
        self._log.info("recording_control", wish=wish)
        if self._recording.discarded:
            self._recorder.record.recording = None

    def hide_caller(self, hidden: bool) -> None:
        """What the caller does is for nobody else's ears."""
        if self._media is not None:
            self._media.caller_hidden = hidden

    async def close(self) -> None:
        if (recording := self._recording) is None:
            return
        # Not in a thread that others need: a disk that stalls holds only the recording's own.
        ending = asyncio.wrap_future(recording.end())
        _, late = await asyncio.wait({ending}, timeout=CLOSE_SECONDS)
        error = recording.error or ("the disk has not taken all of it yet" if late else None)
        if error is not None:
            self._recorder.error("recording", error, asyncio.get_running_loop().time())
        if not recording.written and not late:
            self._recorder.record.recording = None

    def _begin(self, folder: Path, place: str, now: float) -> StereoRecording | None:
        name = f"{self._recorder.record.id}.wav"
        path = folder / place / name
        try:
            outside = not path.resolve().is_relative_to(folder.resolve())
        except OSError as error:
            self._recorder.error("recording", str(error), now)
            return None
        if outside:
            self._log.warning("recording_place_refused", place=place)
            path = folder / name
        self._recorder.record.recording = str(path)
        return StereoRecording(path, now)
