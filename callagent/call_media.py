"""A leg's media with a recording beside it, and what the agent may do to the recording."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

from callagent.call_info import RecordingWish
from callagent.call_record import Recorder
from callagent.legs.leg import FrameSink, FrameSource, Media, MediaStatistics
from callagent.log import Logger
from callagent.records import StereoRecording


class RecordedMedia:
    """Passes everything through; what is heard goes left, what is sent goes right."""

    def __init__(self, media: Media, recording: StereoRecording) -> None:
        self._media = media
        self._recording = recording

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        recording = self._recording

        def heard(pcm: bytes, now: float) -> None:
            recording.left(pcm, now)
            sink(pcm, now)

        def sent() -> bytes | None:
            frame = source()
            if frame is not None:
                recording.right(frame, monotonic())
            return frame

        self._media.start(heard, sent)

    def clear(self) -> float:
        return self._media.clear()

    def unheard(self) -> float:
        return self._media.unheard()

    def statistics(self) -> MediaStatistics:
        return self._media.statistics()


class Tape:
    """One call's recording, where calls are recorded; else nothing that it is asked has an effect."""

    def __init__(self, folder: Path | None, recorder: Recorder, log: Logger) -> None:
        self._folder = folder
        self._recorder = recorder
        self._log = log
        self._recording: StereoRecording | None = None

    def over(self, media: Media, now: float) -> Media:
        """`media`, recorded from now on."""
        if self._folder is None:
            return media
        path = self._folder / f"{self._recorder.record.id}.wav"
        try:
            self._recording = StereoRecording(path, now)
        except OSError as error:
            self._recorder.error("recording", str(error), now)
            return media
        self._recorder.record.recording = str(path)
        return RecordedMedia(media, self._recording)

    def control(self, wish: RecordingWish) -> None:
        if self._recording is None:
            return
        self._recording.control(wish)
        self._log.info("recording_control", wish=wish)
        if self._recording.discarded:
            self._recorder.record.recording = None

    def hide_caller(self, hidden: bool) -> None:
        """What the caller does is not to be heard on the recording."""
        if self._recording is not None:
            self._recording.caller_hidden = hidden

    async def close(self) -> None:
        if self._recording is not None:
            await asyncio.to_thread(self._recording.close)
