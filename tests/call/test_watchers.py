"""What those who watch a call may do to it: take it over, listen in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from callagent.agents import Handoff
from callagent.audio import FRAME_BYTES
from callagent.call import Call
from callagent.call.recording_tap import AudioTap, TappedMedia
from callagent.call.state import CallServices, CallSettings
from callagent.call_info import MediaStatistics
from callagent.legs.leg import TransferOutcome, TransferStatus, TransferTarget
from callagent.records import CallRecord, StereoRecording
from callagent.server.outbound import TargetRefused
from callagent.speech.scripted import ScriptedRecognizer, ScriptedVoice
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.call.test_call import GOODBYE, MemoryStore
from tests.fakes import FakeAgent, FakeLeg, FakeProject, LoudnessActivity
from tests.records.test_recording import frame, levels


def play(agent: FakeAgent, leg: Callable[[], FakeLeg], after: Callable[[Call], None], at: float = 2.0) -> CallRecord:
    def resolve(handoff: Handoff) -> TransferTarget:
        if handoff.destination != "support":
            raise TargetRefused("not a target")
        return TransferTarget("support", "sip:support@192.0.2.1", handoff.method)

    def make_turn_manager(emit: Any) -> TurnManager:
        return TurnManager(
            CallerInput(ScriptedRecognizer([]), LoudnessActivity()), ScriptedVoice(), emit, TurnSettings()
        )

    async def scene() -> CallRecord:
        services = CallServices(MemoryStore(), resolve, signalling=lambda call_id: [{"line": "INVITE"}])  # type: ignore[arg-type]
        call = Call(leg(), FakeProject(agent), make_turn_manager, services, CallSettings())
        asyncio.get_running_loop().call_later(at, after, call)
        return await call.run()

    return run(scene())


def test_a_call_is_taken_over_without_last_words() -> None:
    legs: list[FakeLeg] = []

    def leg() -> FakeLeg:
        legs.append(FakeLeg())
        return legs[0]

    record = play(FakeAgent([]), leg, lambda call: call.take_over(Handoff("support", "taken over", "refer")))
    assert legs[0].did == ["ring", "answer", "transfer refer sip:support@192.0.2.1", "hang up handoff"]
    assert (record.handoff, record.handoff_reason, record.end_reason) == (True, "taken over", "handoff")
    assert record.signalling == [{"line": "INVITE"}]


@pytest.mark.parametrize("destination", ["support", "sip:root@10.0.0.1"])
def test_a_take_over_that_fails_leaves_the_caller_with_the_agent(destination: str) -> None:
    def leg() -> FakeLeg:
        made = FakeLeg()
        made.transfer_outcome = TransferOutcome(TransferStatus.FAILED, "486 Busy Here")
        return made

    agent = FakeAgent([GOODBYE])
    record = play(agent, leg, lambda call: call.take_over(Handoff(destination, "taken over", "refer")))
    assert (record.handoff, record.end_reason) == (False, "agent_hangup")
    assert record.handoff_outcome == ("failed" if destination == "support" else "refused")


class Wire:
    """Media whose frames the test moves."""

    def start(self, sink: Any, source: Any) -> None:
        self.sink, self.source = sink, source

    def clear(self) -> float:
        return 0.5

    def unheard(self) -> float:
        return 0.25

    def statistics(self) -> MediaStatistics:
        return MediaStatistics(codec="PCMU/8000")


def test_a_listener_gets_both_sides_and_a_slow_one_loses_the_oldest() -> None:
    wire = Wire()
    media = TappedMedia(wire)
    media.start(lambda pcm, now: None, lambda: b"a" * FRAME_BYTES)
    tap, leave = media.listen_in()
    wire.sink(b"c" * FRAME_BYTES, 0.0)
    assert tap.next_frame() == (b"c" * FRAME_BYTES, bytes(FRAME_BYTES))
    wire.source()
    assert tap.next_frame() == (bytes(FRAME_BYTES), b"a" * FRAME_BYTES)
    assert tap.next_frame() is None
    for number in range(100):
        wire.sink(bytes([number]) * FRAME_BYTES, 0.0)
    heard = [tap.next_frame() for _ in range(len(tap.caller))]
    assert [frame[0][0] for frame in heard if frame] == list(range(75, 100))
    media.caller_hidden = True
    wire.sink(b"c" * FRAME_BYTES, 0.0)
    assert tap.next_frame() == (bytes(FRAME_BYTES), bytes(FRAME_BYTES))
    leave()
    wire.sink(b"c" * FRAME_BYTES, 0.0)
    assert tap.next_frame() is None
    assert (media.clear(), media.unheard(), media.statistics().codec) == (0.5, 0.25, "PCMU/8000")
    assert isinstance(tap, AudioTap)


def test_keys_that_must_not_be_kept_are_not_heard(tmp_path: Path) -> None:
    wire, began = Wire(), monotonic()
    recording = StereoRecording(tmp_path / "call.wav", began)
    media = TappedMedia(wire, recording)
    media.start(lambda pcm, now: None, lambda: frame(5))
    for n in range(3):
        media.caller_hidden = n == 1
        wire.sink(frame(9), began + n * 0.02)
        wire.source()
    recording.close()
    assert levels(tmp_path / "call.wav") == [(9, 5), (0, 5), (9, 5)]
