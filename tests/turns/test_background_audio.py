from __future__ import annotations

import asyncio
import audioop
import struct
import time

from callagent.agents import DelayResponse, LatencyControl
from callagent.audio import FRAME_BYTES
from callagent.speech.scripted import ScriptedVoice
from callagent.turns import BargedIn, UtteranceStarted
from callagent.turns.background_audio import BackgroundAudio, render
from tests.turns.fakes import QUESTION, SLOW, Conversation, Wire, hold, near

STEADY = struct.pack("<h", 1000) * 1600
WORD = struct.pack("<h", 5000) * 160


def level(frame: bytes | None) -> int:
    return audioop.max(frame, 2) if frame else 0


def test_a_sound_is_made_as_loud_as_it_is_to_be() -> None:
    frames = render(STEADY, -40.0)
    assert {len(frame) for frame in frames} == {FRAME_BYTES}
    assert len(frames) == 10
    assert abs(audioop.rms(frames[0], 2) - 327.68) < 1
    assert render(bytes(3200), -40.0) == render(b"", -40.0) == ()


def test_the_background_is_under_the_words_and_between_them() -> None:
    bed = BackgroundAudio()
    bed.set_background(render(STEADY, -40.0))
    assert bed.mix(None) is not None
    assert level(bed.mix(None)) == 327
    assert level(bed.mix(WORD)) == 5327
    bed.set_background(())
    assert bed.mix(WORD) == WORD
    assert bed.mix(None) is None


def test_the_thinking_sound_is_never_under_words_and_fades_within_a_frame() -> None:
    bed = BackgroundAudio()
    bed.set_thinking(render(STEADY, -40.0))
    assert bed.mix(None) is None
    bed.play_thinking(True)
    first = bed.mix(None)
    assert first is not None
    assert first[:2] == b"\0\0"
    assert bed.mix(WORD) == WORD
    assert level(bed.mix(None)) == 327
    bed.play_thinking(False)
    last = bed.mix(None)
    assert last is not None
    assert last[-2:] == b"\0\0"
    assert bed.mix(None) is None


def test_mixing_costs_the_media_path_next_to_nothing() -> None:
    bed = BackgroundAudio()
    bed.set_background(render(STEADY, -40.0))
    bed.set_thinking(render(STEADY, -40.0))
    bed.play_thinking(True)
    costs = []
    for _ in range(20):
        began = time.thread_time()
        for _ in range(500):
            bed.mix(WORD)
            bed.mix(None)
        costs.append((time.thread_time() - began) / 1000)
    # 0.6 microseconds; a frame's whole budget is 20 ms.
    assert min(costs) < 20e-6


def sounds(name: str) -> bytes | None:
    return {"hum": STEADY, "ring": struct.pack("<h", 7000) * 800}.get(name)


def test_the_caller_hears_a_sound_from_the_turns_end_until_the_answer_is_ready() -> None:
    async def scenario(call: Conversation) -> None:
        call.sounds = sounds
        taker = await call.begin()
        assert taker.set_thinking_sound("hum", -40.0)
        assert not taker.set_thinking_sound("orchestra", -40.0)
        taker.listen()
        call.ear.finals = ["a table"]
        await call.speaks(1.0)
        await asyncio.sleep(2.0)  # handed over at 1.6 s
        taker.say("Booked.")
        await asyncio.sleep(0.5)
        heard = call.wire.heard_between(1.7, 2.9)
        assert {level(frame) for frame in heard} == {327}
        assert {level(frame) for frame in call.wire.heard_between(1.0, 1.5)} == {0}
        assert 327 not in {level(frame) for frame in call.wire.heard_between(3.08, 3.5)}

    hold(scenario)


def test_a_tag_of_a_delay_response_is_the_sound_of_that_name_as_long_as_it_says() -> None:
    async def scenario(call: Conversation) -> None:
        call.sounds = sounds
        taker = await call.begin()
        taker.function_started(
            1, LatencyControl(0.5, 1.0, (DelayResponse("[Ring]", 2.0), DelayResponse("[Hoot]", 1.0)))
        )
        await asyncio.sleep(3)
        assert [level(frame) for frame in call.wire.heard_between(0.6, 2.4)] == [7000] * 90
        assert [level(frame) for frame in call.wire.heard_between(2.6, 2.9)] == [0] * 15
        assert call.voice.spoken == []
        await asyncio.sleep(2)
        assert call.voice.spoken == ["[Hoot]"]

    hold(scenario)


def test_a_barge_in_over_a_background_counts_only_the_words_that_were_dropped() -> None:
    async def scenario(call: Conversation) -> None:
        call.wire, call.sounds = Wire(buffered=25), sounds
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.set_background("hum", -40.0)
        taker.say(QUESTION)
        taker.listen()
        await asyncio.sleep(1.5)
        await call.speaks(1.0, "no")
        assert call.wire.cleared == [0.5]
        assert call.of(UtteranceStarted)[0].at == near(0.02)
        assert call.of(BargedIn)[0].heard_text == "For how"
        # The background goes on while the caller speaks.
        assert {level(frame) for frame in call.wire.heard_between(2.2, 2.5)} == {327}

    hold(scenario)
