"""What the caller said: drives the recogniser's stream and puts transcripts together to a turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from callagent.agents import ListenSettings
from callagent.speech.protocol import Recognizer, RecognizerSettings, RecognizerStream, Transcript
from callagent.turns.endpointing import TurnModel
from callagent.turns.settings import ACKNOWLEDGEMENTS
from callagent.turns.voice_activity_gate import VoiceActivity, VoiceActivitySettings


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


class Listener:
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
