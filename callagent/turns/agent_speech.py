"""The agent's side of the floor: what it says, the fillers of its functions, and what of it was heard."""

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
from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings, WordTime
from callagent.turns.background_audio import BackgroundAudio, render
from callagent.turns.fillers import TURN, Effect, FillerSchedule, is_sound
from callagent.turns.playout import Cue, Playout, Utterance, UtteranceKind

LOOK_AHEAD = 1
"""Utterances synthesised and waiting behind the one being said."""
MAX_WAITING_UTTERANCES = 200
"""Utterances not yet synthesised; an agent that says more without listening is broken."""

log = get_logger(__name__)
Failed = Callable[[Utterance, str], None]


class Synthesizer:
    """One call's voice. It owns one task, which runs while something is to be synthesised."""

    def __init__(
        self, voice: Voice, playout: Playout, voice_wait: float, failed: Failed, ended: Callable[[], None]
    ) -> None:
        self.voice = voice
        self.settings = VoiceSettings()
        self._playout = playout
        self._voice_wait = voice_wait
        self._failed = failed
        self._ended = ended
        self._waiting: deque[tuple[Utterance, bytes | None, Voice, VoiceSettings]] = deque()
        """Each with the voice that it was to be said with when it was queued."""
        self._task: asyncio.Task[None] | None = None
        self._current: Utterance | None = None
        """The one synthesised last."""
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled and not yet ended."""
        self._room = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Nothing is being synthesised or waits to be."""
        return self._task is None

    def say(self, utterance: Utterance, pcm: bytes | None = None) -> None:
        """Queue it, as text for the voice or as a recording; it fails at once when too many wait."""
        if len(self._waiting) >= MAX_WAITING_UTTERANCES:
            self._failed(utterance, f"{MAX_WAITING_UTTERANCES} utterances are waiting")
            return
        self._waiting.append((utterance, pcm, self.voice, self.settings))
        if self._task is None:
            self._start()

    def withdraw(self, utterance: Utterance) -> bool:
        """Take it back if nothing of it was played; whether that was so."""
        for entry in self._waiting:
            if entry[0] == utterance:
                self._waiting.remove(entry)
                return True
        return self._playout.withdraw(utterance)

    def make_room(self) -> None:
        """An utterance began to be played or is over: the next one may be synthesised."""
        self._room.set()

    def discard(self) -> None:
        """Stop synthesising and forget what waits."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)
            self._task = None

    async def close(self) -> None:
        """Stop, wait until every task has ended, and drop the callbacks, whose owner holds this speaker."""
        self.discard()
        if self._ending:
            await asyncio.wait(self._ending)
        self._failed = self._ended = _ignore

    # private

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="synthesizer")
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A voice that breaks its contract costs an utterance, not the call."""
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self._ended()
            return
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
            if not self._waiting:
                break
            utterance, pcm, voice, settings = self._waiting.popleft()
            self._current = utterance
            if pcm is None:
                await self._synthesise(utterance, voice, settings)
            else:
                self._playout.begin(utterance)
                _Framer(self._playout, utterance).finish(pcm)
        self._task = None

    async def _wait_for_room(self) -> None:
        while self._playout.ahead >= LOOK_AHEAD:
            self._room.clear()
            await self._room.wait()

    async def _synthesise(self, utterance: Utterance, voice: Voice, settings: VoiceSettings) -> None:
        self._playout.begin(utterance)
        framer = _Framer(self._playout, utterance)
        # speak() is an async generator in all but its declared type: closing it stops the provider's work.
        source = voice.speak(utterance.text, settings)
        try:
            async with aclosing(source):  # type: ignore[type-var]
                while chunk := await self._next_chunk(source):
                    if not framer.put(chunk.pcm, chunk.words):
                        return
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
    """Cuts an utterance's audio to frames."""

    def __init__(self, playout: Playout, utterance: Utterance) -> None:
        self._playout = playout
        self._utterance = utterance
        self._rest = b""

    def put(self, pcm: bytes, words: tuple[WordTime, ...] = ()) -> bool:
        """False: the utterance is no longer wanted."""
        pcm = self._rest + pcm
        whole = len(pcm) - len(pcm) % FRAME_BYTES
        self._rest = pcm[whole:]
        self._playout.add_words(self._utterance, words)
        return all(
            self._playout.append(self._utterance, pcm[start : start + FRAME_BYTES])
            for start in range(0, whole, FRAME_BYTES)
        )

    def finish(self, pcm: bytes = b"", *, cut: bool = False) -> None:
        """The last of it; a part of a frame is filled up with silence."""
        self.put(pcm)
        if self._rest:
            self._playout.append(self._utterance, self._rest.ljust(FRAME_BYTES, b"\0"))
        self._playout.complete(self._utterance, cut=cut)


