"""Words that the caller writes are a turn, like keys that are complete."""

from __future__ import annotations

import asyncio

from callagent.turns import BargedIn, CallerTurnEnded, FloorState, FloorYielded
from callagent.turns.floor_control import MAX_PENDING_TEXTS
from tests.turns.fakes import QUESTION, Conversation, hold, near, now


def texts(call: Conversation) -> list[str]:
    return [turn.text for turn in call.of(CallerTurnEnded)]


def test_written_words_are_a_turn_at_once() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        await asyncio.sleep(1)
        taker.write("a table for four")
        (turn,) = call.of(CallerTurnEnded)
        assert (turn.text, turn.added, turn.digits, turn.alternatives) == (
            "a table for four",
            "a table for four",
            "",
            (),
        )
        assert taker.state is FloorState.THINKING
        assert call.of(BargedIn) == []

    hold(scenario)


def test_they_interrupt_the_agent() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen()
        await asyncio.sleep(0.6)
        taker.write("four")
        assert texts(call) == ["four"]
        assert len(call.of(BargedIn)) == 1
        await asyncio.sleep(0.1)
        assert call.wire.heard[-1] is None

    hold(scenario)


def test_they_wait_for_what_may_not_be_interrupted_and_come_one_by_one() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION, interruptible=False)
        taker.listen()
        await asyncio.sleep(0.5)
        taker.write("four")
        taker.write("or five")
        await asyncio.sleep(0.2)
        assert texts(call) == []
        await asyncio.sleep(5)
        assert call.of(BargedIn) == []
        assert texts(call) == ["four"]
        assert call.when(CallerTurnEnded) == near(call.when(FloorYielded))
        taker.say("Four.")
        taker.listen()
        await asyncio.sleep(2)
        assert texts(call) == ["four", "or five"]

    hold(scenario)


def test_what_is_said_beside_them_is_not_the_turn() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["let me see", "five"]
        await call.speaks(0.5, "let me")
        await asyncio.sleep(0.3)
        taker.write("four")
        assert texts(call) == ["four"]
        await asyncio.sleep(1)
        taker.listen()
        await asyncio.sleep(1)
        await call.speaks(1.0)
        spoken = now()
        await asyncio.sleep(1)
        assert texts(call) == ["four", "five"]
        assert call.when(CallerTurnEnded, 1) == near(spoken + 0.6)

    hold(scenario)


def test_only_so_many_wait() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION, interruptible=False)
        await asyncio.sleep(0.5)
        for number in range(MAX_PENDING_TEXTS + 5):
            taker.write(str(number))
        for _ in range(MAX_PENDING_TEXTS + 5):
            taker.listen()
            await asyncio.sleep(4)
        assert texts(call)[:MAX_PENDING_TEXTS] == [str(number) for number in range(MAX_PENDING_TEXTS)]
        assert not any(texts(call)[MAX_PENDING_TEXTS:])

    hold(scenario)
