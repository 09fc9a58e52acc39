"""The playout: which frames of the agent's utterances are sent, and what the caller has heard of each.

Two threads meet here. The pump thread calls `next_frame` every 20 ms; the event loop calls everything else. The pump
follows one `_Tape`: a list that only the loop extends, and a position that only the pump moves, each step a single
operation under the interpreter's lock. To pause, resume or discard, the loop puts another tape (or none) in its place
with one assignment. A pump that was inside `next_frame` just then still delivers the frame of the old tape: at most
20 ms of audio are counted a frame late, never lost, and neither thread ever waits for the other.

The tape also tells what was heard. Each utterance has a track: where its frames lie on the tape and when its words are
spoken. A position on the tape, less what the wire had taken and dropped unheard, gives the seconds heard of each track.
From these seconds, `heard_text` finds the words.
"""

from __future__ import annotations

import array
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from callagent.audio import FRAME_BYTES, FRAME_SAMPLES, FRAME_SECONDS
from callagent.speech import WordTime

CHARACTERS_PER_SECOND = 15.0
"""Usual pace of a telephone voice, for audio whose length is not known yet."""
REWIND_SECONDS = 0.3
"""Seconds to go back in a rewind if the voice gives no word times."""


def heard_text(text: str, words: Sequence[WordTime], heard: float, length: float | None) -> str:
    """Return the part of `text` that is spoken in the first `heard` seconds of its audio, in whole words.

    A word counts as heard if at least half of it was. `length`: seconds of the whole audio, if known. Without word
    times the text is taken to be spoken at an even pace.
    """
    if length is not None and heard >= length:
        return text
    spoken = text.split()
    if words:
        count = sum((word.start + word.end) / 2 <= heard for word in words)
        if [word.word for word in words] == spoken[: len(words)]:
            return " ".join(spoken[:count])
        # The voice's words are not those of the text ("24" is spoken as two), so their share tells the place.
        if length is not None:
            return _share(spoken, count / len(words))
    estimate = len(text) / CHARACTERS_PER_SECOND if length is None else length
    return _share(spoken, heard / max(estimate, 0.02))


def resume_point(words: Sequence[WordTime], heard: float) -> float:
    """Return the second from which to say an utterance again of which `heard` seconds were heard."""
    if not words:
        return max(heard - REWIND_SECONDS, 0.0)
    return max((word.start for word in words if word.start <= heard), default=0.0)


def _share(words: list[str], share: float) -> str:
    """Return the leading words that make up `share` of the characters."""
    budget = share * sum(len(word) + 1 for word in words)
    leading = []
    for word in words:
        if budget < (len(word) + 1) / 2:
            break
        budget -= len(word) + 1
        leading.append(word)
    return " ".join(leading)


FADE_SAMPLES = 40
"""Samples of a fade (5 ms). A cut without one is heard as a click."""


class UtteranceKind(Enum):
    SPEECH = "speech"
    FILLER = "filler"
    RECORDING = "recording"


@dataclass(frozen=True, slots=True)
class Utterance:
    """Words that the agent says in one go."""

    number: int
    """Counts the call's utterances from 1."""
    text: str
    interruptible: bool = True
    kind: UtteranceKind = UtteranceKind.SPEECH
    cancellable: bool = False
    """Whether it ends where the next utterance's audio begins."""


@dataclass(frozen=True, slots=True)
class Cue:
    """The place on the tape at which an utterance begins or ends."""

    utterance: Utterance
    begins: bool


Notify = Callable[[Cue, float], None]
"""Called on the pump thread with each cue that it passes and the time. Must do no more than hand both to the loop."""


@dataclass(slots=True)
class _Track:
    """One utterance on the tape. Its frames lie side by side from `start` + 1; before and after them are its cues."""

    utterance: Utterance
    start: int = sys.maxsize
    """Position of its first cue; beyond every position as long as it has no audio."""
    frames: int = 0
    words: list[WordTime] = field(default_factory=list)
    complete: bool = False
    cut: bool = False
    """Its audio does not say the whole text."""
    cancelled: bool = False
    """The next utterance has taken the place of what was left of it."""

    def seconds(self, position: int) -> float:
        """Return how many seconds of the utterance lie before a position."""
        return min(max(position - self.start - 1, 0), self.frames) * FRAME_SECONDS

    def heard(self, seconds: float) -> str:
        """Return the words in the utterance's first `seconds`."""
        length = self.frames * FRAME_SECONDS if self.complete and not self.cut else None
        return heard_text(self.utterance.text, self.words, seconds, length)


class _Tape:
    """What the pump sends, in order. Only the pump changes `position`, `starving` and `starved`."""

    __slots__ = ("cues", "open", "position", "starved", "starving")

    def __init__(self) -> None:
        self.cues: list[bytes | Cue | None] = []
        """Frames and cues; None: withdrawn, or heard and released."""
        self.position = 0
        """Position of the next frame or cue."""
        self.open = False
        """More frames of the last utterance are to come."""
        self.starving = False
        """The pump has come to the end of an open tape."""
        self.starved = 0
        """How often that happened."""


