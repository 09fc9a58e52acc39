from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from callagent.agents import (
    Action,
    CallerTurn,
    DelayResponse,
    DigitSettings,
    FunctionEnded,
    FunctionStarted,
    Handoff,
    HandoffFailed,
    HangUp,
    LatencyControl,
    Listen,
    ListenSettings,
    Say,
    SetLanguage,
    SetVoice,
    WaitEnded,
    WaitStarted,
)
from callagent.call import Call
from callagent.call.state import TRANSITIONS, CallInput, CallServices, CallSettings, CallState
from callagent.call_info import NO_HEADERS, EndReason
from callagent.errors import ProviderError, WorkerError
from callagent.legs.leg import TransferOutcome, TransferStatus, TransferTarget
from callagent.observability import Metrics
from callagent.records import CallRecord, format_call
from callagent.server.outbound import TargetRefused
from callagent.speech.scripted import ScriptedRecognizer, ScriptedVoice
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.fakes import FakeAgent, FakeLeg, FakeProject, LoudnessActivity, says


@dataclass
class MemoryStore:
    """The store's methods, kept in memory: a thread has no place on the virtual clock."""

    metrics: list[tuple[int, str, Any]] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    records: list[CallRecord] = field(default_factory=list)

    async def opened(self, record: CallRecord) -> None:
        assert record.in_progress

    async def metric(self, call_id: str, sequence: int, name: str, value: Any) -> None:
        self.metrics.append((sequence, name, value))

    def progressed(self, record: CallRecord) -> None:
        assert record.in_progress

    async def end_attempted(self, call_id: str, attempt: int) -> None:
        self.attempts.append(attempt)

    async def ended(self, record: CallRecord) -> None:
        self.records.append(record)


class Scene:
    """One call: what the peer does is scheduled before it runs."""

    def __init__(self, agent: FakeAgent, words: Sequence[str] = (), *, answers: bool = True) -> None:
        self.agent = agent
        self.words = words
        self.answers = answers
        self.leg: FakeLeg
        self.call: Call
        self.store = MemoryStore()
        self.failure: Exception | None = None
        """The project has no agent for this call."""
        self.plan: list[tuple[float, Callable[[FakeLeg], None]]] = []
        self.speech: list[tuple[float, float]] = []

    def caller_speaks(self, at: float, lasting: float = 1.0) -> None:
        """Seconds since the answer."""
        self.speech.append((at, at + lasting))

    def at(self, seconds: float, what: Callable[[FakeLeg], None]) -> None:
        self.plan.append((seconds, what))

    def play(self, **settings: Any) -> CallRecord:
        return run(self._play(CallSettings(**settings)))

    async def _play(self, settings: CallSettings) -> CallRecord:
        loop = asyncio.get_running_loop()
        self.leg = FakeLeg(answers=self.answers)
        self.leg.media.speech = self.speech
        for seconds, what in self.plan:
            loop.call_later(seconds, what, self.leg)
        self.voice = ScriptedVoice()

        def make_turn_manager(emit: Any) -> TurnManager:
            ears = CallerInput(ScriptedRecognizer(list(self.words)), LoudnessActivity())
            return TurnManager(ears, self.voice, emit, TurnSettings())

        services = CallServices(self.store, self._resolve, lambda provider, name: provider == "elevenlabs")  # type: ignore[arg-type]
        project = FakeProject(self.agent, failure=self.failure)
        self.call = Call(self.leg, project, make_turn_manager, services, settings)
        return await self.call.run()

    def _resolve(self, handoff: Handoff) -> TransferTarget:
        if handoff.destination == "forbidden":
            raise TargetRefused("not a target")
        return TransferTarget(handoff.destination, "sip:support@192.0.2.1", handoff.method)


GOODBYE = says(Say("Goodbye."), HangUp())


