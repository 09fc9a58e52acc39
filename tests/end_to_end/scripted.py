"""Scripted servers and the callers that talk to them: what is heard, thought and said is known beforehand."""

from __future__ import annotations

import asyncio
import audioop
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callagent.phone.handset import Earpiece, Microphone, read_wav
from callagent.phone.lines import Line, dial_sip
from tests.own_time import OwnTime, own_time

MILL = Path(__file__).parents[1] / "projects" / "mill"
SILENCE = 20
"""Root mean square of 16-bit samples."""
WORDS = Path(__file__).parent / "callers" / "c01_hibari_heart.wav"


def scripts(folder: Path, heard: Sequence[str], thought: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Settings of a server that hears these utterances and thinks these answers in every call. JSON is YAML too."""
    (folder / "recognizer.yaml").write_text(json.dumps(list(heard)))
    (folder / "model.yaml").write_text(json.dumps(list(thought)))
    (folder / "voice.yaml").write_text(json.dumps({"seconds_per_character": 0.03}))
    return {
        "SPEECH__RECOGNIZER": f"script:{folder / 'recognizer.yaml'}",
        "SPEECH__VOICE": f"script:{folder / 'voice.yaml'}",
        "MODEL__NAME": f"script:{folder / 'model.yaml'}",
    }


class Talker:
    """A caller who says something and counts what the agent says. A stall of the machine is no pause of the agent's."""

    def __init__(self, line: Line, clock: OwnTime) -> None:
        self.line = line
        self.clock = clock
        self.microphone = Microphone()
        self.earpiece = Earpiece(lambda heard: None)
        self.earpiece.listen(None, clock())
        self.frames = 0
        self.sounded = self.silent = clock()
        """Seconds of `clock` at which there was sound on the line last, and none."""
        line.media.start(self._hear, self.microphone.next_frame)

    async def listen(self, utterances: int, seconds: float = 60.0) -> None:
        """Until the agent has said so many utterances, counted from the call's beginning, to their end."""

        def said() -> bool:
            return sum(heard.ended is not None for heard in self.earpiece.utterances) >= utterances

        await until(said, seconds, lambda: f"{utterances} utterances; heard {self.earpiece.utterances}")

    async def speaks(self, utterance: int, seconds: float = 60.0) -> None:
        """Until the agent has begun that utterance, counted from the call's beginning."""
        await until(
            lambda: len(self.earpiece.utterances) >= utterance, seconds, lambda: f"heard {self.earpiece.utterances}"
        )

    async def say(self, seconds: float = 60.0) -> None:
        """To the end. Fails where the call has ended: nobody takes the words any more."""
        speaking = asyncio.ensure_future(self.microphone.speak(read_wav(WORDS)))
        await asyncio.wait((speaking, self.line.ended), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        said = speaking.done()
        speaking.cancel()
        assert said, f"the call has ended or stands still; heard {self.earpiece.utterances}"

    async def ended(self, seconds: float = 60.0) -> str:
        async with asyncio.timeout(seconds):
            return await self.line.ended

    def _hear(self, pcm: bytes, now: float) -> None:
        self.frames += 1
        if audioop.rms(pcm, 2) > SILENCE:
            self.sounded = self.clock()
        else:
            self.silent = self.clock()
        self.earpiece.on_frame(pcm, self.clock())


@asynccontextmanager
async def talker(address: str, caller: str = "+15550100", user: str = "agent") -> AsyncIterator[Talker]:
    """A SIP call to the server at `address`, answered."""
    with own_time() as clock:
        async with dial_sip(f"sip:{user}@{address}", caller) as line:
            yield Talker(line, clock)


async def until(condition: Callable[[], object], seconds: float, what: Callable[[], str] = lambda: "") -> None:
    """Wait for what happens in another process: for so many seconds that the machine has time for us; says for what."""
    with own_time() as clock:
        began = clock()
        while not condition():
            assert clock() - began < seconds, f"not within {seconds} s: {what()}"
            await asyncio.sleep(0.02)
