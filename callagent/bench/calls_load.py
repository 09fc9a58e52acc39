"""Load of whole calls on a server: invites, streams audio both ways, hangs up.

python -m callagent.bench.calls_load sip:agent@127.0.0.1:5060 --calls 50 --seconds 20 --reference
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.bench.figures import percentiles
from callagent.bench.rtp_load import LoadStream, RtpLoad, reference_figures
from callagent.phone.mouth import wav_file
from callagent.sip import CallAnswered, CallEnded, Endpoint, EndpointCall, Event, Negotiation, UserAgentSettings

ANSWER_SECONDS = 30.0
SPEECH_EVERY = 8.0
"""Seconds from one utterance of a caller to its next: the agent answers in between."""
FIRST_WORDS_AFTER = 6.0
"""Seconds: the greeting is over then."""


class LoadCall:
    """One caller: rings, sends where the answer says, hangs up."""

    def __init__(self, stream: LoadStream) -> None:
        self.answered_after: float | None = None
        """Seconds from the INVITE."""
        self.failure: str | None = None
        self._stream = stream
        self._negotiation: Negotiation | None = None
        self._invited = 0.0
        self._settled = asyncio.Event()
        self._call: EndpointCall | None = None

    async def dial(self, endpoint: Endpoint, target: str) -> None:
        """Returns when the call is answered or has failed."""
        self._invited = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._call = await endpoint.call(target, body=self._offer)
                self._call.listen(self._event)
                await self._settled.wait()
        except (OSError, TimeoutError) as error:
            self.failure = str(error) or "no answer"

    async def hang_up(self) -> None:
        self._stream.remote = None
        if self._call is not None:
            self._call.hang_up()

    def _offer(self, host: str) -> bytes:
        self._negotiation = Negotiation(host, self._stream.port, secrets.randbits(31), loopback=True)
        return self._negotiation.offer()

    def _event(self, event: Event) -> None:
        if isinstance(event, CallAnswered) and self._negotiation is not None:
            self.answered_after = time.monotonic() - self._invited
            self._stream.remote = self._negotiation.accept(event.body).remote
            self._settled.set()
        elif isinstance(event, CallEnded):
            self._stream.remote = None
            self.failure = f"ended early: {event.cause.value} {event.status} {event.reason}".rstrip()
            self._settled.set()


def _speaking(speech: Path | None, number: int) -> Iterator[bytes | None]:
    """Frames without end: the words, then silence for the rest of the interval."""
    assert speech is not None
    words = wav_file(speech)
    frames: list[bytes | None] = [
        words[at : at + FRAME_BYTES] for at in range(0, len(words) - FRAME_BYTES + 1, FRAME_BYTES)
    ]
    interval = int(SPEECH_EVERY / FRAME_SECONDS)
    frames += [None] * (interval - len(frames))
    first = int((FIRST_WORDS_AFTER + 1.7 * number % SPEECH_EVERY) / FRAME_SECONDS)
    return chain(repeat(None, first), cycle(frames))


async def load_calls(
    target: str,
    count: int,
    seconds: float,
    *,
    host: str = "127.0.0.1",
    per_second: float = 20.0,
    speech: Path | None = None,
    on_dialled: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Hold `count` calls for `seconds` after the last one was answered; the figures, ready for JSON.

    The callers are silent, or say what is in `speech` every `SPEECH_EVERY` seconds, each at a time of its own.
    """
    load = RtpLoad(host, count)
    for number, stream in enumerate(load.streams if speech else ()):
        stream.frames = _speaking(speech, number)
    calls = [LoadCall(stream) for stream in load.streams]
    endpoint = await Endpoint.open(host, 0, UserAgentSettings(admit=lambda source: "server"))
    media = asyncio.create_task(asyncio.to_thread(load.run, ANSWER_SECONDS + count / per_second + seconds))
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call.dial(endpoint, target))
                await asyncio.sleep(1 / per_second)
        on_dialled()
        await asyncio.sleep(seconds)
        failures = [call.failure for call in calls if call.failure is not None]
        load.stop()
        await media
        for call in calls:
            await call.hang_up()
    finally:
        load.stop()
        await endpoint.close()
        load.close()
    answers = [call.answered_after * 1000 for call in calls if call.answered_after is not None]
    return {**load.figures(), "calls": count, "failures": failures, "answer_ms": percentiles(answers)}


def _parser() -> argparse.ArgumentParser:
    description = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m callagent.bench.calls_load", description=description)
    parser.add_argument("target", help="SIP URI of the server")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=10, help="to hold them all")
    parser.add_argument("--local-host", default="127.0.0.1")
    parser.add_argument("--speech", type=Path, metavar="WAV", help="what the callers say, again and again")
    parser.add_argument("--reference", action="store_true", help="measure as many streams of a sender in C afterwards")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    loading = load_calls(options.target, options.calls, options.seconds, host=options.local_host, speech=options.speech)
    server = asyncio.run(loading)
    result: dict[str, Any] = {"server": server}
    if options.reference:
        result["reference"] = reference_figures(options.calls, options.seconds)
    print(json.dumps(result))
    return 0 if not server["failures"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
