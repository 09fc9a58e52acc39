"""What is being said, frame by frame.

Two threads meet here. The pump thread calls `next_frame` every 20 ms; the event loop calls everything else. The pump
follows one `_Tape`: a list that only the loop extends, and a position that only the pump moves, each step a single
operation under the interpreter's lock. To pause, resume or discard, the loop puts another tape (or none) in its place
with one assignment. A pump that was inside `next_frame` just then still delivers the frame of the old tape: at most
20 ms of audio are counted a frame late, never lost, and nothing waits for anything.
"""

from __future__ import annotations

import array
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from callagent.audio import FRAME_BYTES, FRAME_SAMPLES, FRAME_SECONDS
from callagent.speech.protocol import WordTime

CHARACTERS_PER_SECOND = 15.0
"""Usual pace of a telephone voice, for audio whose end is not known yet."""
STEP_BACK = 0.3
"""Seconds to go back where the engine gives no word times."""


def heard_text(text: str, words: Sequence[WordTime], heard: float, length: float | None) -> str:
    """The part of `text` within the first `heard` seconds, whole words; `length`: of all its audio, where known.

    A word counts as heard when more than half of it was.
    """
    if length is not None and heard >= length:
        return text
    spoken = text.split()
    if words:
        count = sum((word.start + word.end) / 2 <= heard for word in words)
        if [word.word for word in words] == spoken[: len(words)]:
            return " ".join(spoken[:count])
        # The engine counts words otherwise than we do ("24" spoken as two): the share of them tells the place.
        if length is not None:
            return _share(spoken, count / len(words))
    estimate = len(text) / CHARACTERS_PER_SECOND if length is None else length
    return _share(spoken, heard / max(estimate, 0.02))


def resume_point(words: Sequence[WordTime], heard: float) -> float:
    """Seconds from the start of the utterance from which to speak again after `heard` seconds of it."""
    if not words:
        return max(heard - STEP_BACK, 0.0)
    return max((word.start for word in words if word.start <= heard), default=0.0)


def _share(words: list[str], share: float) -> str:
    """The leading words that make up `share` of the characters."""
    budget = share * sum(len(word) + 1 for word in words)
    kept = []
    for word in words:
        if budget < (len(word) + 1) / 2:
            break
        budget -= len(word) + 1
        kept.append(word)
    return " ".join(kept)


FADE_SAMPLES = 40
"""5 ms: a cut without it is a click."""


class UtteranceKind(Enum):
    SPEECH = "speech"
    FILLER = "filler"
    RECORDING = "recording"


@dataclass(frozen=True, slots=True)
class Utterance:
    number: int
    """Counts the call's utterances from 1."""
    text: str
    interruptible: bool = True
    kind: UtteranceKind = UtteranceKind.SPEECH
    cancellable: bool = False
    """It ends where the next utterance's audio begins."""


@dataclass(frozen=True, slots=True)
class Cue:
    """Where an utterance begins or ends on the tape."""

    utterance: Utterance
    begins: bool


Notify = Callable[[Cue, float], None]
"""Called from the pump thread with each cue that is passed and the time; must only hand it to the loop."""


@dataclass(slots=True)
class _Track:
    """One utterance on the tape; its frames lie side by side from `start` + 1."""

    utterance: Utterance
    start: int = sys.maxsize
    """Where its first cue lies, once it has audio."""
    frames: int = 0
    words: list[WordTime] = field(default_factory=list)
    complete: bool = False
    cut: bool = False
    """Its audio is not that of the whole text."""
    cancelled: bool = False
    """The next utterance has taken the place of what was left of it."""

    def seconds(self, position: int) -> float:
        return min(max(position - self.start - 1, 0), self.frames) * FRAME_SECONDS

    def heard(self, seconds: float) -> str:
        length = self.frames * FRAME_SECONDS if self.complete and not self.cut else None
        return heard_text(self.utterance.text, self.words, seconds, length)


class _Tape:
    """What the pump follows. Put in place whole; `position`, `starving` and `starved` are the pump's to change."""

    __slots__ = ("cues", "open", "position", "starved", "starving")

    def __init__(self) -> None:
        self.cues: list[bytes | Cue | None] = []
        """None: withdrawn, or heard and let go."""
        self.position = 0
        """Of the next cue. Moved by the pump alone."""
        self.open = False
        """More frames of the last utterance are to come."""
        self.starving = False
        self.starved = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """How much of an utterance reached the caller."""

    utterance: Utterance
    text: str


