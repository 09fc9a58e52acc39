"""`callagent bench conversation`: how soon a filler starts, the agent stops and the agent answers, on the wire.

A server process with scripted model, recogniser and voice, and the real voice activity, is called over SIP and RTP, or
on a media stream as Twilio would. The caller's utterances are recordings whose first and last sound are known. Both
processes share the machine's monotonic clock. A packet carries what was said in the 20 ms before it was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from time import monotonic

from callagent.bench.bench_server import AGENT, BenchServer, bench_server
from callagent.bench.figures import percentiles
from callagent.bench.labels import longest_pause, spoken_span
from callagent.call_info import FRAME_BYTES, FRAME_SECONDS
from callagent.errors import UserError
from callagent.phone.line import Line
from callagent.phone.mouth import wav_file
from callagent.phone.sip import dial_sip
from callagent.phone.stream import StreamPhone
from callagent.records import read_records

CALLS_AT_ONCE = 5
LONG_ANSWER = " ".join(["This answer goes on and on so that there is time enough to interrupt it."] * 4)
ENDPOINTING = 0.5
LONGEST_PAUSE = 0.3
"""Seconds within an utterance of the caller."""
RECOGNISER_SECONDS = 0.1
MODEL_SECONDS = 0.15
"""What the scripted engines take for the answer that is measured."""
CONFIGURED = ENDPOINTING + RECOGNISER_SECONDS + MODEL_SECONDS
GOALS: Mapping[str, tuple[float | None, float | None]] = {
    "filler_start_ms": (None, 150),
    "barge_in_ms": (200, 300),
    "answer_overhead_ms": (40, 100),
    "control_late_ms": (None, None),
}
"""Median and 99th percentile; None: no goal. The control is the machine's share."""
ACCOUNT, TOKEN = "AC" + "0" * 32, "bench"
CONTROL_SECONDS = 0.02
_LOUD = 300


@dataclass(slots=True)
class Trials:
    """What one call measured; seconds."""

    filler_heard: list[float] = field(default_factory=list)
    """Of the monotonic clock."""
    barge_in: list[float] = field(default_factory=list)
    """From the caller's first sound to the last packet with speech received."""
    overhead: list[float] = field(default_factory=list)
    """From the caller's last sound to the first packet of the answer, without what is configured."""


@dataclass(frozen=True, slots=True)
class Utterance:
    frames: tuple[bytes, ...]
    begins: float
    """Seconds from the start of the first frame to the first sound."""
    ends: float


class Wire:
    """The caller's side: sends utterances, notes when they were heard and when the agent's packets hold sound."""

    def __init__(self, callers: Sequence[Utterance]) -> None:
        """Each `speak` says the next of `callers`."""
        self._callers = cycle(callers)
        self._said = Utterance((), 0.0, 0.0)
        self._position = 0
        self._first_sent = 0.0
        self.sound_at = 0.0
        """When the last packet with sound arrived."""
        self.began_at = 0.0
        """When the agent's present sound began."""

    def speak(self) -> None:
        self._first_sent = 0.0
        self._said, self._position = next(self._callers), 0

    @property
    def speaking(self) -> bool:
        return self._position < len(self._said.frames)

    @property
    def onset(self) -> float:
        """When the caller's first sound was made; infinite while it is not sent."""
        return self._first_sent + self._said.begins - FRAME_SECONDS if self._first_sent else float("inf")

    @property
    def end(self) -> float:
        return self._first_sent + self._said.ends - FRAME_SECONDS if self._first_sent else float("inf")

    def next_frame(self) -> bytes | None:
        """The media source, on the pump's thread."""
        position = self._position
        if position >= len(self._said.frames):
            return None
        if not position:
            self._first_sent = monotonic()
        self._position = position + 1
        return self._said.frames[position]

    def on_frame(self, pcm: bytes, now: float) -> None:
        if not _loud(pcm):
            return
        if now - self.sound_at > 0.3:
            self.began_at = now
        self.sound_at = now


def _loud(frame: bytes) -> bool:
    samples = struct.unpack(f"<{len(frame) // 2}h", frame)
    return bool(max(samples) > _LOUD)


async def _oversleep(late: list[float]) -> None:
    """The control: how late the machine wakes a task that does nothing, in the process that measures. Milliseconds."""
    while True:
        due = monotonic() + CONTROL_SECONDS
        await asyncio.sleep(CONTROL_SECONDS)
        late.append(1000 * (monotonic() - due))


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the wire is sampled every 5 ms
            await asyncio.sleep(0.005)


async def _trial(wire: Wire, trials: Trials) -> None:
    """Ask; the filler of a slow function is heard; its long answer is interrupted, and that is answered."""
    wire.speak()
    await _until(lambda: not wire.speaking and wire.began_at > wire.onset, 30)
    filler = wire.began_at
    trials.filler_heard.append(filler)
    await _until(lambda: wire.began_at > filler and monotonic() - wire.began_at > 1.0, 10)
    wire.speak()
    await _until(lambda: monotonic() - wire.onset > 1.0, 30)
    trials.barge_in.append(wire.sound_at - wire.onset)
    await _until(lambda: not wire.speaking and wire.began_at > wire.end, 30)
    trials.overhead.append(wire.began_at - wire.end - CONFIGURED)
    await _until(lambda: monotonic() - wire.sound_at > 0.6, 10)


@asynccontextmanager
async def _dialled(server: BenchServer, wire: str, caller: str) -> AsyncIterator[Line]:
    if wire == "twilio":
        fields = {"AccountSid": ACCOUNT}
        async with StreamPhone.dial(server.http + "/twilio/voice", TOKEN, caller, "agent", fields) as phone:
            yield phone
    else:
        async with dial_sip(server.uri, caller) as line:
            yield line


