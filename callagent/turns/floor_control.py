"""Gives the floor: what caller and agent do, as its inputs, and what its effects do to the two."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from callagent.agents import ListenSettings
from callagent.audio import FRAME_SECONDS
from callagent.log import get_logger
from callagent.speech.protocol import Transcript, Voice
from callagent.turns.agent_speech import AgentSpeech, Sounds
from callagent.turns.caller_speech import CallerSpeech
from callagent.turns.endpointing import Endpointing
from callagent.turns.events import (
    BargedIn,
    CallerTurnEnded,
    FloorYielded,
    NoInput,
    PartialHeard,
    PlayoutPaused,
    PlayoutResumed,
    SpeechFailed,
    TurnEvent,
    TurnReopened,
    UtteranceFinished,
    UtteranceStarted,
)
from callagent.turns.floor import AGENT_HAS_THE_FLOOR, Effect, Floor, FloorState, FloorTimes, Input
from callagent.turns.playout import Utterance, UtteranceKind
from callagent.turns.settings import TurnSettings
from callagent.turns.turn_timings import Span, TurnTimings
from callagent.turns.voice_activity_gate import Edge, VoiceEdge

log = get_logger(__name__)


class FloorClock:
    """Gives the machine what happens and the passing of time, and has its effects done."""

    def __init__(
        self, times: FloorTimes, do: Callable[[Effect, float], None], entered: Callable[[float], None]
    ) -> None:
        """`do` an effect, and look about when another state was `entered`; both at a time of the loop."""
        self._loop = asyncio.get_running_loop()
        self._floor = Floor(times)
        self._do = do
        self._entered = entered
        self._inputs: deque[tuple[Input, float | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def state(self) -> FloorState:
        return self._floor.state

    @property
    def silent_since(self) -> float:
        """Of the silence in PAUSED and ENDING."""
        return self._floor.silent_since

    def set_times(self, times: FloorTimes) -> None:
        """They count from the next change of state."""
        self._floor.times = times

    def input(self, given: Input, since: float | None = None) -> None:
        """Give the floor an input and do what follows. What the effects themselves input comes after them."""
        if self._closed:
            return
        self._inputs.append((given, since))
        if len(self._inputs) > 1:
            return
        while self._inputs:
            given, since = self._inputs[0]
            old, now = self._floor.state, self._loop.time()
            for effect in self._floor.input(given, now, since):
                self._do(effect, now)
            if self._floor.state is not old:
                log.debug("floor", old=old.value, new=self._floor.state.value, input=given.name)
                self._entered(now)
            self._inputs.popleft()
        self._arm()

    def be_patient(self, seconds: float) -> None:
        """The silence that ends the caller's turn, of the one that is now; nothing where there is none."""
        self._floor.be_patient(seconds)
        self._arm()

    def close(self) -> None:
        """Ignore every further input and drop the callbacks, whose owner holds this floor. Idempotent."""
        self._closed = True
        self._inputs.clear()
        self._do = self._entered = _ignore
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._floor.deadline
        self._timer = None if due is None else self._loop.call_at(due, self.input, Input.DEADLINE)


def _ignore(*_: object) -> None:
    """Stand in for the callbacks of a closed floor."""


MAX_PENDING_TEXTS = 20
"""Texts waiting for the end of what may not be interrupted; what comes then is dropped."""


