"""`callagent bench signalling`: what an INVITE costs, and what calls that come and go do to the audio of others.

The second part runs a process that only signals and plays, without agents: calls are set up and torn down at a rate
while others run, and those are measured from outside against their 20 ms grid.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from typing import Any

from callagent.bench.figures import percentiles
from callagent.bench.process_tree import ProcessTree
from callagent.errors import UserError
from callagent.sip import InviteReceived, Negotiation, UserAgent, UserAgentSettings, parse_message

GOAL_MICROSECONDS = 150.0
"""To read an INVITE with sixteen headers and begin its transaction and call."""
GOAL_LATE_MS = 10.0
"""Later than the latest packet of a sender in C that runs in the same time."""
_ROUNDS = 40
_UNTIL_THERE = 4.0
"""Seconds until the running calls are all there; the others stop as long before them."""
_MESSAGES = 100
"""So many calls are alive at a time; each round begins with none."""


def bench_signalling(options: argparse.Namespace) -> int:
    """Run and print; exit status 1 when a goal is missed."""
    result = message_cost() | asyncio.run(_beside(options.calls, options.rate, options.seconds))
    result["met"] = (
        result["invite_us"] <= GOAL_MICROSECONDS
        and result["late_ms"]["max"] <= GOAL_LATE_MS + result["reference_ms"]["max"]
        and not result["failures"]
        and result["streams_heard"] == options.calls
    )
    print(json.dumps(result) if options.json else _text(result))
    return 0 if result["met"] else 1


def invite(number: int) -> bytes:
    """As a trunk sends it, different each time."""
    description = Negotiation("192.0.2.1", 4000, number, loopback=False).offer()
    lines = (
        "INVITE sip:+15550199@192.0.2.2:5060;transport=udp SIP/2.0",
        f"Via: SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bK{number:08x}a;rport",
        f"Via: SIP/2.0/UDP 192.0.2.1:5062;received=192.0.2.1;branch=z9hG4bK{number:08x}b",
        "Record-Route: <sip:192.0.2.9;lr;ftag=abc>",
        "Max-Forwards: 69",
        f'From: "Ann" <sip:+1555{number:07d}@192.0.2.1>;tag=f{number:08x}',
        "To: <sip:+15550199@192.0.2.2>",
        f"Call-ID: {number:032x}@192.0.2.1",
        "CSeq: 102 INVITE",
        f"Contact: <sip:+1555{number:07d}@192.0.2.1:5062>",
        "Allow: INVITE, ACK, CANCEL, OPTIONS, BYE, REFER, SUBSCRIBE, NOTIFY, INFO, UPDATE",
        "Supported: replaces, timer",
        "User-Agent: Trunk 1.2.3",
        f"P-Asserted-Identity: <sip:+1555{number:07d}@192.0.2.1>",
        "X-Account: 4711",
        "Content-Type: application/sdp",
        f"Content-Length: {len(description)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + description


def message_cost() -> dict[str, float]:
    """Microseconds of processor time; the best of many short rounds, for a round is either disturbed or not."""
    parsing, serving = [], []
    for index in range(_ROUNDS):
        messages = [invite(index * _MESSAGES + number) for number in range(_MESSAGES)]
        gc.collect()
        began = time.process_time()
        for message in messages:
            parse_message(message)
        parsing.append(time.process_time() - began)
        messages = [invite(10**6 + index * _MESSAGES + number) for number in range(_MESSAGES)]
        gc.collect()
        serving.append(_serve(messages))
    return {
        "parse_us": round(1e6 * min(parsing) / _MESSAGES, 1),
        "invite_us": round(1e6 * min(serving) / _MESSAGES, 1),
    }


def _serve(messages: list[bytes]) -> float:
    agent = UserAgent(UserAgentSettings(admit=lambda host: "trunk"), lambda peer: ("192.0.2.2", 5060))
    calls = 0
    began = time.process_time()
    for message in messages:
        agent.receive_datagram(message, ("192.0.2.9", 5060), 1.0)
        agent.datagrams_to_send()
        while (event := agent.next_event()) is not None:
            calls += isinstance(event, InviteReceived)
    elapsed = time.process_time() - began
    assert calls == len(messages), "every INVITE is a call"
    return elapsed


async def _beside(calls: int, rate: float, seconds: float) -> dict[str, Any]:
    """Running calls, with others that come and go."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "callagent.bench.signalling_server", stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        target = f"sip:agent@127.0.0.1:{int((await server.stdout.readline()).split()[-1])}"
        lasting = ("--seconds", str(int(seconds)))
        running = asyncio.create_task(_load("calls_load", target, "--calls", str(calls), *lasting))
        # In the same time, not before or after: what the machine does to everybody is seen by both.
        reference = asyncio.create_task(_load("rtp_load", "--reference", str(calls), *lasting))
        await asyncio.sleep(_UNTIL_THERE)
        began, tree = time.monotonic(), ProcessTree(server.pid)
        used = tree.usage().cpu_seconds
        lasting = ("--seconds", str(max(1.0, seconds - 2 * _UNTIL_THERE)))
        coming = await _load("signalling_load", target, "--rate", str(rate), *lasting)
        core = (tree.usage().cpu_seconds - used) / (time.monotonic() - began)
        measured, c = (await running)["server"], (await reference)["reference"]
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()
    return {
        "running_calls": calls,
        "streams_heard": measured["streams_heard"],
        "late_ms": measured["deviation_ms"],
        "reference_ms": c["deviation_ms"] if c else {"max": 0.0},
        "core": round(core, 2),
        "lost": measured["lost"],
        "rate": rate,
        "calls": coming["calls"],
        "failures": coming["failures"] + len(measured["failures"]),
        "set_up_ms": percentiles([1000 * value for value in coming["set_up"]]),
        "calls_per_second": coming["calls_per_second"],
    }


async def _load(module: str, *arguments: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"callagent.bench.{module}", *arguments), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    try:
        figures: dict[str, Any] = json.loads(output)
    except ValueError:
        raise UserError(f"the load {module} failed: {output.decode()[-500:]}") from None
    return figures


def _text(result: dict[str, Any]) -> str:
    late, set_up, c = result["late_ms"], result["set_up_ms"], result["reference_ms"]
    return "\n".join(
        (
            f"INVITE of 16 headers   {result['invite_us']:.0f} µs to its call, {result['parse_us']:.0f} µs to read it",
            f"{result['calls_per_second']:.0f} calls/s, {result['calls']} in all, {result['failures']} failed; "
            f"set up in p50 {set_up['p50']:.1f}  p99 {set_up['p99']:.1f} ms, with {result['core']:.2f} of a core",
            f"{result['running_calls']} running calls       "
            f"off the 20 ms grid p50 {late['p50']:.2f}  p99 {late['p99']:.2f}  max {late['max']:.2f} ms",
            f"sender in C            max {c['max']:.2f} ms",
            "goal met" if result["met"] else "goal missed",
        )
    )
