"""`callagent bench signalling`: the processor time of an INVITE, and how short calls disturb the audio of running ones.

The second part runs a server without agents, which only signals and sends audio: short calls are set up and ended at a
rate while other calls run, whose packets are measured from outside against their 20 ms grid. Its two processes:

    python -m callagent.bench.signalling serve        answers every call, sends audio and does nothing else
    python -m callagent.bench.signalling load sip:agent@127.0.0.1:5060 --rate 100 --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import email.parser
import gc
import json
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from callagent import sip
from callagent.audio import FRAME_SAMPLES
from callagent.bench.measurement import ProcessTree, percentiles
from callagent.call_info import EndReason
from callagent.errors import UserError
from callagent.legs import LegGone
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.rtp import Pump, RtpPorts
from callagent.server import reduce_garbage_collection

GOAL_RATIO = 4.0
"""Most processor time to parse an INVITE with sixteen headers and to begin its transaction and call, as a multiple of
what the standard library needs in the same run to parse a mail with the same headers and body."""
GOAL_LATE_MS = 10.0
"""How much later a packet may be than the latest one of the sender in C, which runs at the same time."""
_ROUNDS = 40
_SETUP_SECONDS = 4.0
"""Time after which all running calls are set up; the short calls stop this long before the running ones end."""
_ROUND_MESSAGES = 100
"""INVITEs of a round. Their calls stay alive to its end; the next round has a new user agent."""


def bench_signalling(options: argparse.Namespace) -> int:
    """Run the benchmark and print its figures; return the exit status, 1 when a goal is missed."""
    result = message_cost() | asyncio.run(_measure_running_calls(options.calls, options.rate, options.seconds))
    result["met"] = (
        result["invite_us"] <= GOAL_RATIO * result["mail_us"]
        and result["late_ms"]["max"] <= GOAL_LATE_MS + result["reference_ms"]["max"]
        and not result["failures"]
        and result["streams_heard"] == options.calls
    )
    print(json.dumps(result) if options.json else _text(result))
    return 0 if result["met"] else 1


def invite(number: int) -> bytes:
    """Return an INVITE as a trunk sends it; each number gives a different one."""
    description = sip.Negotiation("192.0.2.1", 4000, number, loopback=False).offer()
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
    """Return the microseconds of processor time to parse an INVITE, to serve it, and to parse it as a mail.

    Of many short rounds the fastest counts, because it was the least disturbed.
    """
    parsing, serving, parsing_mail = [], [], []
    parse_mail = email.parser.BytesParser().parsebytes
    # Garbage is collected between the measurements, so that no collection falls into one of them.
    for index in range(_ROUNDS):
        # Every message is different, because a repeated INVITE is a retransmission (RFC 3261 section 17.2).
        messages = [invite(index * _ROUND_MESSAGES + number) for number in range(_ROUND_MESSAGES)]
        parsing.append(_time_each(sip.parse_message, messages))
        # Without its first line a message has the form of a mail.
        parsing_mail.append(_time_each(parse_mail, [message.partition(b"\r\n")[2] for message in messages]))
        messages = [invite(10**6 + index * _ROUND_MESSAGES + number) for number in range(_ROUND_MESSAGES)]
        gc.collect()
        serving.append(_time_serving(messages))
    return {
        "parse_us": round(1e6 * min(parsing) / _ROUND_MESSAGES, 1),
        "invite_us": round(1e6 * min(serving) / _ROUND_MESSAGES, 1),
        "mail_us": round(1e6 * min(parsing_mail) / _ROUND_MESSAGES, 1),
    }


def _time_each(function: Callable[[bytes], object], messages: list[bytes]) -> float:
    """Return the seconds of processor time that a function takes for all messages."""
    gc.collect()
    began = time.process_time()
    for message in messages:
        function(message)
    return time.process_time() - began


def _time_serving(messages: list[bytes]) -> float:
    """Return the seconds of processor time that a user agent takes to begin the calls of these INVITEs."""
    agent = sip.UserAgent(sip.UserAgentSettings(admit=lambda host: "trunk"), lambda peer: ("192.0.2.2", 5060))
    calls = 0
    began = time.process_time()
    for message in messages:
        agent.receive_datagram(message, ("192.0.2.9", 5060), 1.0)
        agent.messages_to_send()
        while (event := agent.next_event()) is not None:
            calls += isinstance(event, sip.InviteReceived)
    elapsed = time.process_time() - began
    assert calls == len(messages), "some INVITEs began no call"
    return elapsed


async def _measure_running_calls(calls: int, rate: float, seconds: float) -> dict[str, Any]:
    """Return the figures of running calls, and of the short calls that are set up and ended beside them."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "callagent.bench.signalling", "serve", stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        target = f"sip:agent@127.0.0.1:{int((await server.stdout.readline()).split()[-1])}"
        lasting = ("--seconds", str(int(seconds)))
        running = asyncio.create_task(_run_load("calls", target, "--calls", str(calls), *lasting))
        # The sender in C runs at the same time, so that disturbances by the machine meet both.
        reference = asyncio.create_task(_run_load("media", "load", "--reference", str(calls), *lasting))
        await asyncio.sleep(_SETUP_SECONDS)
        began, tree = time.monotonic(), ProcessTree(server.pid)
        used = tree.usage().cpu_seconds
        lasting = ("--seconds", str(max(1.0, seconds - 2 * _SETUP_SECONDS)))
        short = await _run_load("signalling", "load", target, "--rate", str(rate), *lasting)
        core = (tree.usage().cpu_seconds - used) / (time.monotonic() - began)
        measured, sender_in_c = (await running)["server"], (await reference)["reference"]
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()
    return {
        "running_calls": calls,
        "streams_heard": measured["streams_heard"],
        "late_ms": measured["deviation_ms"],
        "reference_ms": sender_in_c["deviation_ms"] if sender_in_c else {"max": 0.0},
        "core": round(core, 2),
        "lost": measured["lost"],
        "rate": rate,
        "calls": short["calls"],
        "failures": short["failures"] + len(measured["failures"]),
        "set_up_ms": percentiles([1000 * value for value in short["set_up"]]),
        "calls_per_second": short["calls_per_second"],
    }