@dataclass(frozen=True, slots=True)
class Heard:
    """How much of an utterance the caller has heard."""

    utterance: Utterance
    text: str


class Playout:
    """Plays the utterances of one call in order, one at a time."""

    def __init__(self, notify: Notify, clock: Callable[[], float] = time.monotonic) -> None:
        self._notify = notify
        self._clock = clock
        self._tape = _Tape()
        """Where the loop puts frames."""
        self._live: _Tape | None = self._tape
        """Where the pump takes frames: the same tape; while paused, None or a last fade-out."""
        self._tracks: dict[int, _Track] = {}
        """Utterances that are not yet heard to their end, by number, in order."""
        self._paused_at = 0
        """Position up to which the caller had heard when the playout was paused."""
        self._farthest_heard = 0
        """The same before the latest rewind: words said again count as heard even if they are interrupted now."""
        self._starved_before = 0
        """Gaps on the tapes before this one."""

    # on the pump thread

    def next_frame(self) -> bytes | None:
        """Return the frame to send now, or None if there is nothing to say."""
        # Read once: the loop may put another tape in its place at any time.
        tape = self._live
        if tape is None:
            return None
        cues = tape.cues
        while tape.position < len(cues):
            cue = cues[tape.position]
            # From here on the loop counts the frame as sent.
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

    # on the event loop: adding audio

    def begin(self, utterance: Utterance) -> None:
        """Begin an utterance, whose frames follow those of the complete utterances before it."""
        tape = self._tape
        # Nothing on this tape is of use any more: a new one keeps the list from growing throughout the call.
        if not self._tracks and not self.paused and tape.position >= len(tape.cues):
            self._replace(_Tape())
        self._tracks[utterance.number] = _Track(utterance)

    def append(self, utterance: Utterance, frame: bytes) -> bool:
        """Add 20 ms to an utterance; return False if it is no longer wanted."""
        track = self._tracks.get(utterance.number)
        if track is None:
            return False
        assert len(frame) == FRAME_BYTES
        if not track.frames:
            self._cut_off_cancellable()
        self._place(track)
        # Counted before it is on the tape: the pump may take it at once, and must then find it within its track.
        track.frames += 1
        self._tape.cues.append(frame)
        return True

    def add_words(self, utterance: Utterance, words: Iterable[WordTime]) -> None:
        """Add the times at which the next words of an utterance are spoken."""
        track = self._tracks.get(utterance.number)
        if track is not None:
            track.words.extend(words)

    def complete(self, utterance: Utterance, *, cut: bool = False) -> None:
        """Mark that an utterance has all its frames; `cut`: they do not say all of its text."""
        track = self._tracks.get(utterance.number)
        if track is not None and not track.complete:
            self._place(track)
            track.complete, track.cut = True, cut
            self._tape.open = False
            self._tape.cues.append(Cue(utterance, begins=False))

    def withdraw(self, utterance: Utterance) -> bool:
        """Remove an utterance if nothing of it was played; return whether that was so.

        If the pump is taking its first frame just then, that one frame is still sent.
        """
        track = self._tracks.get(utterance.number)
        if track is None or self._position > track.start:
            return False
        self._remove(track)
        return True

    def release(self, utterance: Utterance) -> str:
        """Remove an utterance that the caller has heard to its end, so that no rewind goes back into it.

        Returns the words heard.
        """
        track = self._tracks.get(utterance.number)
        if track is None:
            return ""
        self._remove(track)
        return track.heard(track.frames * FRAME_SECONDS)

    # on the event loop: what is heard

    @property
    def paused(self) -> bool:
        return self._live is not self._tape

    @property
    def idle(self) -> bool:
        """Whether nothing is being said and nothing waits."""
        return not self._tracks

    def current(self, unheard: float) -> Iterator[Utterance]:
        """Yield the utterances that are being said, or else the next one.

        `unheard`: seconds of them that the wire has taken and not played yet.
        """
        position = self._position
        heard_to = _position_before(self._tape.cues, position, round(unheard / FRAME_SECONDS))
        found = False
        for track in self._tracks.values():
            if found and position <= track.start:
                return
            # One that is sent to its end still counts while the wire has some of it to play.
            if heard_to <= track.start + 1 + track.frames or not track.complete:
                found = True
                yield track.utterance

    def has_passed(self, cue: Cue) -> bool:
        """Return whether the pump is past a cue; False after a pause that went back before it."""
        track = self._tracks.get(cue.utterance.number)
        if track is None:
            return False
        return self._position > (track.start if cue.begins else track.start + 1 + track.frames)

    @property
    def complete_ahead(self) -> int:
        """How many utterances are complete and not begun."""
        position = self._position
        return sum(track.complete and position <= track.start for track in self._tracks.values())

    @property
    def remaining(self) -> float:
        """Seconds of audio that are there and not yet played."""
        position = self._position
        return sum(track.frames * FRAME_SECONDS - track.seconds(position) for track in self._tracks.values())

    @property
    def underruns(self) -> int:
        """How many gaps utterances had because their audio did not come in time."""
        return self._starved_before + self._tape.starved

    def pause(self, unheard: float = 0.0) -> None:
        """Fall silent within one frame. `unheard`: seconds that were taken and that the wire has dropped."""
        if self.paused:
            return
        # The pump is stopped before the position is read, because otherwise a frame could be sent and not be counted.
        self._live = None
        tape = self._tape
        # A fade-out continues the last frame taken. If the wire has dropped that one, the caller has not heard it, and
        # the fade-out would follow something else.
        tail = None if unheard > 0 else self._fade_out(tape)
        self._paused_at = _position_before(tape.cues, tape.position, round(unheard / FRAME_SECONDS))
        self._live = tail

    def resume(self) -> None:
        """Go on from the start of the word that the pause has cut."""
        if not self.paused:
            return
        # The new tape shares the list of the old one, to which frames may have been added during the pause. It has a
        # position of its own, because the pump moves the old one's until it has left `next_frame`.
        tape = _Tape()
        tape.cues, tape.open = self._tape.cues, self._tape.open
        tape.position = target = self._resume_position()
        if target < len(tape.cues) and isinstance(first := tape.cues[target], bytes):
            tape.cues[target] = fade(first, rising=True)
        farthest = max(self._farthest_heard, self._paused_at)
        self._replace(tape)
        self._farthest_heard = farthest

    def discard(self, unheard: float = 0.0) -> tuple[Heard, ...]:
        """Fall silent and forget everything; return what was heard of the utterances that had begun."""
        self.pause(unheard)
        # Words that were being said a second time were heard before, even if they were cut earlier this time.
        position = max(self._position, self._farthest_heard)
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
        """Drop the callback, whose owner holds this object. Called after `discard`."""
        self._notify = _ignore

    # private

    @property
    def _position(self) -> int:
        return self._paused_at if self.paused else self._tape.position

    def _place(self, track: _Track) -> None:
        """Put the cue of an utterance's beginning on the tape, unless it is there."""
        if track.start == sys.maxsize:
            track.start = len(self._tape.cues)
            self._tape.cues.append(Cue(track.utterance, begins=True))
            self._tape.open = True

    def _cut_off_cancellable(self) -> None:
        """End cancellable utterances within a frame, because the first audio of the next utterance is there."""
        for track in self._tracks.values():
            if track.utterance.cancellable and track.complete and not track.cancelled:
                track.cancelled = True
                self._skip(track)

    def _skip(self, track: _Track) -> None:
        """Go on after the end of an utterance, if it is being said."""
        end = track.start + 1 + track.frames
        if self.paused:
            if track.start < self._paused_at < end:
                self._paused_at = end
            return
        old = self._tape
        position = old.position
        if not track.start < position < end:
            return
        # The fade-out of the frame that would have come next replaces the utterance's last frame. The cue of its end
        # follows, so that the utterance is finished in the usual way.
        tape = _Tape()
        tape.cues, tape.open = old.cues, old.open
        tape.position = end - 1
        if isinstance(following := tape.cues[position], bytes):
            tape.cues[end - 1] = fade(following, rising=False)
        self._replace(tape)

    def _replace(self, tape: _Tape) -> None:
        self._starved_before += self._tape.starved
        self._tape = self._live = tape
        self._farthest_heard = 0

    def _remove(self, track: _Track) -> None:
        del self._tracks[track.utterance.number]
        # Entries become None and are not deleted: the positions of the pump and of the other tracks stay valid.
        cues = self._tape.cues
        last = track.start + 1 + track.frames
        for index in range(track.start, min(last + 1, len(cues))):
            cues[index] = None
        if not track.complete:
            self._tape.open = False

    def _fade_out(self, tape: _Tape) -> _Tape | None:
        position = tape.position
        cue = tape.cues[position] if 0 < position < len(tape.cues) else None
        # Only between two frames of speech is there a sound to fade out.
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


def _position_before(cues: list[bytes | Cue | None], position: int, frames: int) -> int:
    """Return the position `frames` frames before `position`."""
    # Cues last no time, and what was released was heard: neither counts.
    while frames > 0 and position > 0:
        position -= 1
        frames -= isinstance(cues[position], bytes)
    return position


def fade(frame: bytes, *, rising: bool) -> bytes:
    """Return a frame that begins with a fade-in, or with a fade-out and then is silent."""
    samples = array.array("h", frame)
    for index in range(FADE_SAMPLES):
        gain = index if rising else FADE_SAMPLES - index
        samples[index] = samples[index] * gain // FADE_SAMPLES
    if not rising:
        samples[FADE_SAMPLES:] = array.array("h", bytes(2 * (FRAME_SAMPLES - FADE_SAMPLES)))
    return samples.tobytes()