async def _call(server: BenchServer, wire: str, caller: str, speech: Sequence[Utterance], trials: int) -> Trials:
    measured = Trials()
    async with _dialled(server, wire, caller) as line:
        side = Wire(speech)
        line.media.start(side.on_frame, side.next_frame)
        await _until(lambda: side.sound_at > 0 and monotonic() - side.sound_at > 0.8, 20)
        for _ in range(trials):
            await _trial(side, measured)
    return measured


def _scripts(folder: Path, trials: int) -> dict[str, str]:
    """The server's settings: what it hears, thinks and says in each trial, in YAML that JSON is a part of."""
    stop = {"text": "stop that please", "partials": ["stop", "stop that"], "delay": RECOGNISER_SECONDS}
    answer = {"text": "Very well.", "delay": MODEL_SECONDS}
    # A recording with a pause in it is several utterances to the recogniser.
    heard = [stop] * trials * 8
    thought = [{"calls": [{"name": "slow_look_up", "arguments": {}}]}, {"text": LONG_ANSWER}, answer]
    (folder / "recognizer.yaml").write_text(json.dumps(heard))
    (folder / "model.yaml").write_text(json.dumps(thought * trials))
    (folder / "voice.yaml").write_text(json.dumps({"seconds_per_character": 0.05}))
    return {
        "SPEECH__RECOGNIZER": f"script:{folder / 'recognizer.yaml'}",
        "SPEECH__VOICE": f"script:{folder / 'voice.yaml'}",
        "SPEECH__ENDPOINTING": str(ENDPOINTING),
        "MODEL__NAME": f"script:{folder / 'model.yaml'}",
        "TWILIO__ACCOUNT_SID": ACCOUNT,
        "TWILIO__AUTH_TOKEN": TOKEN,
    }


async def _measure(trials: int, wire: str, speech: Sequence[Utterance]) -> dict[str, list[float]]:
    """Milliseconds, by the name of the figure."""
    per_call = -(-trials // CALLS_AT_ONCE)
    callers = [f"bench{number}" for number in range(CALLS_AT_ONCE)]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = await stack.enter_async_context(
            bench_server(folder, _scripts(folder, per_call), http=wire == "twilio")
        )
        late: list[float] = []
        control = asyncio.create_task(_oversleep(late))
        measured = await asyncio.gather(
            # Each call begins with another utterance.
            *(
                _call(server, wire, caller, [*islice(cycle(speech), 7 * number, 7 * number + len(speech))], per_call)
                for number, caller in enumerate(callers)
            )
        )
        control.cancel()
        await asyncio.sleep(1.0)
        started = _function_starts(folder / "calls.db")
    fillers = [
        1000 * (heard - start)
        for caller, one in zip(callers, measured, strict=True)
        for start, heard in zip(started[caller], one.filler_heard, strict=True)
    ]
    barge_in = [1000 * seconds for one in measured for seconds in one.barge_in]
    overhead = [1000 * seconds for one in measured for seconds in one.overhead]
    named = {"filler_start_ms": fillers, "barge_in_ms": barge_in, "answer_overhead_ms": overhead}
    return {**{name: values[:trials] for name, values in named.items()}, "control_late_ms": late}


def _function_starts(store: Path) -> dict[str, list[float]]:
    """By caller."""
    return {
        record["from_number"]: [metric["value"] for metric in record["metrics"] if metric["name"] == "STARTED"]
        for record in read_records(store)
    }


def _utterances(folder: Path) -> list[Utterance]:
    """The folder's recordings that are one turn each. Raises `UserError` where there is none."""
    recordings = (wav_file(path) for path in sorted(folder.rglob("*.wav")))
    # After a longer pause the agent answers, as it should, and the script of the call is out of step.
    found = [_utterance(pcm) for pcm in recordings if longest_pause(pcm) < LONGEST_PAUSE]
    if not found:
        raise UserError(f"{folder} holds no WAV files of speech without pauses")
    return found


def _utterance(pcm: bytes) -> Utterance:
    begins, ends = spoken_span(pcm)
    frames = tuple(pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm) - FRAME_BYTES + 1, FRAME_BYTES))
    return Utterance(frames, begins, ends)


def bench_conversation(options: argparse.Namespace) -> int:
    """Run and print; exit status 1 when a goal is missed."""
    speech = _utterances(options.callers or AGENT / "callers")
    measured = asyncio.run(_measure(options.trials, options.wire, speech))
    figures = {name: percentiles(values) for name, values in measured.items()}
    if options.json:
        print(
            json.dumps(
                {
                    name: {**figure, "goal_p50": GOALS[name][0], "goal_p99": GOALS[name][1]}
                    for name, figure in figures.items()
                }
            )
        )
    else:
        for name, figure in figures.items():
            print(
                f"{name:<20} p50 {figure['p50']:6.1f}  p99 {figure['p99']:6.1f}  max {figure['max']:6.1f}  "
                f"(goals {GOALS[name][0] or '-'} and {GOALS[name][1] or '-'}, {figure['count']} samples)"
            )
    return 0 if all(_met(figure, GOALS[name]) for name, figure in figures.items()) else 1


def _met(figure: Mapping[str, float], goals: tuple[float | None, float | None]) -> bool:
    median, tail = goals
    low = median is None or figure["p50"] <= median
    return bool(figure["count"] and low and (tail is None or figure["p99"] <= tail))
