"""The agent's side of the floor: what it says, the fillers of its functions, and what of it was heard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from callagent.agents.action import LatencyControl
from callagent.speech.protocol import Voice, VoiceSettings
from callagent.turns.filler import FillerSchedule
from callagent.turns.playout import Cue, Playout, Utterance, UtteranceKind
from callagent.turns.speaker import Speaker


class AgentVoiceListener(Protocol):
    """Who is told of what the caller hears."""

    def utterance_started(self, utterance: Utterance, at: float) -> None: ...

    def utterance_finished(self, utterance: Utterance, at: float) -> None: ...

    def speech_failed(self, utterance: Utterance, detail: str) -> None: ...

    def agent_fell_silent(self) -> None:
        """All that was said has been heard, or could not be said. Not called for what is discarded."""


class AgentVoice:
    """Joins playout, speaker and filler schedule; tells `told` on the loop."""

    def __init__(self, voice: Voice, voice_wait: float, told: AgentVoiceListener) -> None:
        self._loop = asyncio.get_running_loop()
        self._told = told
        self._playout = Playout(self._pass_cue, _pump_clock(self._loop))
        self._speaker = Speaker(voice, self._playout, voice_wait, self._fail, self._check_idle)
        self.unheard: Callable[[], float] = lambda: 0.0
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
        self._filler: FillerSchedule | None = None
        self._filler_timer: asyncio.TimerHandle | None = None
        self._filler_said: Utterance | None = None
        self._function = 0

    # saying

    def say(self, text: str, *, interruptible: bool, kind: UtteranceKind, pcm: bytes | None = None) -> Utterance:
        """Queue an utterance; unless it is a filler itself it ends the fillers."""
        if kind is not UtteranceKind.FILLER:
            self._stop_filler()
        self._count += 1
        utterance = Utterance(self._count, text, interruptible, kind)
        self._idle.clear()
        self._speaker.say(utterance, pcm)
        self._check_idle()
        return utterance

    def set_voice(self, voice: Voice | None, settings: VoiceSettings) -> None:
        """From the next utterance on; None keeps the voice."""
        self._speaker.voice = voice or self._speaker.voice
        self._speaker.settings = settings

    def next_frame(self) -> bytes | None:
        """What the wire is to send now; called from the pump thread."""
        return self._playout.next_frame()

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
        return self._speaker.idle and self._playout.idle

    @property
    def interruptible(self) -> bool:
        """What is being said, or comes next, may be interrupted."""
        current = self._playout.current
        return current is None or current.interruptible

    async def played_out(self) -> None:
        """Wait until all is heard or discarded."""
        await self._idle.wait()

    # silence

    def pause(self, dropped: float) -> None:
        """`dropped`: seconds that the wire threw away unheard."""
        self._cancel_tails()
        self._playout.pause(dropped)

    def resume(self) -> None:
        self._playout.resume()

    def discard(self, dropped: float) -> str:
        """Fall silent and forget all; what the caller heard of this turn's words."""
        self._idle.set()
        self._cancel_tails()
        self._speaker.discard()
        for heard in self._playout.discard(dropped):
            if heard.utterance.kind is not UtteranceKind.FILLER:
                self._heard.append(heard.text)
        self._started_at.clear()
        return self.end_turn()

    def end_turn(self) -> str:
        """No filler starts any more; the words heard since the last turn's end. Fillers are none."""
        self._stop_filler()
        self.was_heard = False
        text = " ".join(text for text in self._heard if text)
        self._heard.clear()
        return text

    async def close(self) -> None:
        self.discard(0.0)
        await self._speaker.close()

    # fillers

    def function_started(self, number: int, latency: LatencyControl | None) -> None:
        self._stop_filler()
        self._function = number
        if latency is not None:
            self._filler = FillerSchedule(latency, self._loop.time())
            self._arm_filler()

    def function_ended(self, number: int) -> None:
        if number == self._function:
            self._stop_filler()

    def _arm_filler(self) -> None:
        if self._filler_timer is not None:
            self._filler_timer.cancel()
        due = self._filler.deadline if self._filler is not None else None
        self._filler_timer = None if due is None else self._loop.call_at(due, self._say_filler)

    def _say_filler(self) -> None:
        if self._filler is not None and (response := self._filler.due(self._loop.time())) is not None:
            self._filler_said = self.say(response.text, interruptible=True, kind=UtteranceKind.FILLER)

    def _stop_filler(self) -> None:
        """One that is being said ends its words; one that has not begun is taken back."""
        if self._filler is not None:
            self._filler.stop()
            self._filler = None
            self._arm_filler()
        if self._filler_said is not None and self._speaker.withdraw(self._filler_said):
            self._speaker.make_room()
        self._filler_said = None
        self._check_idle()

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
        if not self._playout.holds(utterance):
            return
        if cue.begins:
            self._speaker.make_room()
            # After a rewind over the boundary of two utterances the second begins twice.
            if utterance.number not in self._started_at:
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
        self._speaker.make_room()
        started = self._started_at.pop(utterance.number, None)
        if utterance.kind is not UtteranceKind.FILLER:
            self._heard.append(heard)
        elif self._filler is not None and utterance == self._filler_said:
            self._filler_said = None
            self._filler.ended(started, at)
            self._arm_filler()
        self._told.utterance_finished(utterance, at)
        self._check_idle()

    def _cancel_tails(self) -> None:
        for timer in self._tails.values():
            timer.cancel()
        self._tails.clear()

    def _check_idle(self) -> None:
        if self.idle and not self._idle.is_set():
            self._idle.set()
            self._told.agent_fell_silent()

    def _fail(self, utterance: Utterance, detail: str) -> None:
        self._told.speech_failed(utterance, detail)


def _pump_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The loop's clock as another thread may read it: some loops only look at the time once in a round."""
    return time.monotonic if abs(time.monotonic() - loop.time()) < 1.0 else loop.time
