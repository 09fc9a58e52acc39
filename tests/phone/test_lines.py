"""The test phone's carrier stream against our own server on loopback."""

from __future__ import annotations

import asyncio
import audioop

import pytest

from callagent.audio import FRAME_BYTES
from callagent.carriers.leg import CarrierLeg
from callagent.legs.leg import CallerHungUp, DigitPressed, LegEvent
from callagent.phone.lines import NotAnswered, StreamMedia, StreamPhone
from tests.carriers.twilio.fake_twilio import AUTH_TOKEN
from tests.web.server import serve, until

TONE = audioop.ulaw2lin(audioop.lin2ulaw(b"\x10\x20" * 160, 2), 2)
SILENCE = bytes(FRAME_BYTES)


class Agent:
    """The other side: plays frames, keeps what it hears."""

    def __init__(self) -> None:
        self.to_say: list[bytes] = []
        self.heard: list[bytes] = []
        self.events: list[LegEvent] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def take(self, leg: CarrierLeg) -> None:
        leg.listen(self.events.append)
        self.leg = leg
        task = asyncio.create_task(self.answer(leg))
        self.tasks.add(task)

    async def answer(self, leg: CarrierLeg) -> None:
        self.media = await leg.answer()
        self.media.start(lambda pcm, now: self.heard.append(pcm), lambda: self.to_say.pop(0) if self.to_say else None)


async def test_a_call_both_ways_with_digits_and_marks() -> None:
    agent = Agent()
    agent.to_say = [TONE] * 10
    heard: list[tuple[bytes, float]] = []
    words: list[bytes] = []
    async with serve() as server:
        server.on_leg = agent.take
        async with StreamPhone.dial(server.url + "/twilio/voice", AUTH_TOKEN, "+15550100", "+15550199") as phone:
            phone.media.start(lambda pcm, now: heard.append((pcm, now)), lambda: words.pop(0) if words else None)
            await until(lambda: sum(pcm == TONE for pcm, _ in heard) == 10)
            await until(lambda: agent.media.unheard() == 0.0)
            words += [TONE] * 5
            await until(lambda: agent.heard.count(TONE) == 5)
            await phone.send_digits("5#")
            await until(lambda: len(agent.events) == 2)
            await phone.hang_up()
            await until(lambda: len(agent.events) == 3)
        assert phone.ended.result() == "we hung up"
    assert agent.events[:2] == [DigitPressed("5"), DigitPressed("#")]
    assert isinstance(agent.events[2], CallerHungUp)
    assert agent.leg.info.caller == "+15550100"
    assert agent.leg.info.callee == "+15550199"


async def test_a_clear_empties_what_waits_to_be_played() -> None:
    agent = Agent()
    agent.to_say = [TONE] * 500
    heard: list[bytes] = []
    async with serve() as server:
        server.on_leg = agent.take
        url = server.url.replace("http", "ws") + "/twilio/media"
        async with StreamPhone.dial(url, AUTH_TOKEN, "+15550100", "+15550199") as phone:
            phone.media.start(lambda pcm, now: heard.append(pcm), lambda: None)
            await until(lambda: heard.count(TONE) >= 10)
            agent.to_say.clear()
            dropped = agent.media.clear()
            assert 0.0 < dropped < 1.0
            assert agent.media.unheard() == 0.0
            await until(lambda: heard[-3:] == [SILENCE] * 3)


async def test_the_server_ends_the_call() -> None:
    async with serve() as server:
        async with StreamPhone.dial(server.url + "/twilio/voice", AUTH_TOKEN, "anonymous", "+15550199") as phone:
            await until(lambda: server.legs)
            server.legs[0].fail("enough")
            async with asyncio.timeout(60):
                assert "closed the stream" in await phone.ended
        assert server.legs[0].info.caller is None


async def test_calls_that_are_not_taken_say_why() -> None:
    async with serve() as server:
        server.admits = False
        with pytest.raises(NotAnswered, match="did not take"):
            async with StreamPhone.dial(server.url + "/twilio/voice", AUTH_TOKEN, "+15550100", "+15550199"):
                pass
        with pytest.raises(NotAnswered, match="signature"):
            async with StreamPhone.dial(server.url + "/twilio/voice", "wrong", "+15550100", "+15550199"):
                pass
        server.drains = True
        with pytest.raises(NotAnswered, match="503"):
            async with StreamPhone.dial(server.url + "/twilio/voice", AUTH_TOKEN, "+15550100", "+15550199"):
                pass
    with pytest.raises(NotAnswered, match="could not be called"):
        async with StreamPhone.dial(server.url + "/twilio/voice", AUTH_TOKEN, "+15550100", "+15550199"):
            pass


async def test_marks_come_up_when_what_was_before_them_is_played() -> None:
    media = StreamMedia()
    heard: list[bytes] = []
    media.start(lambda pcm, now: heard.append(pcm), lambda: None)
    media.mark("at once")
    media.queue(b"\x00" * 200)
    media.mark("later")
    assert media.take_reached_marks() == ["at once"]
    media.play(0.0)
    assert media.take_reached_marks() == []
    media.play(0.02)
    assert media.take_reached_marks() == ["later"]
    media.queue(b"\x00" * 1000)
    media.mark("dropped")
    media.drop()
    assert media.take_reached_marks() == ["dropped"]
    media.play(0.04)
    assert [len(frame) for frame in heard] == [FRAME_BYTES] * 3
    assert heard[2] == SILENCE
    assert (media.clear(), media.unheard()) == (0.0, 0.0)
    assert media.speak() == b"\xff" * 160
    assert media.statistics().packets_sent == 1