def test_a_call_from_ringing_to_the_record() -> None:
    scene = Scene(FakeAgent([says(Say("It is on its way."), Listen()), GOODBYE]), ["where is it", "thank you"])
    scene.caller_speaks(2.0)
    scene.caller_speaks(7.0)
    record = scene.play()
    assert scene.leg.did == ["ring", "answer", "hang up agent_hangup"]
    assert [turn.text for turn in scene.agent.turns if isinstance(turn, CallerTurn)] == ["where is it", "thank you"]
    assert scene.agent.heard_texts[:2] == [("Hello.", False), ("It is on its way.", False)]
    assert scene.agent.ended == [(EndReason.AGENT_HANGUP, 1)]
    assert scene.agent.closed == 1
    assert record.end_reason == "agent_hangup"
    assert record.end_function == "done"
    assert record.num_turns == 2
    assert [turn.agent_response for turn in record.turns[:2]] == ["Hello.", "It is on its way."]
    assert record.turns[1].latency["response"] == pytest.approx(0.6, abs=0.25)
    assert record.state == {"x": 1}
    assert scene.store.records == [record]


def test_voice_and_language_change_from_one_utterance_to_the_next() -> None:
    actions = [
        Say("One."),
        SetVoice("elevenlabs", "xyz"),
        Say("Two."),
        SetVoice("playht", "abc"),
        SetLanguage("de-DE"),
        Say("Drei."),
        HangUp(),
    ]
    scene = Scene(FakeAgent([says(*actions)]), ["hi"])
    scene.caller_speaks(2.0)
    record = scene.play()
    asked = dict(zip(scene.voice.spoken, scene.voice.settings, strict=True))
    assert asked["One."].name == ""
    assert (asked["Two."].name, asked["Two."].language) == ("elevenlabs/xyz", "en-US")
    assert (asked["Drei."].name, asked["Drei."].language) == ("elevenlabs/xyz", "de-DE")
    assert "voice 'playht/abc' is not available" in str(record.errors)


def test_the_last_words_are_played_before_the_hang_up() -> None:
    scene = Scene(FakeAgent([GOODBYE]), ["bye"])
    scene.caller_speaks(2.0)
    record = scene.play()
    goodbye = scene.leg.media.talking()[-1]
    assert goodbye[1] - goodbye[0] > 0.3
    assert record.turns[-1].spoken[-1].heard == "Goodbye."


def test_it_rings_while_the_start_function_runs_and_answers_after_three_seconds() -> None:
    scene = Scene(FakeAgent(start_seconds=60.0))
    scene.at(5.0, lambda leg: leg.hangs_up())
    record = scene.play()
    assert scene.leg.did == ["ring", "answer", "hang up caller_hangup"]
    assert scene.leg.media.answered == pytest.approx(3.0)
    assert record.end_function == "done"


def test_a_start_function_that_hangs_up_at_once_refuses_the_call() -> None:
    scene = Scene(FakeAgent(greeting=(HangUp(EndReason.REJECTED),)))
    record = scene.play()
    assert scene.leg.did == ["ring", "hang up rejected"]
    assert record.answered_at is None
    assert scene.agent.ended == [(EndReason.REJECTED, 1)]


def test_a_caller_who_gives_up_while_it_rings() -> None:
    scene = Scene(FakeAgent(start_seconds=2.0))
    scene.at(1.0, lambda leg: leg.hangs_up(EndReason.CANCELLED))
    record = scene.play()
    assert "answer" not in scene.leg.did
    assert record.end_reason == "cancelled"
    assert scene.agent.ended == [(EndReason.CANCELLED, 1)]


def test_an_answer_that_crosses_a_cancel() -> None:
    record = Scene(FakeAgent(), answers=False).play()
    assert record.end_reason == "cancelled"


