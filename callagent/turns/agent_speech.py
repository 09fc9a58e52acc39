"""The agent's side of the floor: what it says, the fillers while the caller waits, and what of all this was heard."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

from callagent.agents import DelayResponse, LatencyControl
from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.errors import ProviderError
from callagent.log import get_logger
from callagent.speech import SpeechChunk, Voice, VoiceSettings, WordTime
from callagent.turns.background_audio import BackgroundAudio, render
from callagent.turns.fillers import TURN_WAIT, FillerEffect, FillerSchedule, is_sound
from callagent.turns.playout import Cue, Playout, Utterance, UtteranceKind

MAX_SYNTHESISED_AHEAD = 1
"""Utterances that are synthesised while another one is being said."""
MAX_WAITING_UTTERANCES = 200
"""Utterances not synthesised yet; an agent that says more without listening is broken."""

log = get_logger(__name__)
Sounds = Callable[[str], bytes | None]
"""Returns the PCM of a named sound, or None if there is no sound of that name."""


class AgentSpeechListener(Protocol):
    """Is told, on the event loop, what the caller hears of the agent."""

    def utterance_started(self, utterance: Utterance, at: float) -> None: ...

    def utterance_reached(self) -> None:
        """Called when another utterance is being played: the one before has ended, or the playout was rewound."""

    def utterance_finished(self, utterance: Utterance, at: float) -> None: ...

    def speech_failed(self, utterance: Utterance, detail: str) -> None: ...

    def agent_fell_silent(self) -> None:
        """Everything that was said has been heard, or could not be said. Not called for what is discarded."""


class AgentSpeech:
    """Synthesis, playout, fillers and background audio of one call."""

    def __init__(
        self, voice: Voice, voice_wait: float, listener: AgentSpeechListener, sounds: Sounds = lambda name: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._playout = Playout(self._pass_cue, _pump_clock(self._loop))
        self._synthesizer = Synthesizer(voice, self._playout, voice_wait, self._fail, self._check_idle)
        self.unheard: Callable[[], float] = _no_seconds
        """Returns the seconds that the wire has taken and the caller has not heard."""
        self._utterances = 0
        self._heard_texts: list[str] = []
        """What the caller has heard of this turn's utterances, without fillers."""
        self.heard_in_turn = False
        """Whether the caller has heard anything since the turn began, even if only a filler."""
        self._started_at: dict[int, float] = {}
        """When utterances that are being played began, by number."""
        self._tails: dict[int, asyncio.TimerHandle] = {}
        """Timers, by number, of utterances whose last frame waits to be played in the buffer of the wire."""
        self._all_heard = asyncio.Event()
        self._all_heard.set()
        self._sounds = sounds
        self._background = BackgroundAudio()
        self._thinking_sound = False
        self._background_frames = 0
        """How many of the frames taken last were background audio alone. Changed by the pump thread only."""
        self._fillers = FillerSchedule()
        self._filler_timer: asyncio.TimerHandle | None = None
        self._filler: Utterance | None = None
        """The filler that is being said."""
        self._cancellable: list[Utterance] = []
        """The latest utterance if it is cancellable, else empty."""

    # saying

    def say(
        self,
        text: str,
        *,
        interruptible: bool,
        kind: UtteranceKind,
        pcm: bytes | None = None,
        cancellable: bool = False,
    ) -> Utterance:
        """Queue an utterance. Unless it only covers a wait it is the answer, and ends the fillers.

        An earlier cancellable utterance is withdrawn if it has not begun, and else cut when the first audio of this one
        is there.
        """
        self._withdraw_cancellable()
        if kind is not UtteranceKind.FILLER and not cancellable:
            self._withdraw_filler(self._fillers.begin_answer())
        self._utterances += 1
        utterance = Utterance(self._utterances, text, interruptible, kind, cancellable)
        if cancellable:
            self._cancellable.append(utterance)
        self._all_heard.clear()
        self._synthesizer.say(utterance, pcm)
        self._schedule_filler()
        self._check_idle()
        return utterance

    def set_voice(self, voice: Voice | None, settings: VoiceSettings) -> None:
        """Set how the next utterances sound; None keeps the voice."""
        self._synthesizer.voice = voice or self._synthesizer.voice
        self._synthesizer.settings = settings

    def next_frame(self) -> bytes | None:
        """Return what the wire is to send now. Called on the pump thread."""
        # Frames of background audio after the last words are counted: when a wire drops its buffer, these go with it
        # and must not be taken for words that were not heard.
        words = self._playout.next_frame()
        frame = self._background.mix(words)
        if words is not None:
            self._background_frames = 0
        elif frame is not None:
            self._background_frames += 1
        return frame

    def set_background(self, name: str, loudness: float) -> bool:
        """Play a sound under everything, at `loudness` dB of full scale, or none; return False for an unknown name."""
        pcm = self._sounds(name) if name else b""
        if pcm is not None:
            self._background.set_background(render(pcm, loudness))
        return pcm is not None

    def set_thinking_sound(self, name: str, loudness: float) -> bool:
        """Set the sound of waits in which nothing is said, or none; return False for an unknown name."""
        pcm = self._sounds(name) if name else b""
        if pcm is not None:
            self._thinking_sound = bool(pcm)
            self._background.set_thinking(render(pcm, loudness))
            self._schedule_filler()
        return pcm is not None

    @property
    def underruns(self) -> int:
        """How many gaps utterances had because the voice was too slow."""
        return self._playout.underruns

    @property
    def remaining(self) -> float:
        """Seconds of audio that are there and not yet played."""
        return self._playout.remaining

    @property
    def idle(self) -> bool:
        """Whether everything is heard or discarded."""
        return self._synthesizer.idle and self._playout.idle

    @property
    def interruptible(self) -> bool:
        """Whether every utterance that the caller hears now may be interrupted; between two, whether the next one may.

        What the wire has taken and not played yet counts as being heard.
        """
        unheard = self._seconds_of_speech(self.unheard())
        return all(utterance.interruptible for utterance in self._playout.current(unheard))

    async def played_out(self) -> None:
        """Wait until everything is heard or discarded."""
        await self._all_heard.wait()

    # pausing and discarding

    def pause(self, dropped: float) -> None:
        """Fall silent within a frame. `dropped`: seconds that the wire threw away unheard."""
        self._cancel_tails()
        self._playout.pause(self._seconds_of_speech(dropped))
        self._schedule_filler()

    def resume(self) -> None:
        """Go on from the word that the pause has cut."""
        self._playout.resume()
        self._schedule_filler()

    def discard(self, dropped: float) -> str:
        """Fall silent within a frame and forget everything; return what the caller has heard in this turn."""
        # `_check_idle` must not report this silence: the listener itself asked for the discard.
        self._all_heard.set()
        self._cancel_tails()
        self._synthesizer.discard()
        for heard in self._playout.discard(self._seconds_of_speech(dropped)):
            if heard.utterance.kind is not UtteranceKind.FILLER:
                self._heard_texts.append(heard.text)
        self._started_at.clear()
        return self.end_turn()

    def end_turn(self) -> str:
        """End the agent's turn: no filler starts any more. Return what the caller has heard in it, without fillers."""
        self._fillers.discard()
        self._filler = None
        self._schedule_filler()
        # `heard_in_turn` tells an interruption from a caller who goes on with their own turn: it ends with the turn.
        self.heard_in_turn = False
        text = " ".join(text for text in self._heard_texts if text)
        self._heard_texts.clear()
        return text

    async def close(self) -> None:
        """Fall silent and drop every reference to the listener and the wire, because they hold this object."""
        self.discard(0.0)
        # Cancelled tasks may still use the playout until they have ended.
        await self._synthesizer.close()
        self._playout.close()
        self._listener = _Nobody()
        self.unheard = _no_seconds

    # while the caller waits

    def begin_turn(self) -> None:
        """Begin the agent's turn: the caller waits for it from now on."""
        self.wait_for_answer(None)

    def wait_for_answer(self, control: LatencyControl | None) -> None:
        """Say the responses of `control` while the agent works on its answer."""
        self._fillers.begin_wait(TURN_WAIT, control, self._loop.time())
        self._schedule_filler()

    def function_started(self, number: int, latency: LatencyControl | None) -> None:
        self._fillers.begin_wait(number, latency, self._loop.time())
        self._schedule_filler()

    def function_ended(self, number: int) -> None:
        self._withdraw_filler(self._fillers.end_wait(number))

    def end_answer(self) -> None:
        """End the waits of this turn, in which the agent has nothing more to say."""
        self._withdraw_filler(self._fillers.end_answer())

    def _schedule_filler(self) -> None:
        """Set the timer of the next filler and the thinking sound, which both need silence of the agent.

        Called after everything that may have changed the schedule or the silence.
        """
        if self._filler_timer is not None:
            self._filler_timer.cancel()
            self._filler_timer = None
        due = self._fillers.deadline
        # Most waits have neither fillers nor a sound: then nothing depends on whether the agent is silent.
        if due is None and not self._thinking_sound:
            return
        silent = self.idle and not self._playout.paused
        if self._thinking_sound:
            self._background.play_thinking(silent and self._fillers.wants_thinking_sound)
        if silent and due is not None:
            self._filler_timer = self._loop.call_at(due, self._say_filler)

    def _say_filler(self) -> None:
        if (response := self._fillers.take_due(self._loop.time())) is not None:
            pcm = _sound_of(self._sounds, response)
            self._filler = self.say(response.text, interruptible=True, kind=UtteranceKind.FILLER, pcm=pcm)
        self._schedule_filler()

    def _withdraw_filler(self, effect: FillerEffect | None) -> None:
        """Withdraw a filler that has not begun, if `effect` says so. One that is being said is said to its end."""
        filler = self._filler
        if effect is FillerEffect.WITHDRAW and filler is not None and self._synthesizer.withdraw(filler):
            self._filler = None
            self._fillers.filler_ended(None, self._loop.time())
            self._synthesizer.make_room()
        self._schedule_filler()
        self._check_idle()

    def _withdraw_cancellable(self) -> None:
        utterances, self._cancellable = self._cancellable, []
        for utterance in utterances:
            if self._synthesizer.withdraw(utterance):
                self._synthesizer.make_room()

    def _seconds_of_speech(self, dropped: float) -> float:
        """Return how many of the `dropped` seconds were speech, because the playout does not count background audio."""
        return max(0.0, dropped - self._background_frames * FRAME_SECONDS)

    # cues of the playout

    def _pass_cue(self, cue: Cue, at: float) -> None:
        """Hand a cue from the pump thread to the event loop."""
        try:
            self._loop.call_soon_threadsafe(self._on_cue, cue, at)
        except RuntimeError:
            # The server has closed the loop, so nothing needs the cue any more.
            pass

    def _on_cue(self, cue: Cue, at: float) -> None:
        utterance = cue.utterance
        # A pause may have rewound the playout since the pump passed the cue: then it will be passed a second time.
        if not self._playout.has_passed(cue):
            return
        if cue.begins:
            self._synthesizer.make_room()
            if utterance.number in self._started_at:
                self._listener.utterance_reached()
            else:
                self._started_at[utterance.number] = at
                self.heard_in_turn = True
                self._listener.utterance_started(utterance, at)
            return
        # The last frame was taken; a wire with a buffer of its own has yet to play it.
        tail = self.unheard()
        if tail > 0:
            self._tails[utterance.number] = self._loop.call_later(tail, self._finish, utterance, at + tail)
        else:
            self._finish(utterance, at)

    def _finish(self, utterance: Utterance, at: float) -> None:
        """Handle an utterance that the caller has heard to its end."""
        self._tails.pop(utterance.number, None)
        heard_text = self._playout.release(utterance)
        self._synthesizer.make_room()
        started = self._started_at.pop(utterance.number, None)
        if utterance.kind is not UtteranceKind.FILLER:
            self._heard_texts.append(heard_text)
        elif utterance == self._filler:
            self._filler = None
            self._fillers.filler_ended(started, at)
        self._listener.utterance_finished(utterance, at)
        # What is said next may be interruptible where this one was not.
        if not self.idle:
            self._listener.utterance_reached()
        self._check_idle()

    def _cancel_tails(self) -> None:
        for timer in self._tails.values():
            timer.cancel()
        self._tails.clear()

    def _check_idle(self) -> None:
        """Tell the listener, once, when everything was heard."""
        if self.idle and not self._all_heard.is_set():
            self._all_heard.set()
            self._fillers.agent_fell_silent(self._loop.time())
            self._schedule_filler()
            self._listener.agent_fell_silent()

    def _fail(self, utterance: Utterance, detail: str) -> None:
        self._listener.speech_failed(utterance, detail)


