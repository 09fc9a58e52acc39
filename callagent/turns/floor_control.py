"""Runs the floor of one call: turns what caller and agent do into inputs of the floor, and carries out its effects.

The rules of turn-taking are the table in `floor.py`. Here is what the table leaves open: which words count, whether the
agent may be interrupted now, how long this silence may last, and what taking the floor does to playout and call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from callagent.agents import ListenSettings
from callagent.audio import FRAME_SECONDS
from callagent.log import get_logger
from callagent.speech import Transcript, Voice
from callagent.turns import events, floor
from callagent.turns.agent_speech import AgentSpeech, Sounds
from callagent.turns.caller_speech import CallerSpeech
from callagent.turns.endpointing import Endpointing
from callagent.turns.playout import Utterance, UtteranceKind
from callagent.turns.voice_activity_gate import Edge, VoiceEdge

MAX_PENDING_TEXTS = 20
"""Written messages queued during uninterruptible speech; further ones are dropped."""

log = get_logger(__name__)


class FloorControl:
    """Controls the floor between the caller's speech and the agent's, and tells the call what happens."""

    def __init__(
        self,
        caller: CallerSpeech,
        voice: Voice,
        emit: Callable[[events.TurnEvent], None],
        settings: floor.TurnSettings,
        sounds: Sounds,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._caller = caller
        self.agent = AgentSpeech(voice, settings.voice_wait, self, sounds)
        self._emit = emit
        self._settings = settings
        self._floor = FloorClock(floor.floor_times(settings, ListenSettings()), self._do, self._entered)
        self._endpointing = Endpointing(caller.turn_model, settings.endpointing_times(), self._update_endpointing)
        self.clear_wire: Callable[[], float] = _no_seconds
        """Drops what the wire has taken and not played yet; returns the seconds dropped."""
        self.timings = events.TurnTimings()
        """Timings of the present turn."""
        self._agent_done = False
        """The agent has asked to listen: the caller gets the floor once everything is heard."""
        self._first_turn = True
        self._reopenable = False
        """The turn that the agent is answering ended by silence, so that the caller may go on with it."""
        self._paused_at: float | None = None
        self._yielded_at = 0.0
        self._pending_texts: deque[str] = deque()
        """Written messages that the agent has not been given yet."""

    def close(self) -> None:
        """Take no more inputs and drop all references back to this object, so that reference counting frees it."""
        # The floor closes first: timers and transcripts that come late have no effect then.
        self._floor.close()
        self._endpointing.close()
        self.clear_wire = _no_seconds

    @property
    def state(self) -> floor.FloorState:
        return self._floor.state

    @property
    def agent_has_the_floor(self) -> bool:
        return self._floor.state in floor.AGENT_HAS_THE_FLOOR

    # the agent's reply

    def listen(self, settings: ListenSettings) -> None:
        """End the agent's turn: once everything is heard the caller has the floor."""
        self._set_listen(settings)
        self._caller.discard_early_keys()
        self._agent_done = True
        self.agent.end_answer()
        # Before the floor is yielded: keys that were typed ahead may complete the caller's turn already.
        self._take_keys_and_texts()
        if self.agent.idle:
            # Nothing is being said, so no end of it will be reported.
            self._floor.apply(floor.FloorInput.YIELD)

    def stop_waiting(self) -> None:
        """Give the call an empty turn now, if the caller has the floor and is silent."""
        if self._floor.state is floor.FloorState.LISTENING:
            self._floor.apply(floor.FloorInput.DEADLINE)

    def seize_floor(self) -> None:
        """End the caller's turn, or the agent's words, so that what is said next is heard at once."""
        if not self.agent_has_the_floor or not self.agent.idle:
            self._floor.apply(floor.FloorInput.KEYED)

    # keys and texts

    def press_key(self, digit: str) -> None:
        """Take a key. While the agent has the floor, drop it unless the agent takes keys then or may yet ask for it."""
        if not self._agent_done or not self.agent_has_the_floor or self._caller.keys_barge_in:
            self._caller.press_key(digit)
            self._take_keys_and_texts()

    def write(self, text: str) -> None:
        """Take a written message as a turn of the caller: now, or when the agent may be interrupted."""
        if len(self._pending_texts) < MAX_PENDING_TEXTS:
            self._pending_texts.append(text)
            self._take_keys_and_texts()

    def _take_keys_and_texts(self) -> None:
        """Count the pressed keys and hand over written messages, as soon as the floor allows it."""
        if self._pending_texts and (self.agent.interruptible or not self.agent_has_the_floor):
            self._floor.apply(floor.FloorInput.KEYED)
            return
        keys_count = self._agent_done and self._caller.keys_barge_in and self.agent.interruptible
        if self.agent_has_the_floor and not keys_count:
            return
        while (complete := self._caller.count_next_key()) is not None:
            self._floor.apply(floor.FloorInput.KEYED if complete else floor.FloorInput.KEY)
            if complete:
                return

    # AgentSpeechListener

    def utterance_started(self, utterance: Utterance, at: float) -> None:
        if utterance.kind is UtteranceKind.FILLER:
            self.timings.fillers.append(events.Span(utterance.text, at))
        elif self.timings.first_audio is None:
            self.timings.first_audio = at
            # The caller hears the reply now and can no longer go on with the last turn, whose settings end here. If the
            # agent has asked to listen, the settings of the next turn are in force already.
            if not self._agent_done:
                self._set_listen(ListenSettings())
        # The call hears of the utterance before the floor changes: what the change emits follows it in the inbox.
        self._emit(events.UtteranceStarted(utterance, at))
        self._floor.apply(floor.FloorInput.AUDIO)
        self.utterance_reached()
        self._take_keys_and_texts()

    def utterance_reached(self) -> None:
        """Let a barge-in happen now that was held back by an utterance that may not be interrupted."""
        if self._caller.barge_in_held_back and self._may_interrupt:
            self._floor.apply(floor.FloorInput.BARGE)

    def utterance_finished(self, utterance: Utterance, at: float) -> None:
        if utterance.kind is UtteranceKind.FILLER and self.timings.fillers:
            self.timings.fillers[-1].ended = at
        self._emit(events.UtteranceFinished(utterance, at))

    def speech_failed(self, utterance: Utterance, detail: str) -> None:
        self._emit(events.SpeechFailed(utterance, detail))

    def agent_fell_silent(self) -> None:
        self._floor.apply(floor.FloorInput.YIELD if self._agent_done else floor.FloorInput.LULL)

    # the caller's speech

    def take_edge(self, edge: VoiceEdge) -> None:
        """Take a change of the caller's voice activity. A barge-in has silenced the playout when this returns."""
        match edge.edge:
            case Edge.STARTED:
                self._floor.apply(floor.FloorInput.SPEECH, edge.at)
            case Edge.BARGED if not self.agent_has_the_floor or self._may_interrupt:
                self._floor.apply(floor.FloorInput.BARGE)
            case Edge.BARGED:
                self._caller.barge_in_held_back = True
            case Edge.ENDED:
                self._floor.apply(floor.FloorInput.SILENCE, edge.at)

    def take_transcript(self, transcript: Transcript) -> None:
        """Take a transcript from the recogniser: the words may take the floor, and the last final one ends the turn."""
        now = self._loop.time()
        transcription = self._caller.transcription
        if not transcription.add_transcript(transcript, now):
            return
        if transcript.text:
            self._emit(events.PartialHeard(transcription.text))
        if self._has_words_that_count(now):
            # The silence that follows the words may have begun before the recogniser delivered them.
            self._floor.apply(floor.FloorInput.WORDS, self._caller.silent_since)
        self._update_endpointing()
        if transcript.final and not transcription.final_pending:
            self._conclude_transcription()

    def _conclude_transcription(self) -> None:
        """Tell the floor whether the transcripts have words, once all are final or no longer waited for."""
        transcription = self._caller.transcription
        # While the agent is paused, an acknowledgement alone counts as no words: the agent goes on at once.
        words = transcription.has_words if self._paused_at is not None else transcription.text
        ends = self._floor.silent_since + self._silence_to_wait - FRAME_SECONDS
        if words and self._floor.state is floor.FloorState.ENDING and self._loop.time() < ends:
            # The final transcript ends with "and", or has too few digits: this silence may last longer after all.
            self._floor.apply(floor.FloorInput.UNFINISHED, self._floor.silent_since)
        else:
            self._floor.apply(floor.FloorInput.FINAL if words else floor.FloorInput.EMPTY)

    def _has_words_that_count(self, now: float) -> bool:
        """Return whether there are words that take the floor, or an acknowledgement that answers the agent."""
        if self.agent_has_the_floor and not self._may_interrupt:
            return False
        transcription = self._caller.transcription
        if transcription.has_words or not transcription.has_text:
            return transcription.has_words
        # There are only acknowledgements. In the middle of the agent's words "okay" says "go on"; at their end it is an
        # answer, and the agent is not waiting for another one.
        if not self._agent_done:
            return False
        agent_ends = now + self.agent.remaining if self.agent_has_the_floor else self._yielded_at
        return agent_ends - self._caller.last_ended < self._settings.answer_window

    @property
    def _may_interrupt(self) -> bool:
        # The playout is paused because the caller was allowed to interrupt: that is not checked again.
        if self._floor.state in (floor.FloorState.CUTTING_IN, floor.FloorState.HALTED):
            return True
        allowed = self._settings.allows_barge_in(self._caller.settings, first_turn=self._first_turn)
        return allowed and self._caller.speech_counts and self.agent.interruptible

    # endpointing

    @property
    def _silence_to_wait(self) -> float:
        transcription = self._caller.transcription
        # A partial transcript may end with "for" only because the next word is not transcribed yet.
        return self._endpointing.silence_to_wait(
            self._caller.settings, transcription.text if transcription.settled else ""
        )

    def _update_endpointing(self) -> None:
        """Set how long the present silence has to last, after a transcript or the turn model's answer."""
        if self._floor.state is floor.FloorState.PAUSED:
            self._floor.set_endpointing(self._silence_to_wait)

    # the floor

    def _entered(self, now: float) -> None:
        """Handle a new state: apply what the caller is already doing, then set how long a silence has to last."""
        match self._floor.state:
            case floor.FloorState.LISTENING if self._pending_texts:
                self._take_keys_and_texts()
            case floor.FloorState.LISTENING | floor.FloorState.PAUSED if self._caller.speaking:
                self._floor.apply(floor.FloorInput.SPEECH, self._caller.last_started)
            case floor.FloorState.LISTENING:
                # Words spoken over the agent's end count now; a noise before the caller's turn must not become part
                # of it.
                if self._has_words_that_count(now):
                    self._floor.apply(floor.FloorInput.WORDS, self._caller.silent_since)
                else:
                    self._caller.discard_noise()
                self._take_keys_and_texts()
        if self._floor.state is floor.FloorState.PAUSED:
            self._endpointing.begin_silence(self._caller.recent_audio)
            self._floor.set_endpointing(self._silence_to_wait)
        elif self._floor.state is not floor.FloorState.ENDING:
            self._endpointing.end_silence()

    def _do(self, effect: floor.FloorEffect, now: float) -> None:
        transcription = self._caller.transcription
        match effect:
            case floor.FloorEffect.BEGIN:
                transcription.begin_utterance()
            case floor.FloorEffect.FINISH:
                transcription.finish_utterance()
                if not transcription.final_pending or (self._caller.settings.eager_final and transcription.has_text):
                    self._conclude_transcription()
            case floor.FloorEffect.GIVE_UP:
                self._conclude_transcription()
            case floor.FloorEffect.PAUSE:
                self._pause(now)
            case floor.FloorEffect.RESUME:
                self._resume(now)
            case floor.FloorEffect.TAKE_FLOOR:
                self._take_floor(now)
            case floor.FloorEffect.YIELD:
                self._yield_floor(now)
            case floor.FloorEffect.END_TURN:
                self._end_turn(now)
            case floor.FloorEffect.NO_INPUT:
                self._begin_agent_turn(now)
                self._emit(events.NoInput(self.timings))

    def _pause(self, now: float) -> None:
        self.agent.pause(self.clear_wire())
        self._paused_at = now
        self._emit(events.PlayoutPaused(now))

    def _resume(self, now: float) -> None:
        self._caller.discard_noise()
        self._paused_at = None
        self.agent.resume()
        self._emit(events.PlayoutResumed(now))
        # The floor ignored a lull during the pause, so it is told of it now.
        if self.agent.idle:
            self.agent_fell_silent()

    def _take_floor(self, now: float) -> None:
        """Discard the playout. It is silent before the call is told."""
        heard_in_turn = self.agent.heard_in_turn
        # If the playout was paused, the wire is cleared already.
        heard_text = self.agent.discard(self.clear_wire() if self._paused_at is None else 0.0)
        at = now if self._paused_at is None else self._paused_at
        self._paused_at = None
        self.timings.interruption_started = self._caller.last_started
        self.timings.interrupted_at = at
        # A caller who has heard nothing of a reply is not interrupting it, but going on with the same turn.
        if self._reopenable and not heard_in_turn:
            self._emit(events.TurnReopened(self._caller.transcription.reopen_turn(), at))
        else:
            self._emit(events.BargedIn(heard_text, at))
        self._first_turn = False

    def _yield_floor(self, now: float) -> None:
        self.timings.playout_ended = now
        self._yielded_at = now
        self._paused_at = None
        self._first_turn = False
        # A noise may have paused a playout that had nothing left to say.
        self.agent.resume()
        self._emit(events.FloorYielded(self.agent.end_turn(), now))

    def _end_turn(self, now: float) -> None:
        written = self._pending_texts.popleft() if self._pending_texts else ""
        # The digits are read before the agent's turn begins, because its settings forget them.
        digits, is_pii = "" if written else self._caller.digits, self._caller.keys_are_pii
        self._begin_agent_turn(now)
        # Digits and written messages are complete; speech may go on after a silence.
        self._reopenable = not (digits or written)
        words = self._caller.transcription.end_turn(wanted=self._reopenable)
        text, added = (written, written) if written else (words.text, words.added)
        self._emit(events.CallerTurnEnded(text, words.alternatives, digits, added, is_pii, self.timings))

    def _set_listen(self, settings: ListenSettings) -> None:
        self._caller.set_listen(settings)
        self._floor.set_times(floor.floor_times(self._settings, settings))

    def _begin_agent_turn(self, now: float) -> None:
        """Begin the agent's turn. Until it is heard, the caller may go on with the last turn under its settings."""
        self.timings = self._caller.end_turn(now)
        last = self._caller.settings
        self._set_listen(replace(last, no_input_timeout=None, barge_in=None, digits=None, speech=True))
        self._agent_done = self._reopenable = False
        self.agent.begin_turn()