def test_the_caller_hangs_up_in_the_middle_of_a_reply() -> None:
    scene = Scene(FakeAgent([says(Say("One moment."), Say("never"), Listen(), after=30.0)]), ["hello"])
    scene.caller_speaks(2.0)
    scene.at(6.0, lambda leg: leg.hangs_up())
    record = scene.play()
    assert record.end_reason == "caller_hangup"
    assert scene.agent.cut == 1
    assert scene.agent.ended == [(EndReason.CALLER_HANGUP, 1)]


def test_a_barge_in_cuts_the_reply_and_history_holds_what_was_heard() -> None:
    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    scene = Scene(FakeAgent([says(Say(long), Listen()), GOODBYE]), ["tell me", "please stop that"])
    scene.caller_speaks(2.0)
    scene.caller_speaks(5.0, 1.2)
    record = scene.play()
    heard, cut = next(pair for pair in scene.agent.heard_texts if pair[1])
    assert cut
    assert long.startswith(heard.rstrip(" .…"))
    assert 0 < len(heard) < len(long)
    silent_at = next(end for start, end in scene.leg.media.talking() if start < 5.0 < end + 0.4 and end > 4.5)
    assert silent_at - 5.0 < 0.3
    assert record.turns[1].barge_in
    assert record.turns[1].spoken[0].interrupted
    assert record.turns[1].agent_response == heard
    assert record.turns[2].user_input == "please stop that"


def test_a_barge_in_while_a_function_runs_cuts_the_reply_once() -> None:
    control = LatencyControl(0.0, 1.0, (DelayResponse("Let me have a look at that for you right now.", 1.0),))

    async def slow(turn: Any) -> AsyncIterator[Action]:
        yield FunctionStarted(1, "look_up", {}, control)
        await asyncio.sleep(8.0)
        yield FunctionEnded(1, "look_up", {}, "found", None, 8000.0)
        yield Say("Found it.")
        yield Listen()

    scene = Scene(FakeAgent([slow, GOODBYE]), ["find it", "forget about it"])
    scene.caller_speaks(2.0)
    scene.caller_speaks(4.2, 1.2)
    record = scene.play()
    assert scene.agent.fillers == ["Let me have a look at that for you right now."]
    assert scene.agent.cut == 1
    assert record.turns[2].user_input == "forget about it"
    assert not any(spoken.text == "Found it." for turn in record.turns for spoken in turn.spoken)


def test_a_filler_sounds_while_the_model_is_waited_for_and_none_after_its_first_words() -> None:
    control = LatencyControl(1.0, 1.0, (DelayResponse("Mm.", 0.0), DelayResponse("Right.", 0.0)))

    async def thinking(turn: Any) -> AsyncIterator[Action]:
        yield WaitStarted(-1, control)
        await asyncio.sleep(1.5)
        yield WaitEnded(-1)
        yield Say("It is open.")
        yield HangUp()

    scene = Scene(FakeAgent([thinking]), ["are you open"])
    scene.caller_speaks(2.0)
    record = scene.play()
    spoken = [(one.kind, one.text) for one in record.turns[1].spoken]
    assert spoken == [("filler", "Mm."), ("speech", "It is open.")]
    assert record.turns[1].functions == []


def test_fillers_sound_while_a_function_runs_and_the_answer_follows() -> None:
    control = LatencyControl(0.0, 1.0, (DelayResponse("One moment.", 1.0), DelayResponse("Still looking.", 1.0)))

    async def slow(turn: Any) -> AsyncIterator[Action]:
        yield FunctionStarted(1, "look_up", {"n": 1}, control)
        await asyncio.sleep(2.5)
        yield FunctionEnded(1, "look_up", {"n": 1}, {"content": "x"}, None, 2500.0)
        yield Say("Found it.")
        yield HangUp()

    scene = Scene(FakeAgent([slow]), ["find it"])
    scene.caller_speaks(2.0)
    record = scene.play()
    spoken = [(one.kind, one.text) for one in record.turns[1].spoken]
    assert spoken == [("filler", "One moment."), ("filler", "Still looking."), ("speech", "Found it.")]
    function = record.turns[1].functions[0]
    assert (function.name, function.arguments, function.duration_ms) == ("look_up", {"n": 1}, 2500.0)
    spans = scene.leg.media.talking()
    assert all(spans[n][1] < spans[n + 1][0] for n in range(len(spans) - 1))


