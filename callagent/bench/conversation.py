"""`callagent bench conversation`: how soon a filler starts and how soon the agent stops, measured on the wire.

A server process with scripted model, recogniser and voice, and the real voice activity, is called over SIP and RTP. The
caller's audio has known onsets. Both processes share the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from time import monotonic

from callagent.bench.bench_server import AGENT, bench_server
from callagent.bench.figures import percentiles
from callagent.call_info import FRAME_BYTES
from callagent.phone.mouth import wav_file
from callagent.phone.sip import SipLine, dial_sip
from callagent.records import read_records

CALLS_AT_ONCE = 5
LINES_OF_A_TRIAL = 3
LONG_ANSWER = " ".join(["This answer goes on and on so that there is time enough to interrupt it."] * 4)
FILLER_GOAL_MS = 150
BARGE_IN_GOAL_MS = 300
_LOUD = 300


@dataclass(slots=True)
class Trials:
    """What one call measured; seconds of the monotonic clock."""

    filler_heard: list[float] = field(default_factory=list)
    barge_in: list[float] = field(default_factory=list)
    """From the first loud sample sent to the last packet with speech received."""


class Wire:
    """The caller's side: sends speech with a known onset, notes when the agent's packets hold sound."""

    def __init__(self, callers: Sequence[bytes]) -> None:
        """Each `speak` says the next of `callers`, PCM at 8 kHz."""
        self._callers = cycle([_frames(speech) for speech in callers])
        self._frames: list[bytes] = []
        self._onset = 0
        self._position = 0
        self.onset_at = 0.0
        self.sound_at = 0.0
        """When the last packet with sound arrived."""
        self.silent_since = monotonic()
        self.began_at = 0.0
        """When the agent's present sound began."""

    def speak(self) -> None:
        frames = next(self._callers)
        self._position = len(self._frames)
        self._onset = next(n for n, frame in enumerate(frames) if _loud(frame))
        self._frames, self._position = frames, 0

    @property
    def speaking(self) -> bool:
        return self._position < len(self._frames)

    def next_frame(self) -> bytes | None:
        """The media source, on the pump's thread."""
        position = self._position
        if position >= len(self._frames):
            return None
        if position == self._onset:
            self.onset_at = monotonic()
        self._position = position + 1
        return self._frames[position]

    def on_frame(self, pcm: bytes, now: float) -> None:
        if not _loud(pcm):
            return
        if now - self.sound_at > 0.3:
            self.began_at = now
        self.sound_at = now


def _frames(speech: bytes) -> list[bytes]:
    return [speech[at : at + FRAME_BYTES] for at in range(0, len(speech) - FRAME_BYTES + 1, FRAME_BYTES)]


def _loud(frame: bytes) -> bool:
    samples = struct.unpack(f"<{len(frame) // 2}h", frame)
    return bool(max(samples) > _LOUD)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the wire is sampled every 5 ms
            await asyncio.sleep(0.005)


async def _trial(wire: Wire, trials: Trials) -> None:
    """Ask; the filler of a slow function is heard; its long answer is interrupted."""
    asked = monotonic()
    wire.speak()
    await _until(lambda: not wire.speaking and wire.began_at > wire.onset_at > asked, 10)
    trials.filler_heard.append(wire.began_at)
    filler = wire.began_at
    await _until(lambda: wire.began_at > filler and monotonic() - wire.began_at > 1.0, 10)
    wire.speak()
    await _until(lambda: wire.onset_at > filler and monotonic() - wire.onset_at > 1.0, 10)
    trials.barge_in.append(wire.sound_at - wire.onset_at)
    await _until(lambda: wire.began_at > wire.onset_at and monotonic() - wire.sound_at > 0.6, 10)


async def _call(uri: str, caller: str, speech: Sequence[bytes], trials: int) -> Trials:
    measured = Trials()
    async with dial_sip(uri, caller) as line:
        wire = Wire(speech)
        assert isinstance(line, SipLine)
        line.media.start(wire.on_frame, wire.next_frame)
        await _until(lambda: wire.sound_at > 0 and monotonic() - wire.sound_at > 0.8, 20)
        for _ in range(trials):
            await _trial(wire, measured)
    return measured


def _scripts(folder: Path, trials: int) -> dict[str, str]:
    """The server's settings: what it hears, thinks and says in each trial, in YAML that JSON is a part of."""
    heard = [{"text": "look it up"}, {"text": "stop that please", "partials": ["stop", "stop that"]}] * trials
    thought = [{"calls": [{"name": "slow_look_up", "arguments": {}}]}, {"text": LONG_ANSWER}, {"text": "Very well."}]
    (folder / "recognizer.yaml").write_text(json.dumps(heard))
    (folder / "model.yaml").write_text(json.dumps(thought * trials))
    (folder / "voice.yaml").write_text(json.dumps({"seconds_per_character": 0.05}))
    return {
        "SPEECH__RECOGNIZER": f"script:{folder / 'recognizer.yaml'}",
        "SPEECH__VOICE": f"script:{folder / 'voice.yaml'}",
        "MODEL__NAME": f"script:{folder / 'model.yaml'}",
    }


async def _measure(trials: int) -> tuple[list[float], list[float]]:
    """Milliseconds: filler start after the function's start, barge-in reaction."""
    per_call = -(-trials // CALLS_AT_ONCE)
    callers_speech = _callers()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = await stack.enter_async_context(bench_server(folder, _scripts(folder, per_call)))
        callers = [f"bench{number}" for number in range(CALLS_AT_ONCE)]
        measured = await asyncio.gather(*(_call(server.uri, caller, callers_speech, per_call) for caller in callers))
        await asyncio.sleep(1.0)
        started = _function_starts(folder / "calls.db")
    fillers = [
        1000 * (heard - start)
        for caller, one in zip(callers, measured, strict=True)
        for start, heard in zip(started[caller], one.filler_heard, strict=True)
    ]
    return fillers[:trials], [1000 * seconds for one in measured for seconds in one.barge_in][:trials]


def _function_starts(store: Path) -> dict[str, list[float]]:
    """By caller."""
    return {
        record["from_number"]: [metric["value"] for metric in record["metrics"] if metric["name"] == "STARTED"]
        for record in read_records(store)
    }


def _callers() -> list[bytes]:
    """Utterances of three speakers, shipped with the benchmark; the onset of each is its first loud frame."""
    return [wav_file(path) for path in sorted((AGENT / "callers").glob("*.wav"))]


def bench_conversation(options: argparse.Namespace) -> int:
    """Run and print; exit status 1 when a goal is missed."""
    fillers, barge_ins = asyncio.run(_measure(options.trials))
    figures = {
        "filler_start_ms": {**percentiles(fillers), "goal_p99": FILLER_GOAL_MS},
        "barge_in_ms": {**percentiles(barge_ins), "goal_p99": BARGE_IN_GOAL_MS},
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(
                f"{name:<16} p50 {figure['p50']:6.1f}  p99 {figure['p99']:6.1f}  max {figure['max']:6.1f}  "
                f"(goal p99 {figure['goal_p99']}, {figure['count']} trials)"
            )
    met = all(figure["p99"] <= figure["goal_p99"] and figure["count"] for figure in figures.values())
    return 0 if met else 1
