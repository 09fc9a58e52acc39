"""What the caller says and keys in a turn: voice activity, the recogniser's transcripts, digits, timings."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from callagent.agents import DigitSettings, ListenSettings
from callagent.speech import Recognizer, RecognizerSettings, RecognizerStream, Transcript
from callagent.turns.endpointing import TurnModel
from callagent.turns.events import TurnTimings
from callagent.turns.voice_activity_gate import Edge, VoiceActivity, VoiceActivityGate, VoiceActivitySettings, VoiceEdge

ACKNOWLEDGEMENTS = frozenset(
    {"ah", "aha", "alright", "hm", "hmm", "huh", "mhm", "mhmm", "mm", "mm-hm", "mm-hmm", "mmhm", "mmm", "oh", "ok"}
    | {"okay", "right", "uh", "uh-huh", "uhhuh", "uhuh", "um", "yeah", "yep"}
)
"""Backchannel words, with which a listener says "go on": alone they do not take the floor from the agent."""
MAX_DIGITS = 64
"""Digits in one answer where the agent sets no limit."""
MAX_EARLY_KEYS = 32
"""Keys kept that cannot be counted yet; further ones are dropped."""
RECENT_FRAMES = 400
"""Frames kept for a turn model, which hears the last 8 s."""


@dataclass(frozen=True, slots=True)
class CallerInput:
    """Recogniser, voice activity and turn model of one call. `recognizer=None`: the call takes only key presses."""

    recognizer: Recognizer | None
    voice_activity: VoiceActivity
    """Detector of this call alone."""
    gate: VoiceActivitySettings = field(default_factory=VoiceActivitySettings)
    turn_model: TurnModel | None = None
    """Judges whether the caller has finished; None: only silence and words tell."""
    language: str = "en-US"


@dataclass(frozen=True, slots=True)
class CallerWords:
    """What the caller said in a turn."""

    text: str
    alternatives: tuple[str, ...]
    added: str
    """The part of `text` that came after the turn was reopened; all of it if it was not."""


class CallerSpeech:
    """Voice activity gate, transcription and digit collection of one call, without a clock or timers."""

    def __init__(self, caller_input: CallerInput, acknowledgements: frozenset[str]) -> None:
        self._gate = VoiceActivityGate(caller_input.voice_activity, caller_input.gate)
        self.transcription = Transcription(acknowledgements, caller_input.language)
        self.turn_model = caller_input.turn_model
        self.settings = ListenSettings()
        self._recent: deque[bytes] = deque(maxlen=RECENT_FRAMES if caller_input.turn_model else 0)
        self._collector: DigitCollector | None = None
        self._keys = ""
        """Keys pressed and not counted yet."""
        self._turn_started: float | None = None
        self.last_started = 0.0
        """Start of the first voiced frame of the latest speech."""
        self.last_ended = -math.inf
        """End of the latest speech; minus infinity before there was any."""
        self.barge_in_held_back = False
        """The caller is speaking surely enough to interrupt, but over an utterance that may not be interrupted."""

    def set_listen(self, settings: ListenSettings) -> None:
        """Set how the next turn is taken."""
        self.settings = self.transcription.settings = settings
        self._collector = None if settings.digits is None else DigitCollector(settings.digits)

    # speech

    @property
    def speech_counts(self) -> bool:
        """Whether the agent listens to speech in this turn, and the call has a recogniser for it."""
        return self.transcription.opened and self.settings.speech

    @property
    def speaking(self) -> bool:
        return self.speech_counts and self._gate.speaking

    @property
    def silent_since(self) -> float | None:
        """End of the latest speech; None during speech, and before there was any."""
        return None if self._gate.speaking or self.last_ended == -math.inf else self.last_ended

    def feed_audio(self, pcm: bytes, now: float) -> tuple[VoiceEdge, ...]:
        """Take the 20 ms that ended at `now`; return what changed, if speech counts."""
        # The stream gets silence as well and keeps its last 0.5 s, because an utterance begins before it is noticed.
        self.transcription.feed_audio(pcm)
        self._recent.append(pcm)
        edges = self._gate.feed(pcm, now)
        for edge in edges:
            match edge.edge:
                case Edge.STARTED:
                    self.last_started = edge.at
                    self._turn_started = edge.at if self._turn_started is None else self._turn_started
                case Edge.ENDED:
                    self.last_ended = edge.at
                    self.barge_in_held_back = False
                case Edge.BARGED:
                    pass
        return edges if self.speech_counts else ()

    @property
    def recent_audio(self) -> bytes:
        """The latest audio for the turn model; empty without one."""
        return b"".join(self._recent)

    def discard_noise(self) -> None:
        """Forget sounds that turned out to have no words; not while words may still come."""
        self.transcription.discard_noise()
        if not self.transcription.has_text and not self._gate.speaking:
            self._turn_started = None

    # keys

    @property
    def keys_barge_in(self) -> bool:
        """Whether keys count while the agent speaks."""
        return self.settings.digits is not None and self.settings.digits.while_speaking

    @property
    def keys_are_pii(self) -> bool:
        """Whether the digits of this turn are to be kept out of log, transcript and record."""
        return self.settings.digits is not None and self.settings.digits.is_pii

    def press_key(self, digit: str) -> None:
        """Keep a key until `count_next_key`."""
        self._keys = (self._keys + digit)[:MAX_EARLY_KEYS]

    def discard_early_keys(self) -> None:
        """Forget keys that were pressed before the caller's turn, unless the agent asked for them."""
        if not self.keys_barge_in:
            self._keys = ""

    def count_next_key(self) -> bool | None:
        """Count one key; return whether it completes the digits, or None if there is no key to count."""
        # Without a question for digits, keys have no meaning: they must not answer a later question.
        if self._collector is None:
            self._keys = ""
        while self._keys and self._collector is not None:
            key, self._keys = self._keys[0], self._keys[1:]
            if self._collector.accepts(key):
                return self._collector.add(key)
        return None

    @property
    def digits(self) -> str:
        return "" if self._collector is None else self._collector.digits

    # the turn

    def end_turn(self, now: float) -> TurnTimings:
        """Begin a new turn; return the timings of the one that ends at `now`."""
        spoke = self._turn_started is not None
        timings = TurnTimings(
            speech_started=self._turn_started,
            speech_ended=self.last_ended if spoke and not self._gate.speaking else None,
            transcript_ready=self.transcription.final_at,
            turn_ended=now,
        )
        self._turn_started = self.last_started if self._gate.speaking else None
        # Keys may have ended the turn of a caller who goes on speaking. The gate reports each barge-in only once, so
        # this one has to be remembered.
        self.barge_in_held_back = self._gate.barging
        self._keys = ""
        return timings