class FloorClock:
    """The floor in real time: runs its one timer, and applies its inputs one after another."""

    def __init__(
        self, times: floor.FloorTimes, do: Callable[[floor.FloorEffect, float], None], entered: Callable[[float], None]
    ) -> None:
        """`do` carries out an effect, `entered` is called in each new state; both with the loop's time."""
        self._loop = asyncio.get_running_loop()
        self._floor = floor.Floor(times)
        self._do = do
        self._entered = entered
        self._inputs: deque[tuple[floor.FloorInput, float | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._debugging = log.debug_enabled

    @property
    def state(self) -> floor.FloorState:
        return self._floor.state

    @property
    def silent_since(self) -> float:
        """When the silence of PAUSED and ENDING began."""
        return self._floor.silent_since

    def set_times(self, times: floor.FloorTimes) -> None:
        """Set times that apply from the next change of state."""
        self._floor.times = times

    def apply(self, floor_input: floor.FloorInput, since: float | None = None) -> None:
        """Apply an input and carry out its effects.

        Effects may apply further inputs. These wait until all effects of the present input are done.
        """
        if self._closed:
            return
        self._inputs.append((floor_input, since))
        if len(self._inputs) > 1:
            return
        while self._inputs:
            floor_input, since = self._inputs[0]
            old, now = self._floor.state, self._loop.time()
            for effect in self._floor.apply(floor_input, now, since):
                self._do(effect, now)
            if self._floor.state is not old:
                if self._debugging:
                    log.debug("floor_changed", old=old.value, new=self._floor.state.value, input=floor_input.name)
                self._entered(now)
            self._inputs.popleft()
        self._set_timer()

    def set_endpointing(self, seconds: float) -> None:
        """Let the present silence end the caller's turn after `seconds`; does nothing while there is none."""
        self._floor.set_endpointing(seconds)
        self._set_timer()

    def close(self) -> None:
        """Ignore every further input and drop the callbacks, whose owner holds this object. Idempotent."""
        self._closed = True
        self._inputs.clear()
        self._do = self._entered = _ignore
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._floor.deadline
        self._timer = None if due is None else self._loop.call_at(due, self.apply, floor.FloorInput.DEADLINE)


def _ignore(*_: object) -> None:
    """Stand in for the callbacks of a closed floor."""


def _no_seconds() -> float:
    """Stand in for a wire that has no buffer to clear."""
    return 0.0