async def _run_load(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of the benchmarks as a process, and return the figures that it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"callagent.bench.{module}", *arguments), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    try:
        figures: dict[str, Any] = json.loads(output)
    except ValueError:
        raise UserError(f"the process callagent.bench.{module} printed no figures: {output.decode()[-500:]}") from None
    return figures


def _text(result: dict[str, Any]) -> str:
    late, set_up, sender_in_c = result["late_ms"], result["set_up_ms"], result["reference_ms"]
    return "\n".join(
        (
            f"INVITE of 16 headers   {result['invite_us']:.0f} µs to its call, {result['parse_us']:.0f} µs to read it, "
            f"{result['mail_us']:.0f} µs for the standard library to read such a mail",
            f"{result['calls_per_second']:.0f} calls/s, {result['calls']} in all, {result['failures']} failed; "
            f"set up in p50 {set_up['p50']:.1f}  p99 {set_up['p99']:.1f} ms, with {result['core']:.2f} of a core",
            f"{result['running_calls']} running calls       "
            f"off the 20 ms grid p50 {late['p50']:.2f}  p99 {late['p99']:.2f}  max {late['max']:.2f} ms",
            f"sender in C            max {sender_in_c['max']:.2f} ms",
            "goal met" if result["met"] else "goal missed",
        )
    )


_FRAME = struct.pack("<h", 1000) * FRAME_SAMPLES