class Synthesizer:
    """Has one call's utterances synthesised in order, one at a time, and puts their frames on the playout.

    It owns one task, which runs while there is something to synthesise.
    """

    def __init__(
        self,
        voice: Voice,
        playout: Playout,
        voice_wait: float,
        failed: Callable[[Utterance, str], None],
        ended: Callable[[], None],
    ) -> None:
        """`failed` is called with an utterance and what went wrong, `ended` when nothing is left to synthesise."""
        self.voice = voice
        self.settings = VoiceSettings()
        self._playout = playout
        self._voice_wait = voice_wait
        self._failed = failed
        self._ended = ended
        self._waiting: deque[tuple[Utterance, bytes | None, Voice, VoiceSettings]] = deque()
        """Each with the voice and settings of the time at which it was queued."""
        self._task: asyncio.Task[None] | None = None
        self._current: Utterance | None = None
        """The utterance whose synthesis began last."""
        self._cancelled: set[asyncio.Task[None]] = set()
        """Tasks that are cancelled and have not ended yet."""
        self._room = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Whether nothing is being synthesised or waits to be."""
        return self._task is None

    def say(self, utterance: Utterance, pcm: bytes | None = None) -> None:
        """Queue an utterance, as text for the voice or as a recording; it fails at once if too many wait."""
        if len(self._waiting) >= MAX_WAITING_UTTERANCES:
            self._failed(utterance, f"{MAX_WAITING_UTTERANCES} utterances are waiting: the agent never listens")
            return
        self._waiting.append((utterance, pcm, self.voice, self.settings))
        if self._task is None:
            self._start()

    def withdraw(self, utterance: Utterance) -> bool:
        """Take an utterance back if nothing of it was played; return whether that was so."""
        for entry in self._waiting:
            if entry[0] == utterance:
                self._waiting.remove(entry)
                return True
        return self._playout.withdraw(utterance)

    def make_room(self) -> None:
        """Let the next utterance be synthesised, because one has begun to be played or is over."""
        self._room.set()

    def discard(self) -> None:
        """Stop synthesising and forget what waits."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._cancelled.add(self._task)
            self._task.add_done_callback(self._cancelled.discard)
            self._task = None

    async def close(self) -> None:
        """Stop, wait until every task has ended, and drop the callbacks, whose owner holds this object."""
        self.discard()
        if self._cancelled:
            await asyncio.wait(self._cancelled)
        self._failed = self._ended = _ignore

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="synthesizer")
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self._ended()
            return
        # A voice that raises anything but ProviderError breaks its contract; that costs the utterance, not the call.
        log.error("voice_broke", error=repr(error), exc_info=error)
        self._task = None
        if self._current is not None:
            self._failed(self._current, repr(error))
            self._playout.complete(self._current, cut=True)
        if self._waiting:
            self._start()

    async def _run(self) -> None:
        while self._waiting:
            await self._wait_for_room()
            # What waited may have been withdrawn in the meantime.
            if not self._waiting:
                break
            utterance, pcm, voice, settings = self._waiting.popleft()
            self._current = utterance
            if pcm is None:
                await self._synthesise(utterance, voice, settings)
            else:
                self._playout.begin(utterance)
                _Framer(self._playout, utterance).finish(pcm)
        # No await lies between the last look at the queue and this: whatever is queued later starts a new task.
        self._task = None

    async def _wait_for_room(self) -> None:
        # A barge-in throws away what is synthesised ahead, which providers charge for: one utterance hides the latency
        # of the voice, more would be waste.
        while self._playout.complete_ahead >= MAX_SYNTHESISED_AHEAD:
            self._room.clear()
            await self._room.wait()

    async def _synthesise(self, utterance: Utterance, voice: Voice, settings: VoiceSettings) -> None:
        self._playout.begin(utterance)
        framer = _Framer(self._playout, utterance)
        # Closing the generator stops the provider's work.
        source = voice.speak(utterance.text, settings)
        try:
            async with aclosing(source):
                # Until the voice has nothing more, or the utterance is no longer wanted.
                while (chunk := await self._next_chunk(source)) and framer.put(chunk.pcm, chunk.words):
                    pass
        except TimeoutError:
            self._failed(utterance, f"no audio within {self._voice_wait:g} s")
            framer.finish(cut=True)
        except ProviderError as error:
            self._failed(utterance, str(error))
            framer.finish(cut=True)
        else:
            framer.finish()

    async def _next_chunk(self, source: AsyncIterator[SpeechChunk]) -> SpeechChunk | None:
        async with asyncio.timeout(self._voice_wait):
            return await anext(source, None)