async def prompt(turn: CallerTurn | HandoffFailed) -> AsyncIterator[Action]:
    yield Say("Are you still there?")
    yield Listen()


def test_missing_media_ends_a_call_only_once_the_agent_has_prompted_in_vain() -> None:
    """Three prompts, and the silence after the third; then the fourth is heard too, and the media time-out counts."""
    scene = Scene(FakeAgent([prompt] * 5))
    expected_after: list[list[bool]] = []
    # The greeting, then 7 s of silence and a prompt of about a second each.
    for seconds in (6.0, 30.0, 40.0):
        scene.at(seconds, lambda leg: expected_after.append(list(leg.expected_media)))
    scene.at(45.0, lambda leg: leg.hangs_up())
    record = scene.play()
    assert record.num_silences >= 4
    assert expected_after == [[False], [False], [False, True]]


def test_missing_media_is_no_longer_held_against_a_caller_who_has_spoken_again() -> None:
    scene = Scene(FakeAgent([prompt] * 8), ["yes"])
    scene.caller_speaks(40.0)
    scene.at(50.0, lambda leg: leg.hangs_up())
    scene.play()
    assert scene.leg.expected_media == [False, True, False]


def test_media_is_expected_while_nobody_prompts_the_caller() -> None:
    scene = Scene(FakeAgent([says(Handoff("support", "asked", "refer")), prompt]), ["a person"])
    scene.caller_speaks(2.0)
    scene.at(0.0, lambda leg: setattr(leg, "transfer_outcome", TransferOutcome(TransferStatus.FAILED, "486 Busy Here")))
    scene.at(12.0, lambda leg: leg.hangs_up())
    scene.play()
    assert scene.leg.expected_media == [False, True, False]


@pytest.mark.parametrize("lost", [False, True])
def test_a_caller_who_leaves_in_the_middle_of_a_transfer_is_gone_and_the_transfer_has_not_failed(lost: bool) -> None:
    def goes(leg: FakeLeg) -> None:
        if lost:
            leg.fails(EndReason.MEDIA_TIMEOUT, "no media for 20 s")
        else:
            leg.hangs_up(EndReason.CALLER_HANGUP, {}, ("Q.850 16",))

    scene = Scene(FakeAgent([says(Handoff("support", "asked", "refer"))]), ["a person"])
    scene.caller_speaks(2.0)
    scene.at(0.0, lambda leg: setattr(leg, "transfer_seconds", 60.0))
    scene.at(8.0, goes)
    record = scene.play()
    (transfer,) = record.transfers
    detail = "no media for 20 s" if lost else "Q.850 16"
    assert (transfer["status"], transfer["detail"]) == ("caller_gone", detail)
    assert (record.handoff, record.handoff_outcome) == (False, "caller_gone")
    assert record.end_reason == ("media_timeout" if lost else "caller_hangup")
    assert not any(isinstance(turn, HandoffFailed) for turn in scene.agent.turns)


def test_what_the_peer_says_as_it_leaves_reaches_the_end_function_the_record_and_the_figures() -> None:
    scene = Scene(FakeAgent())
    said = {"Reason": 'Q.850;cause=27;text="Destination out of order"', "X-Survey": "5"}
    scene.at(2.0, lambda leg: leg.hangs_up(EndReason.CALLER_HANGUP, said, ("Q.850 27",)))
    record = scene.play()
    assert scene.agent.ended == [(EndReason.CALLER_HANGUP, 1)]
    assert scene.agent.end_headers == said
    assert (record.hang_up_headers, record.hang_up_causes) == (said, ["Q.850 27"])
    metrics = Metrics()
    metrics.ended(record)
    assert 'callagent_hang_up_causes_total{cause="Q.850 27"} 1' in metrics.text({})
    assert "  X-Survey: 5" in format_call(record.to_json()).splitlines()


