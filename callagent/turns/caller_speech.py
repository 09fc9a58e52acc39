"""The caller's side of the floor: voice activity, words, keys, and the instants of the present turn."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from callagent.agents import DigitSettings, ListenSettings
from callagent.speech.protocol import Recognizer, RecognizerSettings, RecognizerStream, Transcript
from callagent.turns.endpointing import TurnModel
from callagent.turns.settings import ACKNOWLEDGEMENTS
from callagent.turns.turn_timings import TurnTimings
from callagent.turns.voice_activity_gate import Edge, VoiceActivity, VoiceActivityGate, VoiceActivitySettings, VoiceEdge

MAX_DIGITS = 64
"""Bound where the agent set none."""


class DigitCollector:
    """The keys of one turn. Its times are run by the floor."""

    def __init__(self, settings: DigitSettings) -> None:
        self.settings = settings
        self.digits = ""

    def press(self, digit: str) -> bool:
        """Take one key; True: the digits are complete."""
        if self.settings.end_key and digit == self.settings.end_key:
            if not self.digits and self.settings.end_key_alone:
                self.digits = digit
            return True
        self.digits += digit
        return len(self.digits) >= (self.settings.max_digits or MAX_DIGITS)

    def wants(self, digit: str) -> bool:
        """Whether the key is to be pressed."""
        return bool(self.digits) or digit != self.settings.end_key or self.settings.end_key_alone


@dataclass(frozen=True, slots=True)
class CallerInput:
    """What a call listens with. No recogniser: it takes key presses only."""

    recognizer: Recognizer | None
    voice_activity: VoiceActivity
    """This call's own."""
    gate: VoiceActivitySettings = field(default_factory=VoiceActivitySettings)
    turn_model: TurnModel | None = None
    """Hears whether the caller has finished; None: silence and words alone tell."""
    language: str = "en-US"


@dataclass(frozen=True, slots=True)
class CallerWords:
    """What was said in a turn."""

    text: str
    alternatives: tuple[str, ...]
    added: str
    """Of `text`, what came after the turn was reopened."""


class Transcription:
    """One call's listener. A turn may take several utterances of the recogniser; their texts are joined."""

    def __init__(self, acknowledgements: frozenset[str] = ACKNOWLEDGEMENTS, language: str = "en-US") -> None:
        self.language = language
        self.settings = ListenSettings()
        self._acknowledgements = acknowledgements
        self._stream: RecognizerStream | None = None
        self._transcribing = False
        self._begun = 0
        """Number of the last `begin()`."""
        self._first = 1
        """The turn's first utterance; transcripts of earlier ones are too late."""
        self._transcripts: dict[int, Transcript] = {}
        """The latest of each utterance of the turn."""
        self._before = ""
        """Text of a turn that was ended and then reopened."""
        self._taken = ""
        self.ready: float | None = None
        """When the last final transcript came."""

    def open(self, stream: RecognizerStream) -> None:
        self._stream = stream

    @property
    def opened(self) -> bool:
        return self._stream is not None

    # sound in

    def feed(self, pcm: bytes) -> None:
        if self._stream is not None:
            self._stream.feed(pcm)

    def begin(self) -> None:
        """The caller speaks. Nothing happens within an utterance that is not finished."""
        if self._stream is None or self._transcribing:
            return
        self._transcribing = True
        self._begun += 1
        settings = self.settings
        self._stream.begin(RecognizerSettings(self.language, settings.expected, settings.keywords))

    def finish(self) -> None:
        """The caller's utterance is over."""
        if self._stream is not None and self._transcribing:
            self._transcribing = False
            self._stream.finish()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # text out

    def take(self, transcript: Transcript, now: float) -> bool:
        """A transcript came; False: it belongs to a turn that is over."""
        if not self._first <= transcript.utterance <= self._begun:
            return False
        self._transcripts[transcript.utterance] = transcript
        if transcript.final:
            self.ready = now
        return True

    @property
    def owed(self) -> bool:
        """The recogniser owes a transcript of what was finished."""
        finished = range(self._first, self._begun + (not self._transcribing))
        return any(number not in self._transcripts or not self._transcripts[number].final for number in finished)

    @property
    def settled(self) -> bool:
        """All that was said is transcribed."""
        return not self._transcribing and not self.owed

    @property
    def text(self) -> str:
        return _join(self._before, self._new_text)

    @property
    def has_text(self) -> bool:
        """There is a word, of whatever kind, not counting what was handed over before."""
        return bool(self._new_text)

    @property
    def has_words(self) -> bool:
        """There is a word that is not only an acknowledgement."""
        words = (word.strip(".,!?;:…—–\"'").lower() for word in self._new_text.split())
        return any(word and word not in self._acknowledgements for word in words)

    def end_turn(self, *, wanted: bool = True) -> CallerWords:
        """Hand over the turn's words and forget them; what is still owed is too late.

        Not wanted: keys were pressed, and what was heard beside them is seldom meant.
        """
        if not wanted:
            self.finish()
            self.forget()
            self._before = ""
        text, added = self.text, self._new_text
        alone = len(self._transcripts) == 1 and not self._before
        alternatives = next(iter(self._transcripts.values())).alternatives if alone else ()
        self.forget()
        self._taken = text
        self._before = ""
        return CallerWords(text, alternatives, added)

    def reopen(self) -> str:
        """The turn handed over last goes on; its text."""
        self._before = self._taken
        return self._taken

    def forget_noise(self) -> None:
        """Let go of what turned out to be no words; not of what the recogniser still owes."""
        if not self.has_words and not self.owed:
            self.forget()

    def forget(self) -> None:
        """What was said so far is no part of any turn."""
        self._transcripts.clear()
        self._first = self._begun + (not self._transcribing)
        self.ready = None

    # private

    @property
    def _new_text(self) -> str:
        return _join(*(self._transcripts[number].text for number in sorted(self._transcripts)))


