"""What ended calls leave behind: objects that only the garbage collector can free, and resident memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from callagent.call_info import EndReason
from callagent.phone.lines import StreamPhone
from callagent.records import read_calls
from tests.carriers.twilio.fake_twilio import ACCOUNT_SID, AUTH_TOKEN, fake_twilio
from tests.end_to_end.baresip import free_port
from tests.end_to_end.collected_server import Note, read_notes
from tests.end_to_end.scripted import MILL, Talker, scripts, talker, until
from tests.end_to_end.server_process import ServerProcess, serve
from tests.end_to_end.test_bridge import Miller, miller
from tests.end_to_end.test_sipp_load import sipp
from tests.own_time import own_time

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]

MAX_UNREACHABLE = 20
"""Objects per ended call that only the garbage collector frees."""
MAX_COLLECTION_SECONDS = 0.005
"""Of the loop's thread; no packet is sent while it collects."""
MAX_SLOPE = 1024
"""Bytes of resident memory per call."""
WARM_CALLS, CALLS, STEP = 500, 5_000, 500
PACE = ("-r", "15", "-d", "500")
"""Calls a second, and how many milliseconds they last: what two cores take that are busy with other work as well."""
PACE_WARM = ("-r", "30", "-d", "3000")
"""Of the first: more at a time than later. The allocator keeps what the busiest moment took, and uses it again."""
WAYS = {"+15550102": "cousin", "+15550103": "chief"}
"""To whom callers are put through: by REFER, and by a call before it. Others: to the miller, with us in between."""
HANDOFF = """\
  - name: {name}
    description: Another one
    sip_config:
      method: refer
      phone_number: "+15550123"
"""
ORDERS = [
    {"calls": [{"name": "person_wanted"}]},
    {"text": "The miller does not answer. Anything else?"},
    {"text": "Goodbye."},
]