def test_a_handoff_is_transferred_after_the_last_words() -> None:
    scene = Scene(FakeAgent([says(Say("Connecting you."), Handoff("support", "asked", "refer"))]), ["a person please"])
    scene.caller_speaks(2.0)
    record = scene.play()
    assert scene.leg.did == ["ring", "answer", "transfer refer sip:support@192.0.2.1", "hang up handoff"]
    assert record.handoff
    assert (record.handoff_destination, record.handoff_reason) == ("support", "asked")
    assert record.transfers[0]["status"] == "succeeded"
    assert record.turns[-1].spoken[-1].heard == "Connecting you."


@pytest.mark.parametrize("destination", ["support", "forbidden"])
def test_a_handoff_that_fails_gives_the_caller_back_to_the_agent(destination: str) -> None:
    scene = Scene(FakeAgent([says(Handoff(destination, "asked", "refer")), GOODBYE]), ["a person please"])
    scene.caller_speaks(2.0)
    original = FakeLeg.__init__

    def busy(leg: FakeLeg, **options: Any) -> None:
        original(leg, **options)
        leg.transfer_outcome = TransferOutcome(TransferStatus.FAILED, "486 Busy Here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeLeg, "__init__", busy)
        record = scene.play()
    failed = scene.agent.turns[-1]
    assert isinstance(failed, HandoffFailed)
    assert failed.reason == ("486 Busy Here" if destination == "support" else "not a target")
    assert not record.handoff
    assert record.end_reason == "agent_hangup"
    assert record.turns[-1].spoken[-1].text == "Goodbye."


def bridged(scene: Scene, outcome: TransferOutcome, seconds: float) -> CallRecord:
    original = FakeLeg.__init__

    def joined(leg: FakeLeg, **options: Any) -> None:
        original(leg, **options)
        leg.transfer_outcome, leg.transfer_seconds, leg.joined_after = outcome, seconds, 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeLeg, "__init__", joined)
        return scene.play()


def test_a_caller_who_is_bridged_has_been_handed_over_whoever_hangs_up() -> None:
    for leaves, outcome in ((False, TransferOutcome(TransferStatus.SUCCEEDED, "the target hung up")), (True, None)):
        scene = Scene(FakeAgent([says(Handoff("support", "asked", "invite"))]), ["a person please"])
        scene.caller_speaks(2.0)
        if leaves:
            scene.at(20.0, lambda leg: leg.hangs_up())
        record = bridged(scene, outcome or TransferOutcome(TransferStatus.SUCCEEDED, ""), 100.0 if leaves else 5.0)
        assert (record.end_reason, record.handoff, record.handoff_outcome) == ("handoff", True, "succeeded")
        assert [one["detail"] for one in record.transfers] == ["joined"]


def test_a_target_that_is_lost_gives_the_caller_back_to_the_agent() -> None:
    scene = Scene(FakeAgent([says(Handoff("support", "asked", "invite")), GOODBYE]), ["a person please"])
    scene.caller_speaks(2.0)
    record = bridged(scene, TransferOutcome(TransferStatus.FAILED, "the target was lost"), 3.0)
    failed = scene.agent.turns[-1]
    assert isinstance(failed, HandoffFailed)
    assert failed.reason == "the target was lost"
    assert [one["status"] for one in record.transfers] == ["succeeded", "failed"]
    assert (record.handoff, record.end_reason) == (False, "agent_hangup")


def test_silence_is_a_turn() -> None:
    scene = Scene(FakeAgent([says(Say("Are you there?"), Listen()), GOODBYE]))
    record = scene.play()
    assert list(scene.agent.turns) == [CallerTurn(), CallerTurn()]
    assert record.num_silences == 2


