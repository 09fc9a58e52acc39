"""The leg of the page at /phone, with a recorder as its socket, on the virtual clock."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from callagent.audio import FRAME_BYTES
from callagent.call_info import CallInfo, EndReason
from callagent.carriers.browser.leg import SILENT_SECONDS, BrowserLeg
from callagent.carriers.media import FrameClock
from callagent.carriers.protocol import DialectError
from callagent.legs import LegGone, TransferStatus, TransferTarget
from callagent.legs.bridge import DROP_SECONDS, TargetLeg
from callagent.legs.leg import (
    CallerHungUp,
    DigitPressed,
    FrameSink,
    FrameSource,
    LegEvent,
    LegFailed,
    Media,
    PartiesJoined,
    SwitchedMedia,
)
from callagent.testing.virtual_time import run

INFO = CallInfo("c1", "inbound", "ann", None, "browser", datetime(2026, 1, 1, tzinfo=UTC))


class Page:
    """What the socket was given to send."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closed: int | None = None

    def send(self, text: str) -> None:
        assert self.closed is None
        self.sent.append(json.loads(text))

    def close(self, code: int, last_words: str = "") -> None:
        if self.closed is None:
            self.sent.append(json.loads(last_words))
            self.closed = code

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.sent if one["event"] == event]


def opened() -> tuple[BrowserLeg, Page, list[LegEvent]]:
    page, events = Page(), list[LegEvent]()
    leg = BrowserLeg(INFO, page, FrameClock())
    leg.listen(events.append)
    return leg, page, events


def said(payload: bytes) -> str:
    return json.dumps({"event": "media", "payload": base64.b64encode(payload).decode()})


def test_it_rings_answers_and_passes_frames_both_ways() -> None:
    async def call() -> None:
        leg, page, events = opened()
        leg.ring()
        media = await leg.answer()
        frames: list[bytes] = []
        speech = iter([b"\x00\x10" * 160] * 3)
        media.start(lambda pcm, now: frames.append(pcm), lambda: next(speech, None))
        leg.receive_message(said(b"\xff" * 100))
        leg.receive_message(said(b"\xff" * 100))
        assert [len(frame) for frame in frames] == [FRAME_BYTES]
        await asyncio.sleep(0.025)
        assert [one["event"] for one in page.sent] == ["ringing", "answered", "media", "media", "media", "mark"]
        assert media.unheard() > 0
        leg.receive_message(json.dumps({"event": "mark", "name": page.of("mark")[0]["name"]}))
        assert media.unheard() == 0
        leg.receive_message('{"event":"digit","digit":"5"}')
        leg.receive_message('{"event":"ping","at":7}')
        assert page.of("pong") == [{"event": "pong", "at": 7.0}]
        await leg.hang_up(EndReason.AGENT_HANGUP)
        assert page.of("ended") == [{"event": "ended", "reason": "agent_hangup"}]
        assert page.closed == 1000
        assert events == [DigitPressed("5")]

    run(call())


def test_a_barge_in_drops_what_the_page_has_not_played() -> None:
    async def call() -> None:
        leg, page, _ = opened()
        media = await leg.answer()
        media.start(lambda pcm, now: None, lambda: bytes(FRAME_BYTES))
        await asyncio.sleep(0.05)
        assert media.clear() > 0
        assert len(page.of("clear")) == 1
        await leg.hang_up(EndReason.AGENT_HANGUP)

    run(call())


@pytest.mark.parametrize("end", ["stop", "cut"])
def test_the_caller_hangs_up(end: str) -> None:
    async def call() -> None:
        leg, page, events = opened()
        await leg.answer()
        leg.receive_message('{"event":"stop"}') if end == "stop" else leg.cut()
        leg.cut()
        assert events == [CallerHungUp(EndReason.CALLER_HANGUP)]
        with pytest.raises(LegGone):
            await leg.answer()
        with pytest.raises(LegGone):
            await leg.send_digits("1")
        assert (await leg.transfer(TransferTarget("a", "sip:a@b"))).status is TransferStatus.CALLER_GONE
        await leg.hang_up(EndReason.AGENT_HANGUP)
        assert len(page.of("ended")) == 1

    run(call())


def test_a_page_that_falls_silent_has_gone() -> None:
    async def call() -> None:
        leg, page, events = opened()
        await leg.answer()
        await asyncio.sleep(SILENT_SECONDS - 1)
        leg.note_life()
        await asyncio.sleep(SILENT_SECONDS - 1)
        assert events == []
        await asyncio.sleep(2)
        assert isinstance(events[0], LegFailed)
        assert events[0].reason is EndReason.MEDIA_TIMEOUT
        assert page.closed == 1000

    run(call())


class Desk:
    """The target of a transfer, who answers at once."""

    def __init__(self) -> None:
        self.on_early_media: Callable[[Media], None] | None = None
        self.heard: list[bytes] = []
        self.digits = ""
        self.left: EndReason | None = None

    def listen(self, on_event: Callable[[LegEvent], None]) -> None:
        self.emit = on_event

    async def answer(self) -> Media:
        return self  # type: ignore[return-value]

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        self.say, self.hear = sink, source

    async def send_digits(self, digits: str) -> None:
        self.digits += digits

    def leave(self, reason: EndReason) -> None:
        self.left = reason


def test_a_page_is_bridged_to_the_target_and_the_agent_has_it_back_afterwards() -> None:
    async def call() -> None:
        page, events, desk, asked = Page(), list[LegEvent](), Desk(), list[TransferTarget]()

        async def dial(target: TransferTarget) -> TargetLeg:
            asked.append(target)
            return desk

        leg = BrowserLeg(INFO, page, FrameClock(), dial)
        leg.listen(events.append)
        audio, agent_heard = SwitchedMedia(await leg.answer()), list[bytes]()
        audio.start(lambda pcm, now: agent_heard.append(pcm), lambda: None)
        transfer = asyncio.create_task(leg.transfer(TransferTarget("support", "sip:support@pbx.example"), audio))
        await asyncio.sleep(0.1)
        assert events == [PartiesJoined()]
        assert (await leg.transfer(asked[0], audio)).detail == "a transfer is under way"
        leg.receive_message(said(b"\x00" * 160))
        leg.receive_message(said(b"\x00" * 160))
        leg.receive_message('{"event":"digit","digit":"7"}')
        desk.say(b"\x00\x10" * 160, 0.0)
        desk.say(b"\x00\x10" * 160, 0.0)
        await asyncio.sleep(DROP_SECONDS + 0.1)
        assert desk.hear() is not None
        assert (agent_heard, desk.digits, len(page.of("media"))) == ([], "7", 2)
        desk.emit(CallerHungUp(EndReason.CALLER_HANGUP))
        assert (await transfer).status is TransferStatus.SUCCEEDED
        assert desk.left is EndReason.HANDOFF
        leg.receive_message(said(b"\x00" * 160))
        leg.receive_message('{"event":"digit","digit":"8"}')
        assert len(agent_heard) == 1
        assert events[1:] == [DigitPressed("8")]
        assert (await leg.transfer(TransferTarget("x", "", "bye"), audio)).status is TransferStatus.FAILED
        await leg.hang_up(EndReason.HANDOFF)

    run(call())


def test_a_page_whose_server_calls_nobody_says_so() -> None:
    async def call() -> None:
        leg, _, _ = opened()
        await leg.answer()
        outcome = await leg.transfer(TransferTarget("support", "sip:support@pbx.example"))
        assert outcome.status is TransferStatus.FAILED
        with pytest.raises(DialectError):
            leg.receive_message("{}")
        await leg.hang_up(EndReason.ERROR)

    run(call())
