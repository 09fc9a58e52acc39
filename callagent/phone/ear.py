"""How the test phone hears the agent: by level, to the frame. Between words is digital silence or a bed of sound."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from callagent.speech import RecognizerSettings, RecognizerStream, Transcript

_SPEECH_LEVEL = 120
"""RMS of 16-bit samples above which a frame holds speech."""
_ABOVE_BED = 4.0
"""So much louder than the sound under the words is a frame that holds speech."""
_LOUDEST_BED = 400.0
_BED_PART_SECONDS, _BED_PARTS = 0.5, 10
"""The bed is what remains in the quietest frame of the last seconds: nobody speaks without a gap for so long."""
_PAUSE_SECONDS = 0.6
"""Silence that ends an utterance; pauses between words are shorter."""
_GAP_SECONDS = 0.25
"""Silence that ends a span of sound."""


@dataclass(slots=True)
class Heard:
    """One utterance of the agent; seconds since the call was answered."""

    number: int
    started: float
    ended: float | None = None
    text: str | None = None
    """None until it is recognised."""


class _Bed:
    """How loud it is when nobody speaks."""

    def __init__(self) -> None:
        self._parts: deque[float] = deque([_LOUDEST_BED], _BED_PARTS)
        self._part_ends = 0.0

    def level(self, heard: float, at: float) -> float:
        """The bed's root mean square, after a frame as loud as `heard`."""
        if at >= self._part_ends:
            self._parts.append(_LOUDEST_BED)
            self._part_ends = at + _BED_PART_SECONDS
        self._parts[-1] = min(self._parts[-1], heard)
        return min(self._parts)


class Ear:
    """Cuts the agent's audio into utterances and has them recognised."""

    def __init__(self, on_heard: Callable[[Heard], None]) -> None:
        self._on_heard = on_heard
        self._stream: RecognizerStream | None = None
        self._answered = 0.0
        self._last_speech = -1.0
        self._bed = _Bed()
        self._current: Heard | None = None
        self._waiting: dict[int, Heard] = {}
        self.utterances: list[Heard] = []
        self.spans: list[tuple[float, float]] = []
        """When the agent was heard, to the frame; seconds since the answer."""
        self.changed = asyncio.Event()
        """Set whenever anything was heard or recognised; the waiter clears it."""

    def use(self, stream: RecognizerStream | None, answered: float) -> None:
        """Listen from monotonic second `answered` on; without a stream utterances have times and no words."""
        self._stream = stream
        self._answered = answered

    @property
    def speaking_since(self) -> float | None:
        """Second at which the utterance being heard began."""
        return self._current.started if self._current else None

    @property
    def recognising(self) -> bool:
        return bool(self._waiting)

    def on_frame(self, pcm: bytes, now: float) -> None:
        """The media sink."""
        import audioop

        at = now - self._answered
        if self._stream:
            self._stream.feed(pcm)
        level = audioop.rms(pcm, 2)
        if level > max(_SPEECH_LEVEL, _ABOVE_BED * self._bed.level(level, at)):
            self._last_speech = at
            self._extend(at)
            if self._current is None:
                self._begin(at)
        elif self._current and at - self._last_speech > _PAUSE_SECONDS:
            self._end(self._current)

    def on_transcript(self, transcript: Transcript) -> None:
        if transcript.final and (heard := self._waiting.pop(transcript.utterance, None)):
            heard.text = transcript.text
            self._tell(heard)

    def close(self) -> None:
        if self._current:
            self._end(self._current)

    def _extend(self, at: float) -> None:
        if self.spans and at - self.spans[-1][1] <= _GAP_SECONDS:
            self.spans[-1] = (self.spans[-1][0], at)
        else:
            self.spans.append((at, at))

    def _begin(self, at: float) -> None:
        self._current = Heard(len(self.utterances) + 1, at)
        self.utterances.append(self._current)
        if self._stream:
            self._stream.begin(RecognizerSettings())
        self.changed.set()

    def _end(self, heard: Heard) -> None:
        heard.ended = self._last_speech
        self._current = None
        if self._stream:
            self._waiting[heard.number] = heard
            self._stream.finish()
        else:
            self._tell(heard)
        self.changed.set()

    def _tell(self, heard: Heard) -> None:
        self._on_heard(heard)
        self.changed.set()
