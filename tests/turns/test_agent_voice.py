from __future__ import annotations

import asyncio
import threading
import time

from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.turns.agent_voice import AgentVoice
from callagent.turns.playout import Utterance, UtteranceKind


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.instants: list[float] = []
        self.thread: set[int] = set()

    def note(self, what: str, utterance: Utterance, at: float) -> None:
        self.events.append((what, utterance.text))
        self.instants.append(at)
        self.thread.add(threading.get_ident())

    def utterance_started(self, utterance: Utterance, at: float) -> None:
        self.note("started", utterance, at)

    def utterance_finished(self, utterance: Utterance, at: float) -> None:
        self.note("finished", utterance, at)

    def speech_failed(self, utterance: Utterance, detail: str) -> None:
        self.note("failed", utterance, 0.0)

    def agent_fell_silent(self) -> None:
        self.events.append(("silent", ""))


async def test_a_pump_thread_takes_the_frames_and_the_loop_is_told() -> None:
    told, sent, stop = Told(), [], threading.Event()
    agent = AgentVoice(ScriptedVoice(VoiceScript(seconds_per_character=0.02)), 5.0, told)

    def pump() -> None:
        while not stop.is_set():
            if (frame := agent.next_frame()) is not None:
                sent.append(frame)
            time.sleep(0.0005)

    before = time.monotonic()
    thread = threading.Thread(target=pump)
    thread.start()
    try:
        for text in ("One two.", "Three four."):
            agent.say(text, interruptible=True, kind=UtteranceKind.SPEECH)
        async with asyncio.timeout(20):
            await agent.played_out()
        heard = agent.take_heard()
    finally:
        stop.set()
        thread.join()
        await agent.close()
    assert told.events == [
        ("started", "One two."),
        ("finished", "One two."),
        ("started", "Three four."),
        ("finished", "Three four."),
        ("silent", ""),
    ]
    assert told.thread == {threading.get_ident()}
    assert before <= told.instants[0] <= told.instants[-1] <= time.monotonic()
    assert sum(map(len, sent)) == 320 * (9 + 12)
    assert heard == "One two. Three four."


async def test_a_pump_that_outlives_the_loop_is_told_nothing() -> None:
    told = Told()
    loop = asyncio.new_event_loop()

    async def make() -> AgentVoice:
        agent = AgentVoice(ScriptedVoice(), 5.0, told)
        agent.say("late", interruptible=True, kind=UtteranceKind.SPEECH)
        await asyncio.sleep(0.01)
        return agent

    agent = await asyncio.to_thread(lambda: loop.run_until_complete(make()))
    loop.close()
    assert agent.next_frame() is not None
    assert told.events == []
