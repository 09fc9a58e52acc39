"""Copies a call's audio to its recording and to people who listen in."""

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
from callagent.records import RECORDING_CLOSE_SECONDS, StereoRecording

_SILENCE = bytes(FRAME_BYTES)
MAX_LISTENER_DELAY = 0.5
"""Seconds of audio kept for a listener; older audio is dropped."""


class TappedMedia:
    """Media that passes all frames through and copies them: the caller to the left channel, the agent to the right.

    `start` hands on a function for each side. Both are called for every frame, the agent's on the pump thread, so they
    only append and never wait.
    """

    def __init__(self, media: Media, recording: StereoRecording | None = None) -> None:
        self._media = media
        self._recording = recording
        self.caller_hidden = False
        """Whether the copies have silence in place of the caller, who keys or says secret digits.

        Keyed digits are hidden as well, because their tones are in the audio.
        """
        self._taps: tuple[AudioTap, ...] = ()
        """Never changed in place, only replaced, because the pump thread iterates over it."""

    def listen_in(self) -> tuple[AudioTap, Callable[[], None]]:
        """Return a tap of both sides' audio and the function that removes it."""
        tap = AudioTap()
        self._taps = (*self._taps, tap)

        def remove() -> None:
            self._taps = tuple(one for one in self._taps if one is not tap)

        return tap, remove

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        recording = self._recording

        def receive_frame(pcm: bytes, now: float) -> None:
            # The recogniser hears the caller all the same: only the copies are silent.
            copy = _SILENCE if self.caller_hidden else pcm
            if recording is not None:
                recording.left(copy, now)
            for tap in self._taps:
                tap.caller.append(copy)
            sink(pcm, now)

        def next_frame() -> bytes | None:
            # This runs on the pump thread: each step is an append, which is atomic and needs no lock.
            frame = source()
            if frame is not None:
                if recording is not None:
                    recording.right(frame, monotonic())
                for tap in self._taps:
                    tap.agent.append(frame)
            return frame

        self._media.start(receive_frame, next_frame)

    def clear(self) -> float:
        return self._media.clear()

    def unheard(self) -> float:
        return self._media.unheard()

    def statistics(self) -> MediaStatistics:
        return self._media.statistics()


class AudioTap:
    """The audio of both sides that one listener has yet to hear. The media's threads append, the listener's reads."""

    def __init__(self) -> None:
        frames = int(MAX_LISTENER_DELAY / FRAME_SECONDS)
        self.caller: deque[bytes] = deque(maxlen=frames)
        self.agent: deque[bytes] = deque(maxlen=frames)

    def next_frame(self) -> tuple[bytes, bytes] | None:
        """Return the next 20 ms of caller and agent, or None if there is nothing of either."""
        if not self.caller and not self.agent:
            return None
        return _pop_frame(self.caller), _pop_frame(self.agent)


def _pop_frame(frames: deque[bytes]) -> bytes:
    return frames.popleft() if frames else _SILENCE


class RecordingTap:
    """One call's recording, if calls are recorded, and the call's listeners."""

    def __init__(self, folder: Path | None, recorder: Recorder, log: Logger) -> None:
        self._folder = folder
        self._recorder = recorder
        self._log = log
        self._recording: StereoRecording | None = None
        self._media: TappedMedia | None = None

    def attach(self, media: Media, now: float, place: str = "") -> Media:
        """Return `media` with its audio copied from now on.

        `place`: where the project wants its recordings, as a folder below that of all recordings.
        """
        self._recording = self._begin(self._folder, place, now) if self._folder else None
        self._media = TappedMedia(media, self._recording)
        return self._media

    def listen_in(self) -> tuple[AudioTap, Callable[[], None]] | None:
        """Return a tap of both sides' audio and the function that removes it; None before the call is answered."""
        return self._media.listen_in() if self._media else None

    def control(self, wish: RecordingWish) -> None:
        """Pause, resume or discard the recording; a discarded one is not in the record."""
        if self._recording is None:
            return
        self._recording.control(wish)
        self._log.info("recording_control", wish=wish)
        if self._recording.discarded:
            self._recorder.record.recording = None

    def hide_caller(self, hidden: bool) -> None:
        """Keep the caller's side out of the recording and from listeners."""
        if self._media is not None:
            self._media.caller_hidden = hidden

    async def close(self) -> None:
        """Complete the file, but wait at most `RECORDING_CLOSE_SECONDS` for the disk."""
        if (recording := self._recording) is None:
            return
        # The recording ends on its own thread: a disk that stalls holds up nothing else.
        ending = asyncio.wrap_future(recording.end())
        _, late = await asyncio.wait({ending}, timeout=RECORDING_CLOSE_SECONDS)
        error = recording.error or ("the disk did not take the whole file in time; check its load" if late else None)
        if error is not None:
            self._recorder.error("recording", error, asyncio.get_running_loop().time())
        if not recording.written and not late:
            self._recorder.record.recording = None

    def _begin(self, folder: Path, place: str, now: float) -> StereoRecording | None:
        name = f"{self._recorder.record.id}.wav"
        path = folder / place / name
        # The project chooses the place: it must not lead out of the folder, not even by a symbolic link.
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