def test_keys_are_a_turn_and_secret_ones_are_kept_nowhere() -> None:
    secret = Listen(ListenSettings(digits=DigitSettings(max_digits=4, is_pii=True)))
    scene = Scene(FakeAgent([says(Say("Thank you."), HangUp())], greeting=(Say("Key your number."), secret)))
    for n, digit in enumerate("4111"):
        scene.at(4.0 + n * 0.3, lambda leg, digit=digit: leg.presses(digit))  # type: ignore[misc]
    record = scene.play()
    turn = scene.agent.turns[0]
    assert isinstance(turn, CallerTurn)
    assert turn.digits == "4111"
    assert "4111" not in str(record.to_json())
    assert record.turns[1].user_input_dtmf == "[hidden]"
    assert [press["digit"] for press in record.digits] == ["•"] * 4


def test_the_end_function_is_tried_again_only_when_it_did_not_reach_its_end() -> None:
    scene = Scene(FakeAgent([GOODBYE], end_results=[False, True]), ["bye"])
    scene.caller_speaks(2.0)
    record = scene.play()
    assert scene.agent.ended == [(EndReason.AGENT_HANGUP, 1), (EndReason.AGENT_HANGUP, 2)]
    assert scene.store.attempts == [1, 2]
    assert record.end_function == "done"


def test_an_end_function_that_hangs_delays_the_record_by_its_limit_only() -> None:
    class Hanging(FakeAgent):
        async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
            self.ended.append((reason, attempt))
            await asyncio.sleep(10_000)
            return True

    scene = Scene(Hanging([GOODBYE]), ["bye"])
    scene.caller_speaks(2.0)
    record = scene.play(end_function_timeout=5.0)
    assert record.end_function == "failed"
    assert len(scene.agent.ended) == 2


def test_an_agent_that_fails_ends_its_call_with_a_record() -> None:
    async def broken(turn: Any) -> AsyncIterator[Action]:
        raise ProviderError("out of order")
        yield Say("never")

    scene = Scene(FakeAgent([broken]), ["hello"])
    scene.caller_speaks(2.0)
    record = scene.play()
    assert record.end_reason == "error"
    assert record.errors[0]["detail"] == "out of order"
    assert scene.leg.did[-1] == "hang up error"
    assert scene.agent.ended == [(EndReason.ERROR, 1)]


CLOSING_LINE = "Our service is being restarted. Please call again in a few minutes. Goodbye."


@pytest.mark.parametrize("at", [0.2, 2.4, 6.0], ids=["the agent speaks", "the caller speaks", "nobody speaks"])
def test_a_server_that_stops_says_so_to_the_end_before_it_hangs_up(at: float) -> None:
    scene = Scene(FakeAgent([says(Say("Hm."), Listen()) for _ in range(5)]), ["where is it"])
    scene.caller_speaks(2.0, lasting=2.0)
    scene.at(at, lambda leg: scene.call.close_down())
    record = scene.play()
    assert (record.end_reason, scene.leg.did[-1]) == ("server_shutdown", "hang up server_shutdown")
    last = [spoken for turn in record.turns for spoken in turn.spoken][-1]
    assert (last.text, last.heard, last.interrupted) == (CLOSING_LINE, CLOSING_LINE, False)


def test_a_server_that_stops_cuts_a_long_answer_for_its_closing_line() -> None:
    words = " ".join(f"word{number}" for number in range(400))
    scene = Scene(FakeAgent([says(Say(words, interruptible=False), Listen())]), ["where is it"])
    scene.caller_speaks(2.0, lasting=1.0)
    scene.at(10.0, lambda leg: scene.call.close_down())
    record = scene.play()
    assert record.end_reason == "server_shutdown"
    assert record.total_duration < 20.0
    *_, answer, last = [spoken for turn in record.turns for spoken in turn.spoken]
    assert (last.text, last.heard, last.interrupted) == (CLOSING_LINE, CLOSING_LINE, False)
    assert answer.interrupted
    assert 0 < len(answer.heard or "") < len(words)