class Transcription:
    """Drives the recogniser's stream and joins its transcripts to the text of a turn.

    A turn may take several utterances of the recogniser. They are numbered by `RecognizerStream.begin()`, so that
    transcripts of an earlier turn, which come late, are told apart from those of this one.
    """

    def __init__(self, acknowledgements: frozenset[str] = ACKNOWLEDGEMENTS, language: str = "en-US") -> None:
        self.language = language
        self.settings = ListenSettings()
        self._acknowledgements = acknowledgements
        self._stream: RecognizerStream | None = None
        self._transcribing = False
        """An utterance has begun and is not finished."""
        self._latest_utterance = 0
        """Number of the latest utterance that has begun."""
        self._first_utterance = 1
        """Number of the turn's first one; transcripts of earlier ones are too late."""
        self._transcripts: dict[int, Transcript] = {}
        """The latest transcript of each utterance of the turn."""
        self._reopened_text = ""
        """Text of this turn from before it was ended and reopened."""
        self._ended_text = ""
        """Text of the turn that was ended last."""
        self.final_at: float | None = None
        """When the latest final transcript came."""

    # audio in

    def open(self, stream: RecognizerStream) -> None:
        self._stream = stream

    @property
    def opened(self) -> bool:
        return self._stream is not None

    def feed_audio(self, pcm: bytes) -> None:
        if self._stream is not None:
            self._stream.feed(pcm)

    def begin_utterance(self) -> None:
        """Have the recogniser transcribe from now on. Does nothing within an utterance that is not finished."""
        if self._stream is None or self._transcribing:
            return
        self._transcribing = True
        self._latest_utterance += 1
        settings = self.settings
        self._stream.begin(RecognizerSettings(self.language, settings.expected, settings.keywords))

    def finish_utterance(self) -> None:
        """Ask the recogniser for the final transcript. Does nothing outside of an utterance."""
        if self._stream is not None and self._transcribing:
            self._transcribing = False
            self._stream.finish()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # text out

    def add_transcript(self, transcript: Transcript, now: float) -> bool:
        """Take a transcript that came at `now`; return False if it belongs to a turn that is over."""
        if not self._first_utterance <= transcript.utterance <= self._latest_utterance:
            return False
        self._transcripts[transcript.utterance] = transcript
        if transcript.final:
            self.final_at = now
        return True

    @property
    def final_pending(self) -> bool:
        """Whether the recogniser has still to deliver the final transcript of an utterance that is finished."""
        # The utterance that is under way, if there is one, is not finished.
        finished = range(self._first_utterance, self._latest_utterance + (not self._transcribing))
        return any(number not in self._transcripts or not self._transcripts[number].final for number in finished)

    @property
    def settled(self) -> bool:
        """Whether everything that was said is finally transcribed."""
        return not self._transcribing and not self.final_pending

    @property
    def text(self) -> str:
        """The text of the turn so far."""
        return _join(self._reopened_text, self._new_text)

    @property
    def has_text(self) -> bool:
        """Whether there are words that the agent was not given yet, at an earlier end of this turn."""
        return bool(self._new_text)

    @property
    def has_words(self) -> bool:
        """Whether the words that the agent was not given yet are more than acknowledgements."""
        words = (word.strip(".,!?;:…—–\"'").lower() for word in self._new_text.split())
        return any(word and word not in self._acknowledgements for word in words)

    def end_turn(self, *, wanted: bool = True) -> CallerWords:
        """Return the words of the turn and begin a new one; final transcripts that are still pending come too late.

        `wanted=False`: drop the words, because the caller pressed keys or wrote, and words heard meanwhile are seldom
        meant for the agent.
        """
        if not wanted:
            self.finish_utterance()
            self.discard_text()
            self._reopened_text = ""
        text, added = self.text, self._new_text
        # Alternatives are of one utterance; they say nothing about a text that is joined from several.
        alone = len(self._transcripts) == 1 and not self._reopened_text
        alternatives = next(iter(self._transcripts.values())).alternatives if alone else ()
        self.discard_text()
        self._ended_text = text
        self._reopened_text = ""
        return CallerWords(text, alternatives, added)

    def reopen_turn(self) -> str:
        """Continue the turn that was ended last; return its text so far."""
        self._reopened_text = self._ended_text
        return self._ended_text

    def discard_noise(self) -> None:
        """Discard text without words that count, unless a final transcript may still bring some."""
        if not self.has_words and not self.final_pending:
            self.discard_text()

    def discard_text(self) -> None:
        """Forget what was said so far. An utterance that is under way becomes the first of the new turn."""
        # Such an utterance keeps its number, so its transcripts count in the new turn.
        self._transcripts.clear()
        self._first_utterance = self._latest_utterance + (not self._transcribing)
        self.final_at = None

    @property
    def _new_text(self) -> str:
        return _join(*(self._transcripts[number].text for number in sorted(self._transcripts)))


class DigitCollector:
    """The keys of one turn, collected to one answer. The floor times the pauses between them."""

    def __init__(self, settings: DigitSettings) -> None:
        self.settings = settings
        self.digits = ""

    def add(self, digit: str) -> bool:
        """Add one key; return whether the digits are complete."""
        if self.settings.end_key and digit == self.settings.end_key:
            if not self.digits and self.settings.end_key_alone:
                self.digits = digit
            return True
        self.digits += digit
        return len(self.digits) >= (self.settings.max_digits or MAX_DIGITS)

    def accepts(self, digit: str) -> bool:
        """Return whether the key is to be added; an end key without digits is not, unless the agent allows that."""
        return bool(self.digits) or digit != self.settings.end_key or self.settings.end_key_alone


def _join(*texts: str) -> str:
    return " ".join(text.strip() for text in texts if text.strip())