def _ignore(*_: object) -> None:
    """Stand in for the callbacks of a closed speaker."""


class AgentSpeechListener(Protocol):
    """Who is told of what the caller hears."""

    def utterance_started(self, utterance: Utterance, at: float) -> None: ...

    def another_is_heard(self) -> None:
        """One was heard to its end and others follow, or one begins a second time, after a rewind over its start."""

    def utterance_finished(self, utterance: Utterance, at: float) -> None: ...

    def speech_failed(self, utterance: Utterance, detail: str) -> None: ...

    def agent_fell_silent(self) -> None:
        """All that was said has been heard, or could not be said. Not called for what is discarded."""


Sounds = Callable[[str], bytes | None]
"""A sound by its name, as PCM; None: there is none of that name."""


class AgentSpeech:
    """Joins playout, speaker, arbiter and bed; tells `told` on the loop."""

    def __init__(
        self, voice: Voice, voice_wait: float, told: AgentSpeechListener, sounds: Sounds = lambda name: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._told = told
        self._playout = Playout(self._pass_cue, _pump_clock(self._loop))
        self._synthesizer = Synthesizer(voice, self._playout, voice_wait, self._fail, self._check_idle)
        self.unheard: Callable[[], float] = _nothing
        """Seconds that the wire has taken and the caller not heard."""
        self._count = 0
        self._heard: list[str] = []
        self.was_heard = False
        """The caller heard something, a filler even, since the turn began."""
        self._started_at: dict[int, float] = {}
        """Of utterances that have begun and are not let go, by number."""
        self._tails: dict[int, asyncio.TimerHandle] = {}
        """Utterances that are sent and, on a wire with a buffer of its own, not heard to their end."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._sounds = sounds
        self._bed = BackgroundAudio()
        self._without_words = 0
        """Frames of the bed alone that were taken last. The pump's."""
        self._arbiter = FillerSchedule()
        self._filler_timer: asyncio.TimerHandle | None = None
        self._filler_said: Utterance | None = None
        self._cancellable: list[Utterance] = []
        """What was said to cover a wait, since something else was said."""

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
        """Queue an utterance; unless it only covers a wait it is the answer, and ends the fillers.

        A cancellable one that has begun is heard until the first sound of this one; one that has not is not said.
        """
        self._withdraw_cancellable()
        if kind is not UtteranceKind.FILLER and not cancellable:
            self._take_back(self._arbiter.speak())
        self._count += 1
        utterance = Utterance(self._count, text, interruptible, kind, cancellable)
        if cancellable:
            self._cancellable.append(utterance)
        self._idle.clear()
        self._synthesizer.say(utterance, pcm)
        self._look_at_wait()
        self._check_idle()
        return utterance

    def set_voice(self, voice: Voice | None, settings: VoiceSettings) -> None:
        """From the next utterance on; None keeps the voice."""
        self._synthesizer.voice = voice or self._synthesizer.voice
        self._synthesizer.settings = settings

    def next_frame(self) -> bytes | None:
        """What the wire is to send now; called from the pump thread."""
        words = self._playout.next_frame()
        frame = self._bed.under(words)
        if words is not None:
            self._without_words = 0
        elif frame is not None:
            self._without_words += 1
        return frame

    def set_background(self, name: str, loudness: float) -> bool:
        """A sound under all that is said, at so many dB of full scale; no name: none. False: it is not known."""
        pcm = self._sounds(name) if name else b""
        if pcm is not None:
            self._bed.set_background(render(pcm, loudness))
        return pcm is not None

    def set_thinking_sound(self, name: str, loudness: float) -> bool:
        """A sound for waits in which nothing is said; no name: none. False: it is not known."""
        pcm = self._sounds(name) if name else b""
        if pcm is not None:
            self._bed.set_thinking(render(pcm, loudness))
            self._look_at_wait()
        return pcm is not None

    @property
    def underruns(self) -> int:
        """Gaps within utterances because the voice was too slow."""
        return self._playout.underruns

    @property
    def remaining(self) -> float:
        """Seconds of audio that are there and not yet played."""
        return self._playout.remaining

    @property
    def idle(self) -> bool:
        """All is heard or discarded."""
        return self._synthesizer.idle and self._playout.idle

    @property
    def interruptible(self) -> bool:
        """What is being said, or comes next, may be interrupted, and so may what the wire has taken of it."""
        unheard = self._words_among(self.unheard())
        return all(utterance.interruptible for utterance in self._playout.within(unheard))

    async def played_out(self) -> None:
        """Wait until all is heard or discarded."""
        await self._idle.wait()

    # silence

    def pause(self, dropped: float) -> None:
        """`dropped`: seconds that the wire threw away unheard."""
        self._cancel_tails()
        self._playout.pause(self._words_among(dropped))
        self._look_at_wait()

    def resume(self) -> None:
        self._playout.resume()
        self._look_at_wait()

    def discard(self, dropped: float) -> str:
        """Fall silent and forget all; what the caller heard of this turn's words."""
        self._idle.set()
        self._cancel_tails()
        self._synthesizer.discard()
        for heard in self._playout.discard(self._words_among(dropped)):
            if heard.utterance.kind is not UtteranceKind.FILLER:
                self._heard.append(heard.text)
        self._started_at.clear()
        return self.end_turn()

    def end_turn(self) -> str:
        """No filler starts any more; the words heard since the last turn's end. Fillers are none."""
        self._arbiter.cut()
        self._filler_said = None
        self._look_at_wait()
        self.was_heard = False
        text = " ".join(text for text in self._heard if text)
        self._heard.clear()
        return text

    async def close(self) -> None:
        """Fall silent and drop every reference to those who are told, because they hold this object."""
        self.discard(0.0)
        await self._synthesizer.close()
        self._playout.close()
        self._told = _Nobody()
        self.unheard = _nothing

    # while the caller waits

    def turn_began(self) -> None:
        """The caller waits for the agent from now on."""
        self._arbiter.begin(TURN, None, self._loop.time())
        self._look_at_wait()

    def wait_for_answer(self, control: LatencyControl | None) -> None:
        self._arbiter.begin(TURN, control, self._loop.time())
        self._look_at_wait()

    def function_started(self, number: int, latency: LatencyControl | None) -> None:
        self._arbiter.begin(number, latency, self._loop.time())
        self._look_at_wait()

    def function_ended(self, number: int) -> None:
        self._take_back(self._arbiter.end(number))

    def no_answer(self) -> None:
        """The agent has nothing (more) to say in this turn."""
        self._take_back(self._arbiter.answer())

    def _look_at_wait(self) -> None:
        """Nothing is said by the way: a filler's time comes when all that was said is heard."""
        silent = self.idle and not self._playout.paused
        self._bed.think(silent and self._arbiter.wants_sound)
        if self._filler_timer is not None:
            self._filler_timer.cancel()
        due = self._arbiter.deadline if silent else None
        self._filler_timer = None if due is None else self._loop.call_at(due, self._say_filler)

    def _say_filler(self) -> None:
        if (response := self._arbiter.due(self._loop.time())) is not None:
            pcm = self._sound_of(response)
            self._filler_said = self.say(response.text, interruptible=True, kind=UtteranceKind.FILLER, pcm=pcm)
        self._look_at_wait()

    def _sound_of(self, response: DelayResponse) -> bytes | None:
        """The audio of a tag (`[Ring]`), as long as the agent says; None: words, or a tag that is not known here."""
        pcm = self._sounds(response.text.strip(" []").lower()) if is_sound(response.text) else None
        if pcm is None:
            return None
        frames = max(1, round(response.duration / FRAME_SECONDS))
        return (pcm * (frames * FRAME_BYTES // len(pcm) + 1))[: frames * FRAME_BYTES]

    def _take_back(self, effect: Effect | None) -> None:
        """One that is being said ends its words; one that has not begun is not said."""
        said = self._filler_said
        if effect is Effect.TAKE_BACK and said is not None and self._synthesizer.withdraw(said):
            self._filler_said = None
            self._arbiter.heard(None, self._loop.time())
            self._synthesizer.make_room()
        self._look_at_wait()
        self._check_idle()

    def _withdraw_cancellable(self) -> None:
        waiting, self._cancellable = self._cancellable, []
        for utterance in waiting:
            if self._synthesizer.withdraw(utterance):
                self._synthesizer.make_room()

    def _words_among(self, dropped: float) -> float:
        """How much of what the wire dropped was not the bed alone."""
        return max(0.0, dropped - self._without_words * FRAME_SECONDS)

    # cues of the playout

    def _pass_cue(self, cue: Cue, at: float) -> None:
        """On the pump thread."""
        try:
            self._loop.call_soon_threadsafe(self._on_cue, cue, at)
        except RuntimeError:
            # The loop is closed: the server is gone, nobody is left to be told.
            pass

    def _on_cue(self, cue: Cue, at: float) -> None:
        utterance = cue.utterance
        # The wire may have thrown away unheard what was passed a moment ago.
        if not self._playout.passed(cue):
            return
        if cue.begins:
            self._synthesizer.make_room()
            if utterance.number in self._started_at:
                self._told.another_is_heard()
            else:
                self._started_at[utterance.number] = at
                self.was_heard = True
                self._told.utterance_started(utterance, at)
            return
        tail = self.unheard()
        if tail > 0:
            self._tails[utterance.number] = self._loop.call_later(tail, self._finish, utterance, at + tail)
        else:
            self._finish(utterance, at)

    def _finish(self, utterance: Utterance, at: float) -> None:
        self._tails.pop(utterance.number, None)
        heard = self._playout.release(utterance)
        self._synthesizer.make_room()
        started = self._started_at.pop(utterance.number, None)
        if utterance.kind is not UtteranceKind.FILLER:
            self._heard.append(heard)
        elif utterance == self._filler_said:
            self._filler_said = None
            self._arbiter.heard(started, at)
        self._told.utterance_finished(utterance, at)
        if not self.idle:
            self._told.another_is_heard()
        self._check_idle()

    def _cancel_tails(self) -> None:
        for timer in self._tails.values():
            timer.cancel()
        self._tails.clear()

    def _check_idle(self) -> None:
        if self.idle and not self._idle.is_set():
            self._idle.set()
            self._arbiter.fell_silent(self._loop.time())
            self._look_at_wait()
            self._told.agent_fell_silent()

    def _fail(self, utterance: Utterance, detail: str) -> None:
        self._told.speech_failed(utterance, detail)


def _pump_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The loop's clock as another thread may read it: some loops only look at the time once in a round."""
    return time.monotonic if abs(time.monotonic() - loop.time()) < 1.0 else loop.time


def _nothing() -> float:
    """Seconds that a wire without a buffer has taken and not played."""
    return 0.0


class _Nobody:
    """Listener of a closed voice: late callbacks end here."""

    def utterance_started(self, utterance: Utterance, at: float) -> None: ...

    def another_is_heard(self) -> None: ...

    def utterance_finished(self, utterance: Utterance, at: float) -> None: ...

    def speech_failed(self, utterance: Utterance, detail: str) -> None: ...

    def agent_fell_silent(self) -> None: ...
