"""How soon the agent stops and how soon it answers, counted from the caller's first and last sound.

The turn manager with the embedded detector, recorded callers whose sounds are known from their level, and engines of
known delay, on the virtual clock: what is left is our own share.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE
from callagent.bench.measurement import spoken_span
from callagent.phone.handset import read_wav
from callagent.speech.scripted import ScriptedRecognizer, ScriptedUtterance, ScriptedVoice, VoiceScript
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, CallerTurnEnded, TurnManager, TurnSettings

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.local
CALLERS = sorted((Path(__file__).parents[1] / "data" / "speech").glob("c*.wav"))
TRIALS = 200
LEAD = 0.7
"""Seconds of line noise before the caller speaks."""
LINE_NOISE = 20
TRANSCRIPTION, THINKING, VOICE, ENDPOINTING = 0.1, 0.2, 0.05, 0.5
ANSWER = "Certainly, that is done."


class Line:
    """Both ways of a call: the caller's recording comes in, what the agent sends is noted."""

    def __init__(self, speech: bytes, noise: random.Random) -> None:
        lead = round(LEAD * SAMPLE_RATE) + noise.randrange(256)
        begins, ends = spoken_span(speech)
        self.onset, self.end = lead / SAMPLE_RATE + begins, lead / SAMPLE_RATE + ends
        samples = [*([0] * lead), *struct.unpack(f"<{len(speech) // 2}h", speech), *([0] * 3 * SAMPLE_RATE)]
        noisy = (max(-32768, min(32767, round(sample + noise.gauss(0, LINE_NOISE)))) for sample in samples)
        self._pcm = struct.pack(f"<{len(samples)}h", *noisy)
        self.sent: list[float] = []
        """When each packet with sound went out."""

    def start(self, sink: Any, source: Any) -> None:
        self._sink, self._source = sink, source

    def clear(self) -> float:
        return 0.0

    def unheard(self) -> float:
        return 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for tick in range(1, len(self._pcm) // FRAME_BYTES + 1):
            await asyncio.sleep(began + tick * FRAME_SECONDS - loop.time())
            self._sink(self._pcm[(tick - 1) * FRAME_BYTES : tick * FRAME_BYTES], loop.time())
            frame = self._source()
            if frame is not None and frame.strip(b"\0"):
                self.sent.append(loop.time() - began)


async def trial(path: Path, seed: int, *, speaking: bool) -> tuple[float, float]:
    """Seconds from the caller's first sound to the agent's last before the answer, and from its last to the answer."""
    from callagent.speech.voice_activity import SileroVoiceActivity

    line = Line(read_wav(path), random.Random(seed))
    recognizer = ScriptedRecognizer([ScriptedUtterance("stop it please", TRANSCRIPTION, ("stop",))] * 4)
    loop = asyncio.get_running_loop()
    taker: TurnManager

    def heard(event: object) -> None:
        if isinstance(event, CallerTurnEnded):
            loop.call_later(THINKING, taker.say, ANSWER)

    voice = ScriptedVoice(VoiceScript(seconds_per_character=0.05, delay=VOICE))
    settings = TurnSettings(endpointing=ENDPOINTING, allow_on_first_turn=True)
    async with TurnManager(CallerInput(recognizer, SileroVoiceActivity()), voice, heard, settings) as taker:
        taker.start(line)
        if speaking:
            taker.say(" ".join(["This goes on and on."] * 20))
        taker.listen()
        await line.run()
    answer = min(at for at in line.sent if at > line.end + 0.2)
    stopped = max((at for at in line.sent if at < answer), default=0.0)
    own = answer - line.end - ENDPOINTING - TRANSCRIPTION - THINKING - VOICE
    return stopped - line.onset, own


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def trials(*, speaking: bool) -> list[tuple[float, float]]:
    assert len(CALLERS) >= 10
    return [run(trial(CALLERS[number % len(CALLERS)], number, speaking=speaking)) for number in range(TRIALS)]


def test_the_agent_stops_within_its_time_of_the_callers_first_sound() -> None:
    stopped = [first for first, _ in trials(speaking=True)]
    assert percentile(stopped, 0.5) <= 0.2
    assert percentile(stopped, 0.99) <= 0.3


def test_the_answer_comes_within_its_time_of_the_callers_last_sound() -> None:
    own = [last for _, last in trials(speaking=False)]
    assert percentile(own, 0.5) <= 0.04
    assert percentile(own, 0.99) <= 0.1
