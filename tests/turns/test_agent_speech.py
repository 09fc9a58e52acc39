from __future__ import annotations

import asyncio
import threading
import time

from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.turns import (
    BargedIn,
    CallerTurnEnded,
    FloorState,
    FloorYielded,
    UtteranceFinished,
    UtteranceStarted,
)
from callagent.turns.agent_speech import AgentSpeech
from callagent.turns.playout import Utterance, UtteranceKind
from tests.turns.fakes import LATENCY, SLOW, Conversation, hold, near


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

    def utterance_reached(self) -> None:
        self.events.append(("again", ""))

    def utterance_finished(self, utterance: Utterance, at: float) -> None:
        self.note("finished", utterance, at)

    def speech_failed(self, utterance: Utterance, detail: str) -> None:
        self.note("failed", utterance, 0.0)

    def agent_fell_silent(self) -> None:
        self.events.append(("silent", ""))


async def test_a_pump_thread_takes_the_frames_and_the_loop_is_told() -> None:
    told, sent, stop = Told(), [], threading.Event()
    agent = AgentSpeech(ScriptedVoice(VoiceScript(seconds_per_character=0.02)), 5.0, told)

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
        heard = agent.end_turn()
    finally:
        stop.set()
        thread.join()
        await agent.close()
    assert told.events == [
        ("started", "One two."),
        ("finished", "One two."),
        ("again", ""),
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

    async def make() -> AgentSpeech:
        agent = AgentSpeech(ScriptedVoice(), 5.0, told)
        agent.say("late", interruptible=True, kind=UtteranceKind.SPEECH)
        await asyncio.sleep(0.01)
        return agent

    agent = await asyncio.to_thread(lambda: loop.run_until_complete(make()))
    loop.close()
    assert agent.next_frame() is not None
    assert told.events == []


def test_fillers_are_said_while_a_function_runs_and_stop_with_it() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.function_started(1, LATENCY)
        await asyncio.sleep(4.5)  # the first from 1 s to 2.1 s, the second from 4.1 s
        taker.function_ended(1)
        taker.say("Booked")
        taker.listen()
        await taker.played_out()
        starts = [(event.utterance.text, event.at) for event in call.of(UtteranceStarted)]
        assert starts == [("One moment", near(1.02)), ("Nearly done", near(4.16)), ("Booked", near(5.36))]
        assert call.of(FloorYielded)[0].heard_text == "Booked"
        assert [span.name for span in taker.timings.fillers] == ["One moment", "Nearly done"]
        assert taker.timings.fillers[0].ended == near(2.14)
        assert taker.timings.first_audio == near(5.36)

    hold(scenario)


def test_a_filler_that_waits_behind_words_is_taken_back_when_the_answer_is_there() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Let me have a look at that for you")
        taker.function_started(1, LATENCY)
        await asyncio.sleep(2)
        taker.function_ended(1)
        taker.say("Booked")
        taker.listen()
        await taker.played_out()
        assert [event.utterance.text for event in call.of(UtteranceFinished)] == [
            "Let me have a look at that for you",
            "Booked",
        ]

    hold(scenario)


def test_a_filler_taken_back_with_nothing_else_to_say_leaves_the_floor_to_the_caller() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(delay=1.0))
        taker = await call.begin()
        taker.function_started(1, LATENCY)
        await asyncio.sleep(1.5)
        taker.function_ended(1)
        taker.listen()
        await asyncio.sleep(2)
        assert taker.state is FloorState.LISTENING
        assert call.of(UtteranceStarted) == []

    hold(scenario)


def test_a_barge_in_stops_the_filler_and_the_rest_of_them() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.function_started(1, LATENCY)
        call.ear.finals = ["forget it"]
        await asyncio.sleep(1.5)
        await call.speaks(0.6, "forget it")
        await asyncio.sleep(9)
        assert [event.heard_text for event in call.of(BargedIn)] == [""]
        assert len(call.of(UtteranceStarted)) == 1
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["forget it"]

    hold(scenario)


def test_a_filler_that_waits_to_be_synthesised_is_taken_back() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        for text in ("Let me look at that", "in all the books", "that we have here"):
            taker.say(text)
        taker.function_started(1, LATENCY)
        await asyncio.sleep(1.5)
        taker.function_ended(1)
        taker.listen()
        await taker.played_out()
        assert call.voice.spoken == ["Let me look at that", "in all the books", "that we have here"]
        assert taker.state is FloorState.LISTENING

    hold(scenario)


def test_a_function_without_delay_responses_is_waited_for_in_silence() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.function_started(1, LATENCY)
        taker.function_ended(1)
        taker.function_started(2, None)
        taker.function_ended(1)
        await asyncio.sleep(30)
        assert call.events == []
        assert taker.state is FloorState.THINKING

    hold(scenario)
