"""A registrar behind an edge, both Kamailio: calls come to us the way that we registered (Path), ours go the way that
the registrar wants (Service-Route)."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from callagent.call_info import EndReason
from callagent.legs.leg import TransferTarget
from callagent.legs.sip.factory import SipLegFactory
from callagent.legs.sip.leg import SipLeg
from callagent.rtp import Pump, RtpPorts
from callagent.sip import TrunkSettings, Uri, UserAgentSettings
from tests.end_to_end.baresip import free_port
from tests.end_to_end.test_kamailio import stop, until_it_listens

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("kamailio") is None, reason="kamailio is not installed"),
]
SETTINGS = UserAgentSettings(admit=lambda host: "network")
PATIENCE = 60.0


@contextmanager
def kamailio(folder: Path, name: str, port: int, **values: str) -> Iterator[None]:
    folder.mkdir()
    text = (Path(__file__).parent / f"kamailio_{name}.cfg").read_text().replace("UDP_PORT", str(port))
    for key, value in values.items():
        text = text.replace(key, value)
    (folder / "kamailio.cfg").write_text(text)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["kamailio", "-f", str(folder / "kamailio.cfg"), "-DD", "-E", "-m", "32", "-M", "4",
             "-Y", str(folder), "-P", str(folder / "pid")],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until_it_listens(port, folder / "log")
        yield
    finally:
        stop(process)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The ports of the edge and of the home registrar."""
    edge, home = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    with ExitStack() as stack:
        stack.enter_context(kamailio(tmp_path / "home", "home", home, EDGE_PORT=str(edge)))
        stack.enter_context(kamailio(tmp_path / "edge", "edge", edge, NEXT=f"sip:127.0.0.1:{home}"))
        yield edge, home


class Side:
    """A set of legs and those that came in."""

    def __init__(self, pump: Pump) -> None:
        self.came: asyncio.Queue[SipLeg] = asyncio.Queue()
        self.legs = SipLegFactory(RtpPorts("127.0.0.1", 20000, 29998, rest_seconds=0.0), pump, self.came.put_nowait)
        self.port = 0

    async def open(self) -> None:
        _, self.port = await self.legs.open("127.0.0.1", 0, SETTINGS)


def route_of(leg: SipLeg) -> list[int | None]:
    dialog = leg.call.core.dialog
    assert dialog is not None
    return [each.uri.port for each in dialog.route_set]


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_calls_go_both_ways_through_edge_and_home(transport: str, network: tuple[int, int]) -> None:
    edge, home = network
    pump = Pump()
    pump.start()
    ours, phone = Side(pump), Side(pump)
    await ours.open()
    await phone.open()
    if transport == "tcp":
        await ours.legs.listen("tcp", "127.0.0.1", 0)
    server = Uri.parse(f"sip:127.0.0.1:{edge};transport={transport}")
    trunks = ours.legs.add_trunks([TrunkSettings("network", server, register=True)])
    trunks.start()
    async with asyncio.timeout(PATIENCE):
        while not trunks.states["network"].registered:
            await asyncio.sleep(0.02)
        assert [each.uri.port for each in trunks.service_route("network")] == [edge, home]

        # The home sends it back the way of the registration: through the edge.
        calling = await phone.legs.dial(f"sip:network@127.0.0.1:{home}")
        called = await ours.came.get()
        await called.answer()
        await calling.answer()
        assert {edge, home} <= set(route_of(called))
        await called.hang_up(EndReason.AGENT_HANGUP)
        assert calling.call.core.state.value == "ended"

        # The edge takes nobody's call without a route.
        target = TransferTarget("desk", f"sip:desk@127.0.0.1:{phone.port}", trunk="network")
        dialled = await ours.legs.dial_for(target)
        rang = await phone.came.get()
        assert not rang.call.core.invite.headers.values("Route")
        await rang.answer()
        await dialled.answer()
        assert set(route_of(dialled)) == {edge, home}
        await dialled.hang_up(EndReason.AGENT_HANGUP)
        assert rang.call.core.state.value == "ended"
    await trunks.close()
    await ours.legs.close()
    await phone.legs.close()
    pump.stop()
