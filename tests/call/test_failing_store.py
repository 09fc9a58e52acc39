"""Calls whose store fails: at every await, with every fault, before the answer, in mid-call and at the hang-up."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from callagent.agents import Action, AgentRecord, CallerTurn, Emit, HangUp, Listen, Say
from callagent.call_info import NO_HEADERS, EndReason
from callagent.records import CallRecord
from tests.call.test_call import MemoryStore, Scene
from tests.fakes import FakeAgent, says

AWAITS = ("opened", "metric", "end_attempted", "ended", "progressed")
FAULTS = ("ENOSPC", "EROFS", "EIO", "locked", "slow")
BEGINNINGS = {"before the answer": 0.0, "in mid-call": 3.0, "at the hang-up": 6.0}
"""Seconds after the call's beginning from which the store fails."""
LOCKED_SECONDS = 14.0
SLOW_SECONDS = 5.0


@dataclass
class FailingStore(MemoryStore):
    """Fails in one of its methods from a moment on."""

    method: str = ""
    fault: str = ""
    begins: float = 0.0

    async def opened(self, record: CallRecord) -> None:
        await self._fail("opened")
        await super().opened(record)

    async def metric(self, call_id: str, sequence: int, name: str, value: Any) -> None:
        await self._fail("metric")
        await super().metric(call_id, sequence, name, value)

    def progressed(self, record: CallRecord) -> None:
        if self.method == "progressed" and asyncio.get_running_loop().time() >= self.begins:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().progressed(record)

    async def end_attempted(self, call_id: str, attempt: int) -> None:
        await self._fail("end_attempted")
        await super().end_attempted(call_id, attempt)

    async def ended(self, record: CallRecord) -> None:
        await self._fail("ended")
        await super().ended(record)

    async def _fail(self, method: str) -> None:
        if method != self.method or asyncio.get_running_loop().time() < self.begins:
            return
        if self.fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        elif self.fault == "locked":
            await asyncio.sleep(LOCKED_SECONDS)
            raise sqlite3.OperationalError("database is locked")
        else:
            number = getattr(errno, self.fault)
            raise OSError(number, os.strerror(number))


class CountingAgent(FakeAgent):
    """Writes a metric in its start function, in a reply and in its end function, as functions of projects do."""

    async def start(self, emit: Emit) -> None:
        assert self.write_metric is not None
        await self.write_metric("STARTED", 1)
        await super().start(emit)

    async def reply(self, turn: Any, emit: Emit) -> None:
        assert self.write_metric is not None
        await self.write_metric("REPLIED", 1)
        await super().reply(turn, emit)

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        assert self.write_metric is not None
        await self.write_metric("ENDED", 1)
        return await super().end(reason, attempt, headers)


@pytest.mark.parametrize("moment", BEGINNINGS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", AWAITS)
def test_a_call_goes_on_to_its_end_though_its_store_fails(method: str, fault: str, moment: str) -> None:
    scene = Scene(CountingAgent([says(Say("Go on."), Listen()), says(Say("Goodbye."), HangUp())]), ["one", "two"])
    scene.store = FailingStore(method=method, fault=fault, begins=BEGINNINGS[moment])
    scene.caller_speaks(2.0)
    scene.caller_speaks(5.0)
    record = scene.play()
    assert scene.leg.did == ["ring", "answer", "hang up agent_hangup"]
    assert (record.end_reason, record.end_function) == ("agent_hangup", "done")
    assert [turn.text for turn in scene.agent.turns if isinstance(turn, CallerTurn)] == ["one", "two"]
    assert scene.agent.ended == [(EndReason.AGENT_HANGUP, 1)]
    assert scene.agent.closed == 1


class Unforeseen(Exception):
    """Nothing of ours."""


async def _raises(turn: Any) -> AsyncIterator[Action]:
    raise Unforeseen("out of order")
    yield Say("never")


async def _cancels(turn: Any) -> AsyncIterator[Action]:
    raise asyncio.CancelledError
    yield Say("never")


async def _raises_when_closed(turn: Any) -> AsyncIterator[Action]:
    try:
        raise Unforeseen("out of order")
        yield Say("never")
    finally:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("reply", [_raises, _cancels, _raises_when_closed])
@pytest.mark.parametrize("fallback", ["", "desk"])
def test_an_unforeseen_error_of_a_reply_is_a_failure_of_the_agent(reply: Any, fallback: str) -> None:
    scene = Scene(FakeAgent([reply]), ["hello"])
    scene.caller_speaks(2.0)
    record = scene.play(fallback=fallback)
    assert [error["what"] for error in record.errors] == ["agent"]
    if fallback:
        assert (record.end_reason, record.handoff_destination) == ("handoff", "desk")
    else:
        assert record.end_reason == "error"
        assert scene.voice.spoken[-1].startswith("I am sorry")
    assert len(scene.agent.ended) == 1


def test_a_start_function_that_meets_an_unforeseen_error_ends_politely() -> None:
    class Broken(FakeAgent):
        async def start(self, emit: Emit) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    scene = Scene(Broken())
    record = scene.play()
    assert scene.leg.did == ["ring", "answer", "hang up error"]
    assert record.errors[0]["what"] == "agent"
    assert scene.voice.spoken[-1].startswith("I am sorry")


@pytest.mark.parametrize("broken", ["record", "end", "close", "hang_up", "statistics"])
def test_every_step_of_closing_is_done_whatever_the_others_meet(broken: str) -> None:
    class Breaking(FakeAgent):
        def record(self) -> AgentRecord:
            # Also asked when the call is answered.
            if broken == "record" and self.ended:
                raise Unforeseen(broken)
            return super().record()

        async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
            await super().end(reason, attempt, headers)
            if broken == "end":
                raise Unforeseen(broken)
            return True

        async def close(self) -> None:
            await super().close()
            if broken == "close":
                raise Unforeseen(broken)

    async def fails(*_: Any) -> None:
        raise Unforeseen(broken)

    def raises() -> Any:
        raise Unforeseen(broken)

    scene = Scene(Breaking([says(Say("Goodbye."), HangUp())], end_results=[True, True]), ["hello"])
    scene.caller_speaks(2.0)
    if broken == "hang_up":
        scene.at(1.0, lambda leg: setattr(leg, "hang_up", fails))
    if broken == "statistics":
        scene.at(1.0, lambda leg: setattr(leg.media, "statistics", raises))
    record = scene.play()
    scene.leg.media.close()
    assert scene.store.records == [record]
    assert scene.agent.closed == 1
    assert len(scene.agent.ended) == (2 if broken == "end" else 1)
    assert record.end_reason == "agent_hangup"
