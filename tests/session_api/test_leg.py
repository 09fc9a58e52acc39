"""The leg of a session with audio, with a recorder as its client, on the virtual clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from callagent.audio import FRAME_BYTES
from callagent.call_info import CallInfo, EndReason
from callagent.carriers.media import FrameClock
from callagent.legs.leg import (
    CallerHungUp,
    DigitPressed,
    LegEvent,
    LegFailed,
    LegGone,
    TransferStatus,
    TransferTarget,
    WordsWritten,
)
from callagent.session_api.call import LEAD_SECONDS, MAX_WAITING_SECONDS, MESSAGE_FRAMES, AudioTooEarly, SessionLeg
from callagent.testing.virtual_time import run

INFO = CallInfo("c1", "inbound", "ann", None, "session", datetime(2026, 1, 1, tzinfo=UTC))
LOUD = b"\x40\x1f" * (FRAME_BYTES // 2)
QUIET = bytes(FRAME_BYTES)


class Client:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.sent: list[tuple[float, int]] = []
        """Seconds since the beginning, and frames."""
        self.closed: list[EndReason] = []
        self.events: list[LegEvent] = []
        self.heard: list[tuple[float, bool]] = []
        self.to_say = 0
        self.leg = SessionLeg(INFO, self, FrameClock())

    @property
    def now(self) -> float:
        return self.loop.time() - self.began

    def send_audio(self, pcm: bytes) -> None:
        self.sent.append((self.now, len(pcm) // FRAME_BYTES))

    def close(self, reason: EndReason) -> None:
        self.closed.append(reason)

    async def answer(self) -> None:
        self.leg.listen(self.events.append)
        media = await self.leg.answer()
        media.start(lambda pcm, now: self.heard.append((now - self.began, pcm == LOUD)), self._say)

    def _say(self) -> bytes | None:
        self.to_say -= 1
        return LOUD if self.to_say >= 0 else None


def loud(client: Client) -> list[float]:
    return [at for at, is_loud in client.heard if is_loud]


def test_audio_that_comes_in_pieces_is_heard_at_the_pace_of_speech() -> None:
    async def main() -> None:
        client = Client()
        await client.answer()
        for _ in range(10):
            client.leg.receive_audio(LOUD * 5)
            # A little slower than it should.
            await asyncio.sleep(0.103)
        await asyncio.sleep(0.1)
        times = loud(client)
        assert len(times) == 50
        assert times[-1] - times[0] == pytest.approx(1.0, abs=0.05)
        # No silence is put in between the pieces.
        assert all(is_loud for _, is_loud in client.heard)
        await asyncio.sleep(1)
        assert sum(not is_loud for _, is_loud in client.heard) == pytest.approx(45, abs=3)
        await client.leg.hang_up(EndReason.AGENT_HANGUP)

    run(main())


def test_what_came_all_at_once_is_heard_in_time_and_its_silence_is_left_out() -> None:
    async def main() -> None:
        client = Client()
        await client.answer()
        client.leg.receive_audio(QUIET * 100 + LOUD * 100 + QUIET * 100)
        await asyncio.sleep(5)
        times = loud(client)
        assert len(times) == 100
        assert times[0] < 0.05
        assert times[-1] - times[0] == pytest.approx(1.98, abs=0.03)
        for _ in range(int(MAX_WAITING_SECONDS)):
            client.leg.receive_audio(LOUD * 50)
        with pytest.raises(AudioTooEarly):
            client.leg.receive_audio(LOUD)
        await client.leg.hang_up(EndReason.AGENT_HANGUP)

    run(main())


def test_we_are_only_slightly_ahead_of_the_client() -> None:
    async def main() -> None:
        client = Client()
        await client.answer()
        await asyncio.sleep(1)
        client.to_say = 100
        began = client.now
        await asyncio.sleep(5)
        assert sum(frames for _, frames in client.sent) == 100
        ahead = 0.0
        for at, frames in client.sent:
            ahead += frames * 0.02
            assert 0 < ahead - (at - began) <= LEAD_SECONDS + (MESSAGE_FRAMES + 1) * 0.02
        # Ends as late as speech would, to the lead.
        assert client.sent[-1][0] - began == pytest.approx(2.0 - LEAD_SECONDS, abs=0.15)
        await client.leg.hang_up(EndReason.AGENT_HANGUP)

    run(main())


def test_what_the_client_does_is_told_and_the_end_once() -> None:
    async def main() -> None:
        client = Client()
        client.leg.press_keys("1x#")
        client.leg.write_text("Hello.")
        await client.answer()
        assert client.events == [DigitPressed("1"), DigitPressed("#"), WordsWritten("Hello.")]
        outcome = await client.leg.transfer(TransferTarget("desk", "sip:desk@192.0.2.1"))
        assert outcome.status is TransferStatus.FAILED
        with pytest.raises(ValueError, match="cannot be sent"):
            await client.leg.send_digits("1")
        client.leg.cut()
        client.leg.fail("late")
        await client.leg.hang_up(EndReason.ERROR)
        assert client.closed == [EndReason.CALLER_HANGUP]
        assert client.events[3:] == [CallerHungUp(EndReason.CALLER_HANGUP)]
        client.leg.receive_audio(LOUD)
        with pytest.raises(LegGone):
            await client.leg.answer()

    run(main())


def test_a_leg_that_fails_says_why() -> None:
    async def main() -> None:
        client = Client()
        await client.answer()
        client.leg.fail("the server stops", EndReason.DRAIN)
        assert client.events == [LegFailed(EndReason.DRAIN, "the server stops")]
        assert client.closed == [EndReason.DRAIN]

    run(main())
