"""The test phone's SIP line."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import random
from typing import Any

from callagent.call_info import EndReason
from callagent.errors import UserError
from callagent.legs import CallerHungUp, LegEvent, LegFailed, LegGone, Media
from callagent.legs.sip import SipLeg, SipLegs
from callagent.rtp import PortsExhausted, Pump, RtpPorts
from callagent.sip import Uri, UserAgentSettings, transport_of

ANSWER_SECONDS = 30.0
_REMEDIES = {
    486: "; a number may make so many calls at once and per minute (limits.caller_calls…): --caller calls from another"
}
_PORTS = (30000, 39999)


class LossyPorts(RtpPorts):
    """Ports whose sockets lose a share of what is sent, 0 to 1."""

    share = 0.0

    def bind(self) -> socket.socket:
        bound = super().bind()
        lossy = _LossySocket(bound.family, bound.type, bound.proto, bound.detach())
        lossy.setblocking(False)
        lossy.ports = self
        return lossy


class _LossySocket(socket.socket):
    ports: LossyPorts

    def sendto(self, data: Any, *where: Any) -> int:
        return len(data) if random() < self.ports.share else super().sendto(data, *where)


class SipLine:
    """Implements `Line` over an outgoing SIP leg. A transfer that the server asks for is reported as answered."""

    def __init__(self, leg: SipLeg, media: Media, ports: LossyPorts) -> None:
        self.media = media
        self._ports = ports
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_transfer: Callable[[str], None] = lambda target: None
        self.transfer_headers: Mapping[str, str] = {}
        """Of the newest transfer that the server asked for."""
        self._leg = leg
        leg.on_transfer_request = self._transfer
        leg.listen(self._event)

    async def send_digits(self, digits: str) -> None:
        await self._leg.send_digits(digits)

    def lose(self, share: float) -> None:
        self._ports.share = share

    async def hang_up(self) -> None:
        await self._leg.hang_up(EndReason.CALLER_HANGUP)

    def _transfer(self, target: str, headers: Mapping[str, str]) -> None:
        self.transfer_headers = headers
        self.on_transfer(target)
        self._leg.report_transfer(200)

    def _event(self, event: LegEvent) -> None:
        if isinstance(event, CallerHungUp | LegFailed) and not self.ended.done():
            self.ended.set_result("the server hung up" if isinstance(event, CallerHungUp) else event.detail)


@asynccontextmanager
async def dial_sip(target: str, caller: str) -> AsyncIterator[SipLine]:
    """Call a SIP URI; the line once it is answered. Raises `UserError` when it is not."""
    host = _local_host(target)
    if host != "0.0.0.0" and transport_of(Uri.parse(target)) == "udp":
        _expect_listener(host, target)
    pump = Pump()
    pump.start()
    ports = LossyPorts(host, *_PORTS)
    legs = SipLegs(ports, pump)
    try:
        await legs.open(host, 0, UserAgentSettings(admit=lambda source: "phone", accepts_transfers=True))
        leg = await _dialled(legs, target, f"sip:{caller}@{host}")
        try:
            yield SipLine(leg, await _answered(leg, target), ports)
        finally:
            await leg.hang_up(EndReason.CALLER_HANGUP)
    finally:
        await legs.close()
        pump.stop()


async def _dialled(legs: SipLegs, target: str, caller: str) -> SipLeg:
    try:
        return await legs.dial(target, caller=caller)
    except (ValueError, OSError, PortsExhausted) as error:
        raise UserError(f"'{target}' cannot be called: {error}") from None


async def _answered(leg: SipLeg, target: str) -> Media:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await leg.answer()
    except LegGone as gone:
        raise UserError(f"{target} did not answer: {gone}{_REMEDIES.get(gone.status, '')}") from None
    except TimeoutError:
        raise UserError(f"{target} did not answer within {ANSWER_SECONDS:.0f} s; is the server running?") from None


def _local_host(target: str) -> str:
    """Loopback for a server on this machine, else every interface. Raises `UserError`."""
    try:
        uri = Uri.parse(target)
    except ValueError:
        raise UserError(f"'{target}' is not a SIP URI; write sip:USER@HOST:PORT") from None
    host = uri.bare_host
    if host == "::1":
        return "::1"
    return "127.0.0.1" if host == "localhost" or host.startswith("127.") else "0.0.0.0"


def _expect_listener(host: str, target: str) -> None:
    """Raise `UserError` where this machine itself says that nobody listens; retransmissions would take 32 s to tell."""
    uri = Uri.parse(target)
    peer = uri.bare_host if uri.bare_host != "localhost" else host
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, uri.port or 5060))
            # The keep-alive of RFC 5626 §3.5.1; on loopback the refusal of the first is there before the second.
            probe.send(b"\r\n\r\n")
            probe.send(b"\r\n\r\n")
        except ConnectionRefusedError:
            where = f"{peer} port {uri.port or 5060}"
            raise UserError(f"nobody listens on {where}; start the server there: callagent serve") from None
        except OSError as error:
            raise UserError(f"'{target}' cannot be called: {error.strerror or error}") from None