class Playout:
    """Utterances in order, one at a time."""

    def __init__(self, notify: Notify, clock: Callable[[], float] = time.monotonic) -> None:
        self._notify = notify
        self._clock = clock
        self._tape = _Tape()
        """The loop's: where frames are put."""
        self._live: _Tape | None = self._tape
        """The pump's: where frames are taken."""
        self._tracks: dict[int, _Track] = {}
        """Of utterances on the tape and not yet heard, by number, in order."""
        self._paused_at = 0
        self._farthest = 0
        """Where the caller's hearing had come to before a word was said again."""
        self._starved_before = 0

    # The pump thread

    def next_frame(self) -> bytes | None:
        """The frame to send now; None: nothing to say."""
        tape = self._live
        if tape is None:
            return None
        cues = tape.cues
        while tape.position < len(cues):
            cue = cues[tape.position]
            tape.position += 1
            if isinstance(cue, bytes):
                tape.starving = False
                return cue
            if cue is not None:
                self._notify(cue, self._clock())
        if tape.open and not tape.starving:
            tape.starving = True
            tape.starved += 1
        return None

    # The event loop: putting audio on

    def begin(self, utterance: Utterance) -> None:
        """Its frames will follow those of the utterances before it, which are complete."""
        tape = self._tape
        if not self._tracks and not self.paused and tape.position >= len(tape.cues):
            self._replace(_Tape())
        self._tracks[utterance.number] = _Track(utterance)

    def append(self, utterance: Utterance, frame: bytes) -> bool:
        """20 ms more of it; False when it is no longer wanted."""
        track = self._tracks.get(utterance.number)
        if track is None:
            return False
        assert len(frame) == FRAME_BYTES
        if not track.frames:
            self._cancel_before()
        self._place(track)
        track.frames += 1
        self._tape.cues.append(frame)
        return True

    def add_words(self, utterance: Utterance, words: Iterable[WordTime]) -> None:
        """When its next words are spoken."""
        track = self._tracks.get(utterance.number)
        if track is not None:
            track.words.extend(words)

    def complete(self, utterance: Utterance, *, cut: bool = False) -> None:
        """It has all its frames; `cut`: they do not say all of the text."""
        track = self._tracks.get(utterance.number)
        if track is not None and not track.complete:
            self._place(track)
            track.complete, track.cut = True, cut
            self._tape.open = False
            self._tape.cues.append(Cue(utterance, begins=False))

    def withdraw(self, utterance: Utterance) -> bool:
        """Take it off if nothing of it was played; whether that was so. Withdrawing it while the pump takes its
        first frame lets that one frame out."""
        track = self._tracks.get(utterance.number)
        if track is None or self._position > track.start:
            return False
        self._let_go(track)
        return True

    def release(self, utterance: Utterance) -> str:
        """The caller has heard it to its end: it cannot be rewound into any more. The words heard."""
        track = self._tracks.get(utterance.number)
        if track is None:
            return ""
        self._let_go(track)
        return track.heard(track.frames * FRAME_SECONDS)

    # The event loop: who is heard

    @property
    def paused(self) -> bool:
        return self._live is not self._tape

    @property
    def idle(self) -> bool:
        """Nothing is being said and nothing waits."""
        return not self._tracks

    def within(self, unheard: float) -> Iterator[Utterance]:
        """Those being said, or else the next one: `unheard` seconds were taken and are not played yet."""
        position = self._position
        back = _back(self._tape.cues, position, round(unheard / FRAME_SECONDS))
        found = False
        for track in self._tracks.values():
            if found and position <= track.start:
                return
            if back <= track.start + 1 + track.frames or not track.complete:
                found = True
                yield track.utterance

    def passed(self, cue: Cue) -> bool:
        """It lies behind: not so where a pause has gone back before it, and it will be told of again."""
        track = self._tracks.get(cue.utterance.number)
        if track is None:
            return False
        return self._position > (track.start if cue.begins else track.start + 1 + track.frames)

    @property
    def ahead(self) -> int:
        """Utterances complete and not begun."""
        position = self._position
        return sum(track.complete and position <= track.start for track in self._tracks.values())

    @property
    def remaining(self) -> float:
        """Seconds not yet played, of what there is."""
        position = self._position
        return sum(track.frames * FRAME_SECONDS - track.seconds(position) for track in self._tracks.values())

    @property
    def underruns(self) -> int:
        """Gaps within an utterance because its audio did not come in time."""
        return self._starved_before + self._tape.starved

    def pause(self, unheard: float = 0.0) -> None:
        """Fall silent within one frame; `unheard` seconds that were taken have been dropped on the wire."""
        if self.paused:
            return
        self._live = None
        tape = self._tape
        # Audio dropped further on is no neighbour of what the caller heard last, and must not follow it.
        tail = None if unheard > 0 else self._fade_out(tape)
        self._paused_at = _back(tape.cues, tape.position, round(unheard / FRAME_SECONDS))
        self._live = tail

    def resume(self) -> None:
        """Go on from the start of the word that was cut."""
        if not self.paused:
            return
        tape = _Tape()
        tape.cues, tape.open = self._tape.cues, self._tape.open
        tape.position = target = self._resume_position()
        if target < len(tape.cues) and isinstance(first := tape.cues[target], bytes):
            tape.cues[target] = fade(first, rising=True)
        farthest = max(self._farthest, self._paused_at)
        self._replace(tape)
        self._farthest = farthest

    def discard(self, unheard: float = 0.0) -> tuple[Heard, ...]:
        """Fall silent and forget all; what was heard of the utterances that had begun."""
        self.pause(unheard)
        position = max(self._position, self._farthest)
        heard = tuple(
            Heard(track.utterance, track.heard(track.seconds(position)))
            for track in self._tracks.values()
            if track.seconds(position) > 0
        )
        self._tracks.clear()
        tail = self._live
        self._replace(_Tape())
        if tail is not None and tail is not self._tape and not tail.position:
            # The fade-out has not been taken yet: it comes first, on the new tape.
            self._tape.cues.extend(tail.cues)
        return heard

    def close(self) -> None:
        """Drop the callback of a playout that was discarded, because its owner holds this object."""
        self._notify = _ignore

    # private

    @property
    def _position(self) -> int:
        return self._paused_at if self.paused else self._tape.position

    def _place(self, track: _Track) -> None:
        if track.start == sys.maxsize:
            track.start = len(self._tape.cues)
            self._tape.cues.append(Cue(track.utterance, begins=True))
            self._tape.open = True

    def _cancel_before(self) -> None:
        """An utterance has its first audio: what only covered the wait for it ends within a frame."""
        for track in self._tracks.values():
            if track.utterance.cancellable and track.complete and not track.cancelled:
                track.cancelled = True
                self._skip(track)

    def _skip(self, track: _Track) -> None:
        """Go on where the audio of one that is being said ends."""
        end = track.start + 1 + track.frames
        if self.paused:
            if track.start < self._paused_at < end:
                self._paused_at = end
            return
        old = self._tape
        position = old.position
        if not track.start < position < end:
            return
        tape = _Tape()
        tape.cues, tape.open = old.cues, old.open
        tape.position = end - 1
        if isinstance(following := tape.cues[position], bytes):
            tape.cues[end - 1] = fade(following, rising=False)
        self._replace(tape)

    def _replace(self, tape: _Tape) -> None:
        self._starved_before += self._tape.starved
        self._tape = self._live = tape
        self._farthest = 0

    def _let_go(self, track: _Track) -> None:
        del self._tracks[track.utterance.number]
        cues = self._tape.cues
        last = track.start + 1 + track.frames
        for index in range(track.start, min(last + 1, len(cues))):
            cues[index] = None
        if not track.complete:
            self._tape.open = False

    def _fade_out(self, tape: _Tape) -> _Tape | None:
        position = tape.position
        cue = tape.cues[position] if 0 < position < len(tape.cues) else None
        if not isinstance(cue, bytes) or not isinstance(tape.cues[position - 1], bytes):
            return None
        tail = _Tape()
        tail.cues.append(fade(cue, rising=False))
        return tail

    def _resume_position(self) -> int:
        position = self._paused_at
        for track in self._tracks.values():
            first = track.start + 1
            if first < position <= first + track.frames and not track.cancelled:
                return first + int(resume_point(track.words, track.seconds(position)) / FRAME_SECONDS)
        return position


def _ignore(cue: Cue, at: float) -> None:
    """Stand in for the callback of a closed playout."""


def _back(cues: list[bytes | Cue | None], position: int, frames: int) -> int:
    """The position `frames` frames before `position`."""
    while frames > 0 and position > 0:
        position -= 1
        frames -= isinstance(cues[position], bytes)
    return position


def fade(frame: bytes, *, rising: bool) -> bytes:
    samples = array.array("h", frame)
    for index in range(FADE_SAMPLES):
        gain = index if rising else FADE_SAMPLES - index
        samples[index] = samples[index] * gain // FADE_SAMPLES
    if not rising:
        samples[FADE_SAMPLES:] = array.array("h", bytes(2 * (FRAME_SAMPLES - FADE_SAMPLES)))
    return samples.tobytes()
