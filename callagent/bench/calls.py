"""`callagent bench calls`: how evenly many calls' audio leaves a server, and what a call costs.

A server process is called from another process over SIP; every packet's kernel receive timestamp is compared with its
stream's 20 ms grid. The same receiver measures a sender in C in the same run, which shows the machine's own share.

The calling process sends the INVITEs, streams audio both ways and hangs up:

    python -m callagent.bench.calls sip:agent@127.0.0.1:5060 --calls 50 --seconds 20 --reference
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.bench.measurement import AGENT, BenchServer, ProcessTree, bench_server, percentiles
from callagent.bench.media import LoadStream, RtpLoad, reference_figures
from callagent.errors import UserError
from callagent.phone import read_wav
from callagent.records import CallRecord, read_records
from callagent.sip import CallAnswered, CallEnded, Endpoint, EndpointCall, Event, Negotiation, UserAgentSettings

GOAL_MS = 3.0
"""How far the p99 of the deviations may exceed that of the sender in C."""
SPEAKING_CALLS = (1, 3, 5)
"""Numbers of calls at a time with the embedded speech; each is a run."""
_TURNS = 50
"""Number of the model's scripted answers."""


def bench_calls(options: argparse.Namespace) -> int:
    """Run the benchmark and print its figures; return the exit status, 1 when the goal is missed or a call failed."""
    if options.speech == "local":
        results = [asyncio.run(_measure(count, options.seconds, speech=True)) for count in SPEAKING_CALLS]
    else:
        results = [asyncio.run(_measure(options.calls, options.seconds, spin=options.spin))]
    for result in results:
        print(json.dumps(result) if options.json else _text(result))
    return 0 if all(result["met"] for result in results) else 1


async def _measure(count: int, seconds: float, *, spin: bool = False, speech: bool = False) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = _settings(folder, speech=speech)
        server = await stack.enter_async_context(bench_server(folder, settings))
        # One more call whose function never returns: its worker must take nothing from the others.
        spinning = asyncio.create_task(_load(_uri(server, "spin"), 1, seconds + 10)) if spin else None
        if spinning:
            await asyncio.sleep(2.0)
        tree = ProcessTree(server.pid)
        before = tree.usage()
        arguments = ["--speech", str(AGENT / "callers" / "c03_hibari_heart.wav")] if speech else []
        loading = asyncio.create_task(_load(server.uri, count, seconds, "--reference", *arguments))
        # Usage is read in the middle of the run, when all calls are answered; five seconds are for placing them.
        await asyncio.sleep(5.0 + seconds / 2)
        during = tree.usage()
        measured = await loading
        if spinning:
            await spinning
        await asyncio.sleep(1.0)
        responses = _responses(folder / "calls.db") if speech else []
    return _result(measured, count, speech, responses) | {
        "spinning": spin,
        "cpu_percent_per_call": round(100 * (during.cpu_seconds - before.cpu_seconds) / (5.0 + seconds / 2) / count, 2),
        "memory_mb_per_call": round((during.memory - before.memory) / count / 2**20, 2),
        "memory_mb_idle": round(before.memory / 2**20, 1),
    }


def _result(measured: Mapping[str, Any], count: int, speech: bool, responses: list[float]) -> dict[str, Any]:
    server, reference = measured["server"], measured["reference"]
    own = server["deviation_ms"]
    c = reference["deviation_ms"] if reference else None
    met = not server["failures"] and server["streams_heard"] == count
    if c:
        met = met and own["p99"] <= c["p99"] + GOAL_MS
    result = {
        "calls": count,
        "speech": "local" if speech else "script",
        "deviation_ms": own,
        "reference_ms": c,
        "lost": server["lost"],
        "failures": server["failures"],
        "answer_ms": server["answer_ms"],
        "met": met,
    }
    if speech:
        result["response_s"] = percentiles(responses)
    return result


def _responses(store: Path) -> list[float]:
    """Return the seconds from the caller's last sound to the first of the answer, as the server measured them."""
    records = map(CallRecord.from_json, read_records(store))
    found = [turn.latency.get("response") for record in records for turn in record.turns]
    return [value for value in found if value is not None]


def _settings(folder: Path, *, speech: bool) -> dict[str, str]:
    """Return settings with a scripted model, and either with the embedded speech or with scripted speech.

    With scripts for everything, only the server itself is measured.
    """
    (folder / "model.yaml").write_text(json.dumps([{"text": "I am still here. What can I do for you?"}] * _TURNS))
    settings = {"MODEL__NAME": f"script:{folder / 'model.yaml'}"}
    if speech:
        return settings
    (folder / "recognizer.yaml").write_text(json.dumps([]))
    (folder / "voice.yaml").write_text(json.dumps({"seconds_per_character": 0.05}))
    return settings | {
        "SPEECH__RECOGNIZER": f"script:{folder / 'recognizer.yaml'}",
        "SPEECH__VOICE": f"script:{folder / 'voice.yaml'}",
    }


