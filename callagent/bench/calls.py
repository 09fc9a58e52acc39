"""`callagent bench calls`: how evenly many calls' audio leaves a server, and what a call costs.

A server process is called from another process over SIP; every packet's kernel receive timestamp is set against its
stream's 20 ms grid. A sender in C is measured in the same run by the same receiver: its figure is the machine's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from callagent.bench.bench_server import AGENT, BenchServer, bench_server
from callagent.bench.figures import percentiles
from callagent.bench.process_tree import ProcessTree
from callagent.errors import UserError
from callagent.records import read_records

GOAL_MS = 3.0
"""How much later than the sender in C the p99 may be."""
SPEAKING_CALLS = (1, 3, 5)
_TURNS = 50


def bench_calls(options: argparse.Namespace) -> int:
    """Run and print; exit status 1 when the goal is missed or a call failed."""
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
        spinning = asyncio.create_task(_load(_uri(server, "spin"), 1, seconds + 10)) if spin else None
        if spinning:
            await asyncio.sleep(2.0)
        tree = ProcessTree(server.pid)
        before = tree.usage()
        arguments = ["--speech", str(AGENT / "callers" / "c03_hibari_heart.wav")] if speech else []
        loading = asyncio.create_task(_load(server.uri, count, seconds, "--reference", *arguments))
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
    """From the caller's last sound to the first of the answer, as the server saw it."""
    found = [turn["latency"].get("response") for record in read_records(store) for turn in record["turns"]]
    return [value for value in found if value is not None]


def _settings(folder: Path, *, speech: bool) -> dict[str, str]:
    """Everything scripted, so that it is the server that is measured; or the embedded speech and a scripted model."""
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
    """The load, as a process of its own; its figures."""
    command = [sys.executable, "-m", "callagent.bench.calls_load", uri, "--calls", str(count)]
    process = await asyncio.create_subprocess_exec(
        *command, "--seconds", str(int(seconds)), *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    try:
        figures: dict[str, Any] = json.loads(output)
    except ValueError:
        raise UserError(f"the load on {uri} failed: {output.decode()[-500:]}") from None
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