def _join(*texts: str) -> str:
    return " ".join(text.strip() for text in texts if text.strip())


MOST_EARLY_KEYS = 32
RECENT_FRAMES = 400
"""8 s: as much as a turn model hears."""


class CallerSpeech:
    """Joins gate, listener and digit collector. No clock, no timers."""

    def __init__(self, ears: CallerInput, acknowledgements: frozenset[str]) -> None:
        self._gate = VoiceActivityGate(ears.voice_activity, ears.gate)
        self.listener = Transcription(acknowledgements, ears.language)
        self.turn_model = ears.turn_model
        self.settings = ListenSettings()
        self._recent: deque[bytes] = deque(maxlen=RECENT_FRAMES if ears.turn_model else 0)
        self._collector: DigitCollector | None = None
        self._keys = ""
        """Pressed and not yet counted."""
        self._turn_started: float | None = None
        self.last_started = 0.0
        """First voiced frame of the last speech."""
        self.last_ended = -math.inf
        """End of the last speech; minus infinity before there was any."""
        self.held_back = False
        """Sure speech goes on that was not let through: what is being said may not be interrupted."""

    def set_listen(self, settings: ListenSettings) -> None:
        """How the next turn is taken."""
        self.settings = self.listener.settings = settings
        self._collector = None if settings.digits is None else DigitCollector(settings.digits)

    # speech

    @property
    def hears(self) -> bool:
        """Speech counts in this turn."""
        return self.listener.opened and self.settings.speech

    @property
    def speaking(self) -> bool:
        return self.hears and self._gate.speaking

    @property
    def silent_since(self) -> float | None:
        """End of the last speech; None while there is some, and before there was any."""
        return None if self._gate.speaking or self.last_ended == -math.inf else self.last_ended

    def feed(self, pcm: bytes, now: float) -> tuple[VoiceEdge, ...]:
        """20 ms that ended at `now`; what changed."""
        self.listener.feed(pcm)
        self._recent.append(pcm)
        edges = self._gate.feed(pcm, now)
        for edge in edges:
            match edge.edge:
                case Edge.STARTED:
                    self.last_started = edge.at
                    self._turn_started = edge.at if self._turn_started is None else self._turn_started
                case Edge.ENDED:
                    self.last_ended = edge.at
                    self.held_back = False
                case Edge.BARGED:
                    pass
        return edges if self.hears else ()

    @property
    def recent(self) -> bytes:
        """The last seconds of the line, where a turn model is to hear them."""
        return b"".join(self._recent)

    def forget_noise(self) -> None:
        """What was heard is no part of a turn, unless there are words in it or may yet be."""
        self.listener.forget_noise()
        if not self.listener.has_text and not self._gate.speaking:
            self._turn_started = None

    # keys

    @property
    def keys_interrupt(self) -> bool:
        """Keys count while the agent speaks."""
        return self.settings.digits is not None and self.settings.digits.while_speaking

    @property
    def keys_are_pii(self) -> bool:
        return self.settings.digits is not None and self.settings.digits.is_pii

    def press(self, digit: str) -> None:
        """Keep a key until `take_key`."""
        self._keys = (self._keys + digit)[:MOST_EARLY_KEYS]

    def forget_early_keys(self) -> None:
        """Keys pressed before the caller's turn count only where the agent asks for that."""
        if not self.keys_interrupt:
            self._keys = ""

    def take_key(self) -> bool | None:
        """Count the next key: True, the digits are complete; False, not yet; None, there is no key to count."""
        if self._collector is None:
            self._keys = ""
        while self._keys and self._collector is not None:
            key, self._keys = self._keys[0], self._keys[1:]
            if self._collector.wants(key):
                return self._collector.press(key)
        return None

    @property
    def digits(self) -> str:
        return "" if self._collector is None else self._collector.digits

    # the turn

    def end_turn(self, now: float) -> TurnTimings:
        """The instants of the turn that ends now."""
        spoke = self._turn_started is not None
        record = TurnTimings(
            speech_started=self._turn_started,
            speech_ended=self.last_ended if spoke and not self._gate.speaking else None,
            transcript_ready=self.listener.ready,
            turn_ended=now,
        )
        self._turn_started = self.last_started if self._gate.speaking else None
        # Keys may have ended the turn of a caller who goes on speaking: no edge will tell of it.
        self.held_back = self._gate.barging
        self._keys = ""
        return record
