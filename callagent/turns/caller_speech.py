"""The caller's side of the floor: voice activity, words, keys, and the instants of the present turn."""

from __future__ import annotations

import math
from collections import deque

from callagent.agents import ListenSettings
from callagent.turns.digits import DigitCollector
from callagent.turns.listener import CallerInput, Listener
from callagent.turns.turn_timings import TurnTimings
from callagent.turns.voice_activity_gate import Edge, VoiceActivityGate, VoiceEdge

MOST_EARLY_KEYS = 32
RECENT_FRAMES = 400
"""8 s: as much as a turn model hears."""


class CallerSpeech:
    """Joins gate, listener and digit collector. No clock, no timers."""

    def __init__(self, ears: CallerInput, acknowledgements: frozenset[str]) -> None:
        self._gate = VoiceActivityGate(ears.voice_activity, ears.gate)
        self.listener = Listener(acknowledgements, ears.language)
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