async def serve() -> None:
    """Answer every call until the process is killed; print the port, the only line of output."""
    pump = Pump()
    pump.start()
    tasks: set[asyncio.Task[None]] = set()

    def answer_soon(leg: SipLeg) -> None:
        task = asyncio.create_task(_answer(leg))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    legs = SipLegFactory(RtpPorts("127.0.0.1", 20000, 39998, rest_seconds=0.0), pump, answer_soon)
    _, port = await legs.open("127.0.0.1", 0, sip.UserAgentSettings(admit=lambda host: "load", max_calls=5000))
    reduce_garbage_collection()
    print("port", port, flush=True)
    await asyncio.Event().wait()


async def _answer(leg: SipLeg) -> None:
    ended = asyncio.Event()
    leg.listen(lambda event: ended.set())
    try:
        media = await leg.answer()
    except LegGone:
        return
    media.start(lambda pcm, now: None, lambda: _FRAME)
    await ended.wait()
    await leg.hang_up(EndReason.CALLER_HANGUP)


def run_server_process() -> None:
    """Run `serve` as a real server runs, on uvloop if it is installed."""
    # The thread that sends must not wait for the interpreter lock as long as the default of 5 ms.
    sys.setswitchinterval(0.0002)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())


_MAX_CALL_SECONDS = 20.0
"""Time for a short call, from INVITE to the answer to its BYE."""
_MEDIA_PORT = 40_000
"""Nothing listens there: short calls end before any audio comes."""


class ShortCalls:
    """Short calls to one server: each hangs up as soon as it is answered."""

    def __init__(self, endpoint: sip.Endpoint, target: str) -> None:
        self.set_up: list[float] = []
        """Seconds from INVITE to answer."""
        self.failures = 0
        self._endpoint = endpoint
        self._target = target

    async def place_call(self) -> None:
        """Place one call; return when its BYE is answered, or when it has failed."""
        began = self._endpoint.now()
        call = await self._endpoint.call(self._target, body=_offer)
        call.listen(lambda event: self._take_event(call, event, began))
        try:
            async with asyncio.timeout(_MAX_CALL_SECONDS):
                await call.closed.wait()
        except TimeoutError:
            self.failures += 1

    def _take_event(self, call: sip.EndpointCall, event: sip.Event, began: float) -> None:
        if isinstance(event, sip.CallAnswered):
            self.set_up.append(self._endpoint.now() - began)
            call.hang_up()
        elif isinstance(event, sip.CallEnded) and event.status != 200:
            self.failures += 1


def _offer(host: str) -> bytes:
    return sip.Negotiation(host, _MEDIA_PORT, 1, loopback=True).offer()


async def load_server(target: str, rate: float, seconds: float) -> dict[str, object]:
    """Place `rate` short calls a second for `seconds`, and return their figures."""
    endpoint = await sip.Endpoint.open(
        "127.0.0.1", 0, sip.UserAgentSettings(admit=lambda host: "server", max_calls=5000)
    )
    short_calls = ShortCalls(endpoint, target)
    # A full garbage collection takes 100 ms and more; all calls due in that time would then come at once.
    reduce_garbage_collection()
    began, count = endpoint.now(), round(rate * seconds)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(began + number / rate - endpoint.now())
            group.create_task(short_calls.place_call())
        sent = endpoint.now() - began
    await endpoint.close()
    return {
        "calls": count,
        "failures": short_calls.failures + count - len(short_calls.set_up),
        "set_up": short_calls.set_up,
        "calls_per_second": count / sent,
    }


def main() -> None:
    """Run one of the two processes of this benchmark."""
    parser = argparse.ArgumentParser(prog="python -m callagent.bench.signalling")
    processes = parser.add_subparsers(dest="process", required=True)
    processes.add_parser("serve")
    load = processes.add_parser("load")
    load.add_argument("target")
    load.add_argument("--rate", type=float, required=True)
    load.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    if options.process == "serve":
        run_server_process()
    else:
        print(json.dumps(asyncio.run(load_server(options.target, options.rate, options.seconds))))


if __name__ == "__main__":
    main()
