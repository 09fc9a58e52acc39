"""A leg's media with a recording beside it."""

from __future__ import annotations

from time import monotonic

from callagent.legs.leg import FrameSink, FrameSource, Media, MediaStatistics
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