class Collected:
    """A server whose garbage collector is watched."""

    def __init__(self, server: ServerProcess, notes: Path) -> None:
        self.server = server
        self._notes = notes

    def notes(self) -> list[Note]:
        """One of every collection so far."""
        return read_notes(self._notes)

    async def collect(self) -> Note:
        """Run a full collection and return its note."""

        def asked() -> list[Note]:
            return [note for note in self.notes() if note.asked]

        before = len(asked())
        os.kill(self.server.process.pid, signal.SIGUSR1)
        await until(lambda: len(asked()) > before, 60)
        return asked()[-1]

    async def ended(self, calls: int, seconds: float = 120.0) -> None:
        """Wait until the server has forgotten so many calls: their records are final."""

        def final() -> bool:
            ended = [call["ended_at"] for call in read_calls(self.server.store, limit=100_000)]
            return len(ended) - ended.count(None) >= calls

        await until(final, seconds, lambda: self.server.errors.read_text()[-2000:])

    def resident(self, kind: str = "VmRSS") -> int:
        """Bytes; of kind `RssAnon` without what is a file's, which the kernel takes back when it needs it."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind)) * 1024


@contextmanager
def collected(folder: Path, *arguments: str, project: Path = MILL, **settings: str) -> Iterator[Collected]:
    notes = folder / "notes.jsonl"
    program = ("tests.end_to_end.collected_server", str(notes))
    with serve(folder, *arguments, project=project, program=program, **settings) as server:
        yield Collected(server, notes)


async def talk(server: ServerProcess) -> None:
    """The caller speaks over the greeting, is put through, and leaves."""
    async with talker(server.sip) as caller:
        await caller.speaks(1)
        await caller.say()
        await caller.listen(2)
        await asyncio.sleep(1.0)


async def be_transferred(server: ServerProcess, number: str) -> None:
    """The caller is put through by REFER: the server hangs up once it has heard the outcome."""
    async with talker(server.sip, number) as caller:
        await caller.listen(1)
        await caller.say()
        await caller.ended()


def cancel(folder: Path, server: ServerProcess, calls: int) -> None:
    """Callers who hang up while it rings."""
    scenario = Path(__file__).parent / "sipp" / "cancel.xml"
    command = ["sipp", "-sf", str(scenario), "-s", "agent", "-m", str(calls), "-i", "127.0.0.1", "-mi", "127.0.0.1"]
    done = subprocess.run(
        [*command, "-nostdin", "-timeout", "60", "-timeout_error", server.sip],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


async def stream(url: str) -> None:
    fields = {"AccountSid": ACCOUNT_SID}
    with own_time() as clock:
        async with StreamPhone.dial(url + "/twilio/voice", AUTH_TOKEN, "+15550100", "+15550199", fields) as phone:
            caller = Talker(phone, clock)
            await caller.listen(1)


async def browse(url: str, headers: dict[str, str]) -> None:
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(url + "/api/phone", origin=url) as page,
    ):
        async with asyncio.timeout(60):
            async for message in page:
                if '"answered"' in message.data:
                    break


async def serve_targets(person: Miller) -> None:
    """Answer the calls for the chief, and every other one for the miller; refuse the others."""
    answers = itertools.cycle([True, False])
    while True:
        leg = await person.legs.get()
        if leg.info.callee == "chief" or next(answers):
            (await leg.answer()).start(lambda pcm, now: None, lambda: None)
        else:
            await leg.hang_up(EndReason.REJECTED)


def mill_of_many_ways(folder: Path) -> Path:
    """A mill that puts callers through as their number says, and rings for two seconds where a call has X-Customer."""
    project = shutil.copytree(MILL, folder / "mill")
    functions, handoffs = project / "functions", project / "config" / "handoffs.yaml"
    start, wanted = functions / "start_function.py", functions / "person_wanted.py"
    start.write_text(
        start.read_text() + '    if conv.sip_headers.get("X-Customer"):\n        __import__("time").sleep(2)\n'
    )
    wanted.write_text(wanted.read_text().replace('"miller"', f'{WAYS}.get(conv.caller_number, "miller")'))
    for name in WAYS.values():
        handoffs.write_text(handoffs.read_text() + HANDOFF.format(name=name))
    return project


def targets_of(person: Miller) -> str:
    uris = {"miller": ("invite", person.uri), "cousin": ("refer", person.uri)}
    uris["chief"] = ("attended", person.uri.replace("miller@", "chief@"))
    lines = [f'[[targets]]\nname = "{name}"\nuri = "{uri}"\nmethod = "{way}"\n' for name, (way, uri) in uris.items()]
    return "".join(lines)


@pytest.mark.end_to_end
async def test_calls_of_every_kind_leave_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    async with miller() as person, fake_twilio() as twilio:
        config = tmp_path / "callagent.toml"
        config.write_text(targets_of(person))
        url = f"http://127.0.0.1:{free_port(socket.SOCK_STREAM)}"
        settings = {
            **scripts(tmp_path, ["a person please", "no"], ORDERS),
            "HTTP__PUBLIC_URL": url,
            "TWILIO__ACCOUNT_SID": ACCOUNT_SID,
            "TWILIO__AUTH_TOKEN": AUTH_TOKEN,
            "TWILIO__API_BASE_URL": twilio.url,
            "RECORDS__RECORDINGS": str(tmp_path / "audio"),
            "LIMITS__CALLER_CALLS": "20",
            "LIMITS__CALLER_CALLS_PER_MINUTE": "20",
        }
        arguments = ("--config", str(config), "--http", url.removeprefix("http://"))
        targets = asyncio.create_task(serve_targets(person))
        with collected(tmp_path, *arguments, project=mill_of_many_ways(tmp_path), **settings) as watched:
            server = watched.server
            short = ("-m", "3", "-r", "3", "-d", "200")
            await asyncio.to_thread(sipp, tmp_path, server, *short, seconds=60)
            await watched.ended(3)
            await watched.collect()
            before = len(watched.notes())
            await asyncio.gather(
                asyncio.to_thread(sipp, tmp_path, server, *short, seconds=60),
                asyncio.to_thread(cancel, tmp_path, server, 2),
                *(talk(server) for _ in range(2)),
                *(be_transferred(server, number) for number in WAYS),
                stream(url),
                browse(url, server.login),
            )
            await watched.ended(14)
            last = await watched.collect()
            found = sum(note.unreachable for note in watched.notes()[before:])
            records = server.records()
        targets.cancel()
    ways = Counter((each["method"], each["status"]) for record in records for each in record["transfers"])
    assert ways[("refer", "succeeded")] == ways[("attended", "succeeded")] == 1, ways
    assert sum(record["end_reason"] == "cancelled" for record in records) == 2, [r["end_reason"] for r in records]
    assert found / 11 < MAX_UNREACHABLE, last.types


def slope(points: list[tuple[int, int]]) -> float:
    """Bytes per call, by least squares."""
    calls, resident = zip(*points, strict=True)
    return statistics.linear_regression(calls, resident).slope


@pytest.mark.acceptance("soak")
@pytest.mark.parametrize("attempt", [1, 2, 3])
async def test_five_thousand_calls_leave_no_trace(tmp_path: Path, attempt: int) -> None:
    # Calls hold their place until they are closed: on a slow disk some seconds more.
    settings = {**scripts(tmp_path, [], []), "LIMITS__CALLS": "1000"}
    with collected(tmp_path, **settings) as watched:
        points, anonymous = [], []
        before = 0
        for done in range(STEP, CALLS + 1, STEP):
            pace = PACE_WARM if done == WARM_CALLS else PACE
            await asyncio.to_thread(sipp, tmp_path, watched.server, "-m", str(STEP), *pace, seconds=300)
            await watched.ended(done)
            points.append((done, watched.resident()))
            anonymous.append((done, watched.resident("RssAnon")))
            before = before or len(watched.notes())
        asked = await watched.collect()
        notes = watched.notes()[before:]
    found = sum(note.unreachable for note in notes) / (CALLS - WARM_CALLS)
    longest = max((note.seconds for note in notes if not note.asked), default=0.0)
    print(  # noqa: T201
        f"run {attempt}: {found:.2f} unreachable objects per call, {slope(points):.0f} bytes per call "
        f"({slope(anonymous):.0f} anonymous), longest collection {1000 * longest:.2f} ms of {len(notes)}, "
        f"a full one {1000 * asked.seconds:.2f} ms, resident {[round(size / 2**20, 1) for _, size in points]} MB, "
        f"load {os.getloadavg()[0]:.0f}"
    )
    assert found < MAX_UNREACHABLE, asked.types
    assert slope(points) < MAX_SLOPE, points
    assert longest < MAX_COLLECTION_SECONDS
