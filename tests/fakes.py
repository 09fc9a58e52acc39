"""A leg, a caller and an agent for calls on the virtual clock: recorders, not mocks."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from callagent.agents import (
    Action,
    Agent,
    AgentRecord,
    CallerTurn,
    Emit,
    HandoffFailed,
    Listen,
    MetricWriter,
    ProjectGraph,
    Say,
)
from callagent.audio import FRAME_SAMPLES, FRAME_SECONDS
from callagent.call_info import NO_HEADERS, CallInfo, EndReason, MediaStatistics
from callagent.legs.leg import (
    CallerHungUp,
    DigitPressed,
    FrameSink,
    FrameSource,
    LegEvent,
    LegFailed,
    LegGone,
    PartiesJoined,
    SwitchedMedia,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
)

LOUD = struct.pack("<h", 8000) * FRAME_SAMPLES
QUIET = bytes(2 * FRAME_SAMPLES)


class LoudnessActivity:
    """Voice activity that is certain: loud frames are speech."""

    def feed(self, frame: bytes) -> float:
        return 1.0 if frame[:2] != b"\0\0" else 0.0

    def reset(self) -> None:
        return None


class FakeMedia:
    """Pulls a frame every 20 ms and delivers the caller's, which is loud in the given spans."""

    def __init__(self) -> None:
        self.speech: list[tuple[float, float]] = []
        self.sent: list[tuple[float, bool]] = []
        """When each frame was pulled, and whether it held anything."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.answered = 0.0

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        self.answered = self._loop.time()
        self._tick(sink, source, 1)

    def clear(self) -> float:
        return 0.0

    def unheard(self) -> float:
        return 0.0

    def statistics(self) -> MediaStatistics:
        return MediaStatistics(codec="PCMU", packets_sent=len(self.sent))

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def talking(self) -> list[tuple[float, float]]:
        """Spans, in seconds since the answer, in which frames with sound were pulled."""
        spans: list[tuple[float, float]] = []
        for at, loud in self.sent:
            since = at - self.answered
            if not loud:
                continue
            if spans and since - spans[-1][1] < 0.05:
                spans[-1] = (spans[-1][0], since)
            else:
                spans.append((since, since))
        return spans

    def _tick(self, sink: FrameSink, source: FrameSource, number: int) -> None:
        now = self._loop.time()
        frame = source()
        self.sent.append((now, frame is not None and frame.strip(b"\0") != b""))
        since = now - self.answered
        sink(LOUD if any(start <= since < end for start, end in self.speech) else QUIET, now)
        due = self.answered + number * FRAME_SECONDS
        self._timer = self._loop.call_at(due, self._tick, sink, source, number + 1)


class FakeLeg:
    """Records what the call asks of it; the test plays the peer."""

    def __init__(self, *, answers: bool = True) -> None:
        self.info = CallInfo("c1", "inbound", "+15550100", "+15550199", "sip", datetime.now(UTC))
        self.media = FakeMedia()
        self.did: list[str] = []
        self.expected_media: list[bool] = []
        """What it was told, without repetitions."""
        self.transfer_outcome = TransferOutcome(TransferStatus.SUCCEEDED, "200 OK")
        self.transfer_seconds = 0.5
        self.joined_after: float | None = None
        """Seconds until the target of a transfer by INVITE answers; the two speak for `transfer_seconds` then."""
        self._answers = answers
        self._on_event: Callable[[LegEvent], None] = lambda event: None

    def listen(self, on_event: Callable[[LegEvent], None]) -> None:
        self._on_event = on_event

    def ring(self) -> None:
        self.did.append("ring")

    async def answer(self) -> FakeMedia:
        if not self._answers:
            raise LegGone("the caller gave up")
        self.did.append("answer")
        return self.media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.did.append(f"hang up {reason.value}")
        self.media.close()

    async def transfer(self, target: TransferTarget, audio: SwitchedMedia | None = None) -> TransferOutcome:
        self.did.append(f"transfer {target.method} {target.uri}")
        if self.joined_after is not None:
            await asyncio.sleep(self.joined_after)
            self._on_event(PartiesJoined())
        await asyncio.sleep(self.transfer_seconds)
        return self.transfer_outcome

    async def send_digits(self, digits: str) -> None:
        self.did.append(f"digits {digits}")

    def expect_media(self, expected: bool) -> None:
        if self.expected_media[-1:] != [expected]:
            self.expected_media.append(expected)

    def hangs_up(self, reason: EndReason = EndReason.CALLER_HANGUP, *said: Any) -> None:
        self._on_event(CallerHungUp(reason, *said))

    def fails(self, reason: EndReason, detail: str) -> None:
        self._on_event(LegFailed(reason, detail))

    def presses(self, digit: str) -> None:
        self._on_event(DigitPressed(digit))


Reply = Callable[[CallerTurn | HandoffFailed], AsyncIterator[Action]]


@dataclass
class FakeAgent:
    """Replies as the test says; keeps what it was told."""

    replies: list[Reply] = field(default_factory=list)
    greeting: Sequence[Action] = (Say("Hello."), Listen())
    start_seconds: float = 0.0
    end_results: list[bool] = field(default_factory=lambda: [True])
    turns: list[CallerTurn | HandoffFailed] = field(default_factory=list)
    heard_texts: list[tuple[str, bool]] = field(default_factory=list)
    fillers: list[str] = field(default_factory=list)
    ended: list[tuple[EndReason, int]] = field(default_factory=list)
    end_headers: dict[str, str] = field(default_factory=dict)
    closed: int = 0
    cut: int = 0
    write_metric: MetricWriter | None = None

    async def start(self, emit: Emit) -> None:
        await asyncio.sleep(self.start_seconds)
        for action in self.greeting:
            emit(action)

    async def reply(self, turn: CallerTurn | HandoffFailed, emit: Emit) -> None:
        self.turns.append(turn)
        try:
            async for action in self.replies.pop(0)(turn):
                emit(action)
        except asyncio.CancelledError:
            self.cut += 1
            raise

    def heard(self, text: str, *, cut: bool) -> None:
        self.heard_texts.append((text, cut))

    def filler_spoken(self, text: str) -> None:
        self.fillers.append(text)

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        self.ended.append((reason, attempt))
        self.end_headers = dict(headers)
        return self.end_results.pop(0)

    async def close(self) -> None:
        self.closed += 1

    def record(self) -> AgentRecord:
        return AgentRecord(project="fake", state={"x": 1})


@dataclass
class FakeProject:
    agent: FakeAgent
    name: str = "fake"
    failure: Exception | None = None
    """Why there is no agent."""

    async def prepare(self) -> None:
        return None

    def graph(self) -> ProjectGraph:
        return ProjectGraph()

    def real_time_folder(self, environment: str) -> None:
        return None

    def phrases(self) -> Sequence[str]:
        return ()

    def pronounce(self, text: str, language: str | None) -> str:
        return text

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> Agent:
        if self.failure is not None:
            raise self.failure
        self.agent.write_metric = write_metric
        return self.agent

    async def close(self) -> None:
        return None


def says(*actions: Action, after: float = 0.0) -> Reply:
    """A reply of these actions, the first after some seconds."""

    async def reply(turn: CallerTurn | HandoffFailed) -> AsyncIterator[Action]:
        await asyncio.sleep(after)
        for action in actions:
            yield action

    return reply
