"""The media of many calls in a process of its own, so that its CPU time is nothing but media.

Prints the ports as JSON, reads the peers' from standard input, runs, and prints the CPU time it took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import count, cycle
from typing import Any

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE, Decimator, prepare_decimators
from callagent.rtp import Pump, RtpParameters, RtpPorts, RtpSession, open_codec
from callagent.server import calm_collector

_SWITCH_INTERVAL = 0.0002
_RECOGNIZER_RATE = 16000
_VOICE_RATE = 24000
_WARM_UP_SECONDS = 1.0
_FRAMES_OF_VOICE = 50
_PIECE = 10
"""Frames of a piece of voice: it is resampled as it comes, not as it is sent."""


class Talk:
    """One call: its ears take frames at 16 kHz and their level, its mouth speaks frames made at 24 kHz."""

    def __init__(self, *, resample: bool) -> None:
        self.frames = 0
        self.level = 0
        self._numbers = count()
        self.hear: Callable[[bytes, float], None] = self._hear
        self.speak: Callable[[], bytes] = self._speak
        if resample:
            self._resample()

    def _hear(self, frame: bytes, now: float) -> None:
        import audioop

        self.frames += 1
        self.level = audioop.rms(frame, 2)

    def _speak(self) -> bytes:
        return _voice(8000)[next(self._numbers) % _FRAMES_OF_VOICE]

    def _resample(self) -> None:
        """As a session's audio goes up, and a provider's voice comes down."""
        import audioop

        state: Any = None
        decimator = Decimator(_VOICE_RATE // SAMPLE_RATE)
        frames = _voice(_VOICE_RATE)
        pieces = cycle(b"".join(frames[at : at + _PIECE]) for at in range(0, len(frames), _PIECE))
        ready: deque[bytes] = deque()

        def hear(frame: bytes, now: float) -> None:
            nonlocal state
            _, state = audioop.ratecv(frame, 2, 1, SAMPLE_RATE, _RECOGNIZER_RATE, state)
            self.frames += 1
            self.level = audioop.rms(frame, 2)

        def speak() -> bytes:
            if not ready:
                pcm = decimator.feed(next(pieces))
                ready.extend(pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm), FRAME_BYTES))
            return ready.popleft()

        self.hear, self.speak = hear, speak


_voices: dict[int, list[bytes]] = {}


def _voice(rate: int) -> list[bytes]:
    """A second of a tone, a frame at a time."""
    if rate not in _voices:
        samples = rate // 50
        wave = [int(6000 * math.sin(2 * math.pi * 300 * n / rate)) for n in range(rate)]
        _voices[rate] = [struct.pack(f"<{samples}h", *wave[at : at + samples]) for at in range(0, rate, samples)]
    return _voices[rate]


async def run(calls: int, seconds: float, codec_name: str, *, resample: bool) -> None:
    pump = Pump()
    pump.start()
    sessions = [RtpSession(asyncio.get_running_loop(), RtpPorts("127.0.0.1", 10000, 40000), pump) for _ in range(calls)]
    print(json.dumps([session.local_port for session in sessions]), flush=True)
    peers: list[int] = json.loads(sys.stdin.readline())
    talks = [Talk(resample=resample) for _ in sessions]
    for session, peer, talk in zip(sessions, peers, talks, strict=True):
        codec = open_codec(codec_name)
        assert codec is not None
        session.connect(("127.0.0.1", peer), RtpParameters(codec))
        session.start(talk.hear, talk.speak)
    calm_collector()
    await asyncio.sleep(_WARM_UP_SECONDS)
    cpu, began = time.process_time(), time.monotonic()
    before = sum(talk.frames for talk in talks)
    await asyncio.sleep(seconds)
    cpu, lasted = time.process_time() - cpu, time.monotonic() - began
    heard = sum(talk.frames for talk in talks) - before
    late = max(session.statistics().send_lateness_max_ms for session in sessions)
    print(
        json.dumps(
            {
                "cpu_seconds": cpu,
                "frames": lasted / FRAME_SECONDS * calls,
                "heard_share": heard * FRAME_SECONDS / lasted / calls,
                "send_lateness_max_ms": round(late, 2),
            }
        ),
        flush=True,
    )
    for session in sessions:
        session.close()
    pump.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m callagent.bench.media_server")
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--codec", default="PCMU")
    parser.add_argument("--resample", action="store_true")
    options = parser.parse_args()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    prepare_decimators()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run(options.calls, options.seconds, options.codec, resample=options.resample))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
