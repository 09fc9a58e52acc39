"""Over a link that loses a part of everything: each digit counts once, and no call is forgotten or left behind."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from callagent.rtp import PCMU, Pump, RtpParameters, RtpPorts, RtpSession
from callagent.sip import CallAnswered, CallEnded, Endpoint, EndpointCall, Event, Negotiation, UserAgentSettings
from tests.end_to_end.scripted import MILL, scripts, until
from tests.end_to_end.server_process import ServerProcess, serve
from tests.lossy_link import BAD, Damage, LossyLink, relay

pytestmark = [pytest.mark.end_to_end, pytest.mark.acceptance("media")]

DIGITS = 1000
CALLS = 1000
AT_ONCE = 40
SIGNALLING_LOSS = 0.3
FORGOTTEN = 32.0
"""64 * T1 (RFC 3261 §17.1.1.2)."""


async def test_a_thousand_digits_through_real_sockets_each_once_and_in_order() -> None:
    pump = Pump()
    pump.start()
    ports = RtpPorts("127.0.0.1", 48000, 48998, rest_seconds=0.0)
    async with asyncio.TaskGroup() as group:
        for share in BAD:
            group.create_task(digits_through(share, ports, pump))
    pump.stop()


async def digits_through(share: float, ports: RtpPorts, pump: Pump) -> None:
    loop = asyncio.get_running_loop()
    link = LossyLink(BAD[share], 1)
    sender, receiver = RtpSession(loop, ports, pump), RtpSession(loop, ports, pump)
    digits = "".join(random.Random(share).choices("0123456789*#ABCD", k=DIGITS))
    heard: list[str] = []
    receiver.on_digit = heard.append
    async with relay(link) as between:
        between.join(("127.0.0.1", sender.local_port), ("127.0.0.1", receiver.local_port))
        sender.connect(between.left.address, RtpParameters(PCMU, 101))
        receiver.connect(between.right.address, RtpParameters(PCMU, 101))
        for session in (sender, receiver):
            session.start(lambda frame, now: None, lambda: None)
        await sender.send_digits(digits)
        await until(lambda: len(heard) >= DIGITS, 5.0, lambda: f"{share}: {len(heard)} digits")
        statistics = receiver.statistics()
    sender.close()
    receiver.close()
    assert "".join(heard) == digits
    sys.stderr.write(f"\n{share:.0%}: {DIGITS} digits; {statistics}\n")
    assert statistics.packets_lost + statistics.packets_late > 0.5 * share * statistics.packets_received


class Callers:
    """Places calls over the bad link and hangs up at any moment."""

    def __init__(self, endpoint: Endpoint, target: str) -> None:
        self._endpoint = endpoint
        self._target = target
        self._chance = random.Random(3)
        self._room = asyncio.Semaphore(AT_ONCE)
        self.ends: Counter[str] = Counter()
        self.dialogs: list[tuple[str, str, str]] = []
        """Call-ID, our tag, the server's tag."""

    async def place(self) -> None:
        async with self._room:
            answered = asyncio.Event()

            def listen(event: Event) -> None:
                if isinstance(event, CallAnswered | CallEnded):
                    answered.set()
                if isinstance(event, CallEnded):
                    self.ends[f"{event.cause.value} {event.status or ''}".strip()] += 1

            call = await self._endpoint.call(
                self._target, body=lambda host: Negotiation(host, 40002, 1, loopback=True).offer()
            )
            call.listen(listen)
            # One in five gives up without waiting for the answer.
            patience = self._chance.uniform(0.0, 1.0) if self._chance.random() < 0.2 else 64.0
            try:
                async with asyncio.timeout(patience):
                    await answered.wait()
                await asyncio.sleep(self._chance.uniform(0.0, 0.5))
            except TimeoutError:
                pass
            self._keep(call)
            call.hang_up()
            await call.closed.wait()

    def _keep(self, call: EndpointCall) -> None:
        dialog = call.core.dialog
        if dialog is not None:
            self.dialogs.append((dialog.call_id, dialog.local.tag or "", dialog.remote.tag or ""))


async def test_a_thousand_calls_leave_a_thousand_records_and_no_dialog(tmp_path: Path) -> None:
    settings = scripts(tmp_path, ["weigh it"] * 3, [{"text": "It is noted."}] * 3)
    link = LossyLink(Damage(SIGNALLING_LOSS), 2)
    seen: set[str] = set()
    names: list[tuple[bytes, bytes]] = []

    def to_server(data: bytes) -> bytes:
        if data.startswith(b"INVITE"):
            seen.add(data.partition(b"Call-ID: ")[2].partition(b"\r\n")[0].decode())
        # Each side knows only the relay: in-dialog requests go over it too.
        for ours, theirs in names:
            data = data.replace(ours, theirs)
        return data

    def to_phone(data: bytes) -> bytes:
        for ours, theirs in names:
            data = data.replace(theirs, ours)
        return data

    with serve(tmp_path, project=MILL, **settings) as server:
        endpoint = await Endpoint.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: "server"))
        async with relay(link, to_server, to_phone) as between:
            phone, agent = endpoint.local_address, ("127.0.0.1", server.sip_port)
            between.join(phone, agent)
            names += [(written(phone), written(between.right.address)), (written(between.left.address), written(agent))]
            callers = Callers(endpoint, f"sip:agent@{written(between.left.address).decode()}")
            async with asyncio.TaskGroup() as group:
                for _ in range(CALLS):
                    group.create_task(callers.place())
            records = await asyncio.to_thread(server.wait_for_records, len(seen), 120.0)
            await endpoint.close()
        await asyncio.sleep(FORGOTTEN)
        sys.stderr.write(f"\n{link.lost} of {link.lost + link.passed} lost; ends {callers.ends}\n")
        assert link.lost > 0.25 * (link.lost + link.passed)
        # All seven INVITEs that Timer B leaves time for are lost once in about five thousand calls (0.3 ** 7).
        assert CALLS - 5 <= len(seen) <= CALLS
        assert len(records) == len({record["id"] for record in records}) == len(seen)
        assert not any(record["in_progress"] for record in records)
        assert {answer_to_bye(server, dialog) for dialog in callers.dialogs} == {"481"}
        assert len(callers.dialogs) > 0.7 * CALLS
        assert "Traceback" not in server.errors.read_text()


def written(address: tuple[str, int]) -> bytes:
    return f"{address[0]}:{address[1]}".encode()


def answer_to_bye(server: ServerProcess, dialog: tuple[str, str, str]) -> str:
    """The status with which the server answers a BYE in the dialog: 481 when it knows none such."""
    call_id, ours, theirs = dialog
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.settimeout(5)
        here = f"127.0.0.1:{peer.getsockname()[1]}"
        lines = [
            f"BYE sip:agent@{server.sip} SIP/2.0",
            f"Via: SIP/2.0/UDP {here};branch=z9hG4bK{uuid4().hex}",
            f"From: <sip:caller@{here}>;tag={ours}",
            f"To: <sip:agent@{server.sip}>;tag={theirs}",
            f"Call-ID: {call_id}",
            "CSeq: 900 BYE",
            "Max-Forwards: 70",
            "Content-Length: 0",
        ]
        peer.sendto("\r\n".join([*lines, "", ""]).encode(), ("127.0.0.1", server.sip_port))
        return peer.recv(65536).decode().split()[1]