class _Framer:
    """Cuts an utterance's audio into frames."""

    def __init__(self, playout: Playout, utterance: Utterance) -> None:
        self._playout = playout
        self._utterance = utterance
        self._rest = b""

    def put(self, pcm: bytes, words: tuple[WordTime, ...] = ()) -> bool:
        """Put the whole frames on the playout; return False if the utterance is no longer wanted."""
        pcm = self._rest + pcm
        whole = len(pcm) - len(pcm) % FRAME_BYTES
        self._rest = pcm[whole:]
        # Words are added before their frames: the pump may take a frame at once, and its words tell what was heard.
        self._playout.add_words(self._utterance, words)
        return all(
            self._playout.append(self._utterance, pcm[start : start + FRAME_BYTES])
            for start in range(0, whole, FRAME_BYTES)
        )

    def finish(self, pcm: bytes = b"", *, cut: bool = False) -> None:
        """Put the last audio of the utterance; a part of a frame is filled up with silence."""
        self.put(pcm)
        if self._rest:
            self._playout.append(self._utterance, self._rest.ljust(FRAME_BYTES, b"\0"))
        self._playout.complete(self._utterance, cut=cut)


def _pump_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return a clock for the pump thread that agrees with the loop's, which uvloop updates once in each iteration."""
    # The loop of a test may have a clock of its own, far from the system's.
    return time.monotonic if abs(time.monotonic() - loop.time()) < 1.0 else loop.time


def _no_seconds() -> float:
    """Stand in for a wire that has no buffer."""
    return 0.0


def _ignore(*_: object) -> None:
    """Stand in for the callbacks of a closed synthesizer."""


class _Nobody:
    """Listener of closed speech, for callbacks that come late."""

    def utterance_started(self, utterance: Utterance, at: float) -> None: ...

    def utterance_reached(self) -> None: ...

    def utterance_finished(self, utterance: Utterance, at: float) -> None: ...

    def speech_failed(self, utterance: Utterance, detail: str) -> None: ...

    def agent_fell_silent(self) -> None: ...


def _sound_of(sounds: Sounds, response: DelayResponse) -> bytes | None:
    """Return the audio of a tag (`[Ring]`), as long as the agent says; None for words and unknown tags."""
    pcm = sounds(response.text.strip(" []").lower()) if is_sound(response.text) else None
    if pcm is None:
        return None
    frames = max(1, round(response.duration / FRAME_SECONDS))
    return (pcm * (frames * FRAME_BYTES // len(pcm) + 1))[: frames * FRAME_BYTES]
