"""The media of many calls in a process of its own, so that its CPU time is nothing but media.

Prints the ports as JSON, reads the peers' from standard input, runs, and prints the CPU time it took.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import struct
import sys
import time
from collections.abc import Callable
from itertools import count, cycle

from callagent.call_info import FRAME_BYTES, FRAME_SECONDS
from callagent.rtp import Pump, RtpParameters, RtpPorts, RtpSession, open_codec

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
        import numpy
        import soxr

        upwards = soxr.ResampleStream(8000, _RECOGNIZER_RATE, 1, dtype="int16")
        downwards = soxr.ResampleStream(_VOICE_RATE, 8000, 1, dtype="int16")
        frames = _voice(_VOICE_RATE)
        pieces = cycle(
            numpy.frombuffer(b"".join(frames[at : at + _PIECE]), dtype="<i2") for at in range(0, len(frames), _PIECE)
        )
        pcm = bytearray()

        def hear(frame: bytes, now: float) -> None:
            upwards.resample_chunk(numpy.frombuffer(frame, dtype="<i2"))
            self._hear(frame, now)

        def speak() -> bytes:
            # The resampler's first answers are shorter than what it was given: it looks ahead.
            while len(pcm) < FRAME_BYTES:
                pcm.extend(downwards.resample_chunk(next(pieces)).tobytes())
            frame = bytes(pcm[:FRAME_BYTES])
            del pcm[:FRAME_BYTES]
            return frame

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
    gc.collect()
    gc.freeze()
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
    # The resamplers complain when the interpreter goes before them.
    gc.unfreeze()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m callagent.bench.media_server")
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--codec", default="PCMU")
    parser.add_argument("--resample", action="store_true")
    options = parser.parse_args()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run(options.calls, options.seconds, options.codec, resample=options.resample))
    gc.collect()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