class FloorControl:
    """Stands between the caller's voice and the agent's."""

    def __init__(
        self,
        caller: CallerSpeech,
        voice: Voice,
        emit: Callable[[TurnEvent], None],
        settings: TurnSettings,
        sounds: Sounds,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._caller = caller
        self.agent = AgentSpeech(voice, settings.voice_wait, self, sounds)
        self._emit = emit
        self._settings = settings
        self._floor = FloorClock(settings.times(ListenSettings()), self._do, self._entered)
        self._patience = Endpointing(caller.turn_model, settings.patience(), self._reconsider)
        self.clear_wire: Callable[[], float] = _nothing
        """Drops what the wire has taken and not played; the seconds dropped."""
        self.record = TurnTimings()
        """Of the present turn."""
        self._agent_done = False
        """The agent has asked to listen: when all is heard the caller has the floor."""
        self._first_turn = True
        self._reopenable = False
        """What the agent has to answer is words, which may not have been the last."""
        self._paused_at: float | None = None
        self._yielded_at = 0.0
        self._written: deque[str] = deque()
        """What the caller wrote and the agent has not been given."""

    def close(self) -> None:
        """Take no more inputs. Nothing that this holds refers back to it afterwards, once `agent` is closed too."""
        self._floor.close()
        self._patience.close()
        self.clear_wire = _nothing

    @property
    def state(self) -> FloorState:
        return self._floor.state

    @property
    def agent_has_the_floor(self) -> bool:
        return self._floor.state in AGENT_HAS_THE_FLOOR

    def listen(self, settings: ListenSettings) -> None:
        """The agent's turn is over: when all is heard the caller has the floor."""
        self._set_listen(settings)
        self._caller.forget_early_keys()
        self._agent_done = True
        self.agent.no_answer()
        self.take_keys()
        if self.agent.idle:
            self._floor.input(Input.YIELD)

    def stop_waiting(self) -> None:
        """An empty turn now, if the caller has the floor and is silent."""
        if self._floor.state is FloorState.LISTENING:
            self._floor.input(Input.DEADLINE)

    def seize_floor(self) -> None:
        if not self.agent_has_the_floor or not self.agent.idle:
            self._floor.input(Input.KEYED)

    def press(self, digit: str) -> None:
        """Keys count in the caller's turn, and before it where the agent asks for that, which it may do yet."""
        if not self._agent_done or not self.agent_has_the_floor or self._caller.keys_interrupt:
            self._caller.press(digit)
            self.take_keys()

    def write(self, text: str) -> None:
        """Written words are a turn of the caller, at once or when the agent may be interrupted."""
        if len(self._written) < MAX_PENDING_TEXTS:
            self._written.append(text)
            self.take_keys()

    # told by the agent's voice

    def utterance_started(self, utterance: Utterance, at: float) -> None:
        if utterance.kind is UtteranceKind.FILLER:
            self.record.fillers.append(Span(utterance.text, at))
        elif self.record.first_audio is None:
            self.record.first_audio = at
            if not self._agent_done:
                self._set_listen(ListenSettings())
        self._emit(UtteranceStarted(utterance, at))
        self._floor.input(Input.AUDIO)
        self.another_is_heard()
        self.take_keys()

    def another_is_heard(self) -> None:
        """The caller may have been speaking over one that may not be interrupted; this one may."""
        if self._caller.held_back and self._may_interrupt:
            self._floor.input(Input.BARGE)

    def utterance_finished(self, utterance: Utterance, at: float) -> None:
        if utterance.kind is UtteranceKind.FILLER and self.record.fillers:
            self.record.fillers[-1].ended = at
        self._emit(UtteranceFinished(utterance, at))

    def speech_failed(self, utterance: Utterance, detail: str) -> None:
        self._emit(SpeechFailed(utterance, detail))

    def agent_fell_silent(self) -> None:
        self._floor.input(Input.YIELD if self._agent_done else Input.LULL)

    # what the caller does, as inputs of the floor

    def take_edge(self, edge: VoiceEdge) -> None:
        match edge.edge:
            case Edge.STARTED:
                self._floor.input(Input.SPEECH, edge.at)
            case Edge.BARGED if not self.agent_has_the_floor or self._may_interrupt:
                self._floor.input(Input.BARGE)
            case Edge.BARGED:
                self._caller.held_back = True
            case Edge.ENDED:
                self._floor.input(Input.SILENCE, edge.at)

    def take_transcript(self, transcript: Transcript) -> None:
        now = self._loop.time()
        listener = self._caller.listener
        if not listener.take(transcript, now):
            return
        if transcript.text:
            self._emit(PartialHeard(listener.text))
        if self._words_count(now):
            self._floor.input(Input.WORDS, self._caller.silent_since)
        self._reconsider()
        if transcript.final and not listener.owed:
            self._conclude()

    def _conclude(self) -> None:
        """No transcript is owed. Over a paused agent an acknowledgement is as good as nothing: it goes on at once."""
        listener = self._caller.listener
        words = listener.has_words if self._paused_at is not None else listener.text
        ends = self._floor.silent_since + self._silence_to_wait - FRAME_SECONDS
        if words and self._floor.state is FloorState.ENDING and self._loop.time() < ends:
            self._floor.input(Input.UNFINISHED, self._floor.silent_since)
        else:
            self._floor.input(Input.FINAL if words else Input.EMPTY)

    @property
    def _silence_to_wait(self) -> float:
        listener = self._caller.listener
        # A partial transcript may end with "for" because the next word is not written yet.
        return self._patience.seconds(self._caller.settings, listener.text if listener.settled else "")

    def _reconsider(self) -> None:
        """A transcript or the turn model says more about the silence that is now."""
        if self._floor.state is FloorState.PAUSED:
            self._floor.be_patient(self._silence_to_wait)

    def _words_count(self, now: float) -> bool:
        """There are words that take the floor, or answer the agent's last ones."""
        if self.agent_has_the_floor and not self._may_interrupt:
            return False
        listener = self._caller.listener
        if listener.has_words or not listener.has_text:
            return listener.has_words
        if not self._agent_done:
            return False
        agent_ends = now + self.agent.remaining if self.agent_has_the_floor else self._yielded_at
        return agent_ends - self._caller.last_ended < self._settings.answer_window

    def take_keys(self) -> None:
        """Count the keys pressed and give over what was written, as soon as they may count."""
        if self._written and (self.agent.interruptible or not self.agent_has_the_floor):
            self._floor.input(Input.KEYED)
            return
        counts = self._agent_done and self._caller.keys_interrupt and self.agent.interruptible
        if self.agent_has_the_floor and not counts:
            return
        while (complete := self._caller.take_key()) is not None:
            self._floor.input(Input.KEYED if complete else Input.KEY)
            if complete:
                return

    @property
    def _may_interrupt(self) -> bool:
        if self._floor.state in (FloorState.CUTTING_IN, FloorState.HALTED):
            return True
        allowed = self._settings.allows_barge_in(self._caller.settings, first_turn=self._first_turn)
        return allowed and self._caller.hears and self.agent.interruptible

    # the floor

    def _entered(self, now: float) -> None:
        self._look_again(now)
        self._mind_silence()

    def _mind_silence(self) -> None:
        if self._floor.state is FloorState.PAUSED:
            self._patience.silence_began(self._caller.recent)
            self._floor.be_patient(self._silence_to_wait)
        elif self._floor.state is not FloorState.ENDING:
            self._patience.forget()

    def _look_again(self, now: float) -> None:
        """The caller may be doing already what the new state waits for."""
        if self._floor.state is FloorState.LISTENING and self._written:
            self.take_keys()
        elif self._floor.state in (FloorState.LISTENING, FloorState.PAUSED) and self._caller.speaking:
            self._floor.input(Input.SPEECH, self._caller.last_started)
        elif self._floor.state is FloorState.LISTENING:
            if self._words_count(now):
                self._floor.input(Input.WORDS, self._caller.silent_since)
            else:
                self._caller.forget_noise()
            self.take_keys()

    def _do(self, effect: Effect, now: float) -> None:
        listener = self._caller.listener
        match effect:
            case Effect.BEGIN:
                listener.begin()
            case Effect.FINISH:
                listener.finish()
                if not listener.owed or (self._caller.settings.eager_final and listener.has_text):
                    self._conclude()
            case Effect.GIVE_UP:
                self._conclude()
            case Effect.PAUSE:
                self._pause(now)
            case Effect.RESUME:
                self._resume(now)
            case Effect.TAKE_FLOOR:
                self._take_floor(now)
            case Effect.YIELD:
                self._yield_floor(now)
            case Effect.END_TURN:
                self._end_turn(now)
            case Effect.NO_INPUT:
                self._hand_over(now)
                self._emit(NoInput(self.record))

    def _pause(self, now: float) -> None:
        self.agent.pause(self.clear_wire())
        self._paused_at = now
        self._emit(PlayoutPaused(now))

    def _resume(self, now: float) -> None:
        self._caller.forget_noise()
        self._paused_at = None
        self.agent.resume()
        self._emit(PlayoutResumed(now))
        if self.agent.idle:
            self.agent_fell_silent()

    def _take_floor(self, now: float) -> None:
        """The playout is silent before the call hears of it."""
        was_heard = self.agent.was_heard
        heard = self.agent.discard(self.clear_wire() if self._paused_at is None else 0.0)
        at = now if self._paused_at is None else self._paused_at
        self._paused_at = None
        self.record.interruption_started = self._caller.last_started
        self.record.interrupted_at = at
        if self._reopenable and not was_heard:
            self._emit(TurnReopened(self._caller.listener.reopen(), at))
        else:
            self._emit(BargedIn(heard, at))
        self._first_turn = False

    def _yield_floor(self, now: float) -> None:
        self.record.playout_ended = now
        self._yielded_at = now
        self._paused_at = None
        self._first_turn = False
        # A noise may have paused a playout that had nothing to say.
        self.agent.resume()
        self._emit(FloorYielded(self.agent.end_turn(), now))

    def _end_turn(self, now: float) -> None:
        written = self._written.popleft() if self._written else ""
        digits, is_pii = "" if written else self._caller.digits, self._caller.keys_are_pii
        self._hand_over(now)
        self._reopenable = not (digits or written)
        words = self._caller.listener.end_turn(wanted=self._reopenable)
        text, added = (written, written) if written else (words.text, words.added)
        self._emit(CallerTurnEnded(text, words.alternatives, digits, added, is_pii, self.record))

    def _set_listen(self, settings: ListenSettings) -> None:
        self._caller.set_listen(settings)
        self._floor.set_times(self._settings.times(settings))

    def _hand_over(self, now: float) -> None:
        """The agent's turn begins. Until it is heard the caller may go on with the last one, in the same manner."""
        self.record = self._caller.end_turn(now)
        former = self._caller.settings
        self._set_listen(replace(former, no_input_timeout=None, barge_in=None, digits=None, speech=True))
        self._agent_done = self._reopenable = False
        self.agent.turn_began()


def _nothing() -> float:
    """Seconds that a wire without a buffer drops."""
    return 0.0