def test_a_call_ends_when_its_time_is_up() -> None:
    scene = Scene(FakeAgent([says(Say("Hm."), Listen()) for _ in range(20)]))
    record = scene.play(longest_call=30.0)
    assert record.end_reason == "max_duration"
    assert record.total_duration == pytest.approx(30.0, abs=0.1)


def test_metrics_are_written_in_order() -> None:
    agent = FakeAgent()

    async def reply(turn: Any) -> AsyncIterator[Action]:
        assert agent.write_metric
        await agent.write_metric("A", 1)
        await agent.write_metric("B", "x")
        yield HangUp()

    agent.replies.append(reply)
    scene = Scene(agent, ["go"])
    scene.caller_speaks(2.0)
    scene.play()
    assert scene.store.metrics == [(1, "A", 1), (2, "B", "x")]


def test_every_state_can_be_left_for_the_end_and_is_reached() -> None:
    reached = {CallState.STARTING, *TRANSITIONS.values()}
    assert reached == set(CallState)
    for state in set(CallState) - {CallState.ENDED}:
        assert TRANSITIONS[state, CallInput.END] is CallState.ENDED


def test_a_turn_taken_too_early_comes_again_whole() -> None:
    slow = says(Say("For how many?"), Listen(), after=2.0)
    scene = Scene(FakeAgent([slow, GOODBYE]), ["I want a table", "for four please"])
    scene.caller_speaks(2.0)
    scene.caller_speaks(3.8)
    scene.play()
    turns = [turn for turn in scene.agent.turns if isinstance(turn, CallerTurn)]
    assert [(turn.text, turn.reopens) for turn in turns] == [
        ("I want a table", False),
        ("I want a table for four please", True),
    ]


def test_a_call_that_the_agent_cannot_go_on_with_goes_to_the_fallback_of_its_number() -> None:
    async def broken(turn: Any) -> AsyncIterator[Action]:
        raise ProviderError("out of order")
        yield Say("never")

    gives_up = says(Say("I cannot help you."), HangUp(EndReason.ERROR))
    for reply in (broken, gives_up):
        scene = Scene(FakeAgent([reply]), ["hello"])
        scene.caller_speaks(2.0)
        record = scene.play(fallback="desk")
        assert (record.end_reason, record.handoff_destination, record.handoff_reason) == (
            "handoff",
            "desk",
            "agent_failed",
        )
        assert scene.leg.did[-2:] == ["transfer refer sip:support@192.0.2.1", "hang up handoff"]


def test_a_fallback_that_does_not_answer_is_not_tried_twice() -> None:
    gives_up = says(Say("I cannot help you."), HangUp(EndReason.ERROR))
    scene = Scene(FakeAgent([gives_up, gives_up]), ["hello"])
    scene.caller_speaks(2.0)
    record = scene.play(fallback="forbidden")
    assert record.end_reason == "error"
    assert isinstance(scene.agent.turns[-1], HandoffFailed)


def test_a_call_without_an_agent_is_answered_for_its_fallback() -> None:
    for fallback, reason, did in (
        ("desk", "handoff", ["ring", "answer", "transfer refer sip:support@192.0.2.1", "hang up handoff"]),
        ("forbidden", "error", ["ring", "answer", "hang up error"]),
        ("", "error", ["ring", "hang up error"]),
    ):
        scene = Scene(FakeAgent())
        scene.failure = WorkerError("no worker could be started")
        scene.caller_speaks(0.5)
        record = scene.play(fallback=fallback)
        assert (record.end_reason, scene.leg.did) == (reason, did)
        assert "no worker" in record.errors[0]["detail"]
        assert len(scene.voice.spoken) == bool(fallback)