async def _load(uri: str, count: int, seconds: float, *arguments: str) -> dict[str, Any]:
    """Place calls from a process of its own, and return its figures."""
    command = [sys.executable, "-m", "callagent.bench.calls", uri, "--calls", str(count)]
    process = await asyncio.create_subprocess_exec(
        *command, "--seconds", str(int(seconds)), *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    try:
        figures: dict[str, Any] = json.loads(output)
    except ValueError:
        raise UserError(f"the process that calls {uri} printed no figures: {output.decode()[-500:]}") from None
    return figures


def _uri(server: BenchServer, user: str) -> str:
    return server.uri.replace("agent@", f"{user}@")


def _text(result: Mapping[str, Any]) -> str:
    own, c = result["deviation_ms"], result["reference_ms"]
    spinning = ", one more call's function spinning" if result["spinning"] else ""
    lines = [f"{result['calls']} calls, {result['speech']} speech{spinning}"]
    lines.append(f"  off the 20 ms grid   p50 {own['p50']:.2f}  p99 {own['p99']:.2f}  max {own['max']:.2f} ms")
    if c:
        lines.append(f"  sender in C          p50 {c['p50']:.2f}  p99 {c['p99']:.2f}  max {c['max']:.2f} ms")
    else:
        lines.append("  sender in C          no compiler here (cc): there is nothing to compare with")
    if "response_s" in result:
        response = result["response_s"]
        lines.append(f"  end of speech to answer  p50 {response['p50']:.2f}  max {response['max']:.2f} s")
    cpu, memory, idle = result["cpu_percent_per_call"], result["memory_mb_per_call"], result["memory_mb_idle"]
    lines.append(f"  per call             {cpu:.2f} % of a core, {memory:.1f} MB (server idle: {idle:.0f} MB)")
    lines.append(
        f"  lost {result['lost']}, failed {len(result['failures'])}: goal {'met' if result['met'] else 'MISSED'}"
    )
    return "\n".join(lines)


ANSWER_SECONDS = 30.0
"""Time for a call to be answered."""
SPEECH_EVERY_SECONDS = 8.0
"""Time from one utterance of a caller to the next: the agent answers in between."""
FIRST_WORDS_AFTER_SECONDS = 6.0
"""Time before a caller's first words: the greeting is over then."""


class LoadCall:
    """One caller, who sends an INVITE, then audio to the address in the answer, and hangs up."""

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
        """Place the call; return when it is answered or has failed."""
        self._invited = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._call = await endpoint.call(target, body=self._offer)
                self._call.listen(self._take_event)
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

    def _take_event(self, event: Event) -> None:
        # Audio goes where the answer's session description says, from the moment of the answer.
        if isinstance(event, CallAnswered) and self._negotiation is not None:
            self.answered_after = time.monotonic() - self._invited
            self._stream.remote = self._negotiation.accept(event.body).remote
            self._settled.set()
        elif isinstance(event, CallEnded):
            self._stream.remote = None
            self.failure = f"ended early: {event.cause.value} {event.status} {event.reason}".rstrip()
            self._settled.set()


def _caller_frames(speech: Path | None, number: int) -> Iterator[bytes | None]:
    """Return the endless frames of caller `number`: the words and then silence, again and again."""
    assert speech is not None
    words = read_wav(speech)
    frames: list[bytes | None] = [
        words[at : at + FRAME_BYTES] for at in range(0, len(words) - FRAME_BYTES + 1, FRAME_BYTES)
    ]
    # Each caller begins at a time of its own, or all recognisers would work at the same moments.
    interval = int(SPEECH_EVERY_SECONDS / FRAME_SECONDS)
    frames += [None] * (interval - len(frames))
    first = int((FIRST_WORDS_AFTER_SECONDS + 1.7 * number % SPEECH_EVERY_SECONDS) / FRAME_SECONDS)
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
    """Hold `count` calls for `seconds` after the last one was answered; return the figures, ready for JSON.

    The callers are silent, or play the file `speech` every `SPEECH_EVERY_SECONDS` seconds, each at a time of its own.
    """
    load = RtpLoad(host, count)
    for number, stream in enumerate(load.streams if speech else ()):
        stream.frames = _caller_frames(speech, number)
    calls = [LoadCall(stream) for stream in load.streams]
    endpoint = await Endpoint.open(host, 0, UserAgentSettings(admit=lambda source: "server"))
    # The audio has a thread of its own, because the signalling must not delay its clock.
    media = asyncio.create_task(asyncio.to_thread(load.run, ANSWER_SECONDS + count / per_second + seconds))
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                # Calls are placed evenly: running calls are to be measured, not a burst of INVITEs.
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
    parser = argparse.ArgumentParser(prog="python -m callagent.bench.calls", description=description)
    parser.add_argument("target", help="SIP URI of the server")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=10, help="to hold them all")
    parser.add_argument("--local-host", default="127.0.0.1")
    parser.add_argument("--speech", type=Path, metavar="WAV", help="what the callers say, again and again")
    parser.add_argument("--reference", action="store_true", help="measure as many streams of a sender in C afterwards")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the calling process and print its figures; return the exit status, 1 when a call failed."""
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
