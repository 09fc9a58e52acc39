"""The factory of SIP legs, for received and placed calls, and the check that no media goes to our own addresses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from callagent import sip
from callagent.call_info import NO_HEADERS
from callagent.json_values import MutableJsonObject
from callagent.legs.leg import LegGone, TooManyCalls, TransferTarget
from callagent.legs.sip.identity import caller_address, number_at
from callagent.legs.sip.leg import MediaOfTrunk, SipLeg, TrunkMedia, default_media
from callagent.legs.sip.transfer import TransferableLeg
from callagent.log import get_logger
from callagent.rtp import (
    PortsExhausted,
    Pump,
    RtpPorts,
    RtpSession,
    RtpSettings,
    available_codecs,
    prepare_srtp,
)

MIN_FREE_PORTS = 0.05
"""The share of free media ports below which incoming calls are refused with 503."""
RETRY_AFTER = {"Retry-After": "10"}
"""Header of a refusal for lack of resources, in seconds."""

log = get_logger(__name__)


def _allow_any_call(trunk: str) -> bool:
    """Allow each call at once."""
    return True


class SipLegFactory:
    """The SIP endpoint of the server as a source of legs, with its media ports and trunks."""

    def __init__(
        self,
        ports: RtpPorts,
        pump: Pump,
        on_leg: Callable[[SipLeg], None] | None = None,
        rtp: RtpSettings | None = None,
        media: MediaOfTrunk = default_media,
    ) -> None:
        """`on_leg` takes each incoming call, to which only 100 was answered so far; without it all are refused."""
        self._ports = ports
        self._own_addresses = OwnAddresses(ports)
        self._pump = pump
        self._on_leg = on_leg
        self._rtp = rtp or RtpSettings()
        self._media = media
        self._endpoint: sip.Endpoint | None = None
        self._trunks: sip.Trunks | None = None
        self._may_call: Callable[[str], bool] = _allow_any_call

    async def open(
        self, host: str, port: int, settings: sip.UserAgentSettings, tls: sip.TlsSettings | None = None
    ) -> tuple[str, int]:
        """Listen on UDP and return the address. Raises `OSError`."""
        # The search for codecs takes tens of milliseconds and starts a process, which must not happen during calls.
        available_codecs()
        on_invite = None if self._on_leg is None else self._accept
        self._endpoint = await sip.Endpoint.open(host, port, settings, on_invite, tls=tls)
        self._own_addresses.public_address = settings.public_address
        self._own_addresses.signalling_ports.add(self._endpoint.local_address[1])
        if on_invite is not None:
            prepare_srtp()
            self._endpoint.prepare()
        return self._endpoint.local_address

    async def listen(self, transport: str, host: str, port: int) -> tuple[str, int]:
        """Listen on `tcp` or `tls` as well and return the address. Raises `OSError`."""
        address = await self._require_endpoint().listen(transport, host, port)
        self._own_addresses.signalling_ports.add(address[1])
        return address

    def add_trunks(
        self, trunks: Sequence[sip.TrunkSettings], may_call: Callable[[str], bool] = _allow_any_call
    ) -> sip.Trunks:
        """Place calls through these trunks from now on, and return them for the caller to start and close.

        `may_call` is asked with the trunk's name before each call is placed; it returns False if the call is too soon.
        """
        self._may_call = may_call
        self._trunks = sip.Trunks(self._require_endpoint(), trunks)
        return self._trunks

    async def dial(
        self,
        target: str,
        *,
        caller: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        trunk: sip.TrunkSettings | None = None,
    ) -> SipLeg:
        """Call a SIP URI; the leg's `answer()` waits for the peer.

        Raises `ValueError`, `OSError`, `PortsExhausted`, and `TooManyCalls` for a trunk that is called too often.
        """
        endpoint = self._require_endpoint()
        proxy = None if trunk is None else trunk.server
        if trunk is None and self._trunks is not None:
            trunk = self._trunks.find_by_host(sip.Uri.parse(target))
        self._check_call_rate(trunk)
        # A registrar may have named proxies that our calls have to pass (RFC 3608).
        route = () if trunk is None or self._trunks is None else self._trunks.service_route(trunk.name)
        credentials = None if trunk is None else trunk.credentials
        media = self._media("" if trunk is None else trunk.name)
        session = self._session()
        negotiations: list[sip.Negotiation] = []

        # The offer names our address as the peer reaches it, which is known once the endpoint has resolved the target.
        def offer(host: str) -> bytes:
            negotiations.append(negotiation_towards(target, host, session.local_port, media))
            return negotiations[0].offer()

        try:
            call = await endpoint.call(
                target, caller=caller, body=offer, headers=headers, credentials=credentials, proxy=proxy, route=route
            )
        except (ValueError, OSError):
            # No leg owns the session yet, so its port would be lost.
            session.close()
            raise
        if call.core.outgoing:
            negotiations[0].refuse_target = self._own_address_check(call.core.peer_host)
        return SipLeg(call, session, negotiations[0], media, self.dial_target)

    def _check_call_rate(self, trunk: sip.TrunkSettings | None) -> None:
        if trunk is not None and not self._may_call(trunk.name):
            raise TooManyCalls(
                f"trunk '{trunk.name}': more calls a second than its calls_per_second allows", "calls_per_second"
            )

    async def dial_target(self, leg: TransferableLeg, target: TransferTarget) -> SipLeg:
        """Call a target for the peer of `leg`, or for a trunk to do so. Raises `ValueError`, `OSError`, `LegGone`."""
        return await self.dial_for(target, leg.info.caller, leg.call.trunk)

    async def dial_for(self, target: TransferTarget, caller: str | None = None, trunk_name: str = "") -> SipLeg:
        """Call a target for `caller`, whose call came through `trunk_name`; None: the number is withheld.

        Raises as `dial_target`.
        """
        trunk = self._trunk_to(trunk_name, target)
        uri = number_at(trunk.server, target.uri) if trunk is not None and ":" not in target.uri else target.uri
        # A withheld number stays withheld towards the target, but a number in the settings of the target is shown.
        shown = target.caller or caller
        address = caller_address(shown, trunk.server if trunk is not None else None)
        headers = target.headers if shown else {"Privacy": "id", **target.headers}
        try:
            return await self.dial(uri, caller=address, headers=headers, trunk=trunk)
        except PortsExhausted:
            raise LegGone("no media port is free") from None

    def _trunk_to(self, caller_trunk: str, target: TransferTarget) -> sip.TrunkSettings | None:
        """Return the trunk that leads to a target; None for a URI without a trunk. Raises `ValueError`."""
        if ":" in target.uri and not target.trunk:
            return None
        if self._trunks is None:
            raise ValueError(f"target '{target.name}': a number needs a trunk, and none is set")
        trunk = self._trunks.find_by_name(target.trunk or caller_trunk)
        if trunk is None:
            raise ValueError(f"target '{target.name}': no trunk leads to {target.uri}; name one with 'trunk'")
        return trunk

    def signalling(self, call_id: str) -> list[MutableJsonObject]:
        """Remove the SIP messages of a Call-ID from the trace, and return them as the record stores them."""
        # The trace has monotonic times: two readings of both clocks turn them into dates.
        now, moment = asyncio.get_running_loop().time(), datetime.now(UTC)
        return [
            {
                "at": (moment - timedelta(seconds=now - one.at)).isoformat(timespec="milliseconds"),
                "sent": one.sent,
                "peer": one.peer,
                "line": one.line,
                "text": one.text,
            }
            for one in self._require_endpoint().trace.take(call_id)
        ]

    async def close(self) -> None:
        """Hang up the calls that are still on, and close the sockets."""
        if self._endpoint is not None:
            await self._endpoint.close()

    def _accept(self, call: sip.EndpointCall) -> None:
        """Make the leg of an incoming call, or refuse it: 503 without resources, 488 for an unusable offer."""
        if self._on_leg is None or self._ports.free_share < MIN_FREE_PORTS:
            call.hang_up(status=503, headers=RETRY_AFTER)
            return
        try:
            session = self._session()
        except PortsExhausted:
            log.warning("media_ports_exhausted")
            call.hang_up(status=503, headers=RETRY_AFTER)
            return
        except OSError as error:
            # No file descriptor is free, or no memory for a socket.
            log.warning("media_socket_not_opened", error=str(error))
            call.hang_up(status=503, headers=RETRY_AFTER)
            return
        try:
            negotiation, media = self._negotiation(call, session), self._media(call.trunk)
            leg = SipLeg(call, session, negotiation, media, self.dial_target)
        except ValueError as error:
            log.info("offer_refused", why=str(error))
            session.close()
            call.hang_up(status=488)
            return
        self._on_leg(leg)

    def _negotiation(self, call: sip.EndpointCall, session: RtpSession) -> sip.Negotiation:
        dialog = call.core.dialog
        assert dialog is not None, "a received INVITE has made a dialog"
        negotiation = negotiation_with(dialog.peer, call.local_host(), session.local_port, self._media(call.trunk))
        negotiation.refuse_target = self._own_address_check(dialog.peer.host)
        return negotiation

    def _own_address_check(self, peer: str) -> Callable[[str, int], bool]:
        """Return the function that refuses our own addresses as media targets of a peer with this IP address."""
        own = self._own_addresses
        return lambda host, port: own.refuse(host, port, peer)

    def _session(self) -> RtpSession:
        return RtpSession(asyncio.get_running_loop(), self._ports, self._pump, self._rtp)

    def _require_endpoint(self) -> sip.Endpoint:
        if self._endpoint is None:
            raise RuntimeError("SipLegFactory.open() must be called first")
        return self._endpoint


def negotiation_with(hop: sip.Hop, local: str, port: int, media: TrunkMedia) -> sip.Negotiation:
    """Return the negotiation of a call whose signalling came over `hop`; we take its audio at `local` and `port`."""
    return _negotiation(local, port, media, tls=hop.transport == "tls", peer=hop.host)


def negotiation_towards(target: str, local: str, port: int, media: TrunkMedia) -> sip.Negotiation:
    """Return the negotiation of a call that we place. Raises `ValueError` for a target that is no URI."""
    uri = sip.Uri.parse(target)
    tls = uri.scheme == "sips" or (uri.parameters.get("transport") or "").lower() == "tls"
    return _negotiation(local, port, media, tls=tls, peer=None)


def _negotiation(local: str, port: int, media: TrunkMedia, *, tls: bool, peer: str | None) -> sip.Negotiation:
    # A peer that reaches us over loopback is on this machine: its media may be here as well, and nobody else can read
    # the SRTP keys in its SDP.
    loopback = ip_address(local).is_loopback
    installed = available_codecs()
    codecs = tuple(name for name in media.codecs or installed if name in installed)
    policy = sip.MediaPolicy(codecs, media.encryption, confidential=tls or loopback)
    return sip.Negotiation(local, port, random.getrandbits(31), loopback=loopback, policy=policy, peer=peer)


def is_of_this_machine(host: str) -> bool:
    """Whether an IP address belongs to this machine: packets to it would leave from that address itself."""
    return ip_address(host).is_loopback or sip.route_to(host) == host


class OwnAddresses:
    """The addresses of this server, which no peer may name as the target of our packets.

    Otherwise it could have us send audio to ourselves, or to other programs of this machine.

    A peer on this machine (a softphone, a PBX) has its media here as well, so only the ports that we hold are refused
    to it. `public_address` may belong to a NAT with others behind it, so only our ports are refused there. To all other
    peers every address of this machine is refused.
    """

    def __init__(self, ports: RtpPorts, is_local: Callable[[str], bool] = is_of_this_machine) -> None:
        self.signalling_ports: set[int] = set()
        self.public_address: str | None = None
        self._ports = ports
        self._is_local = is_local

    def refuse(self, host: str, port: int, peer: str | None) -> bool:
        """Whether media must not go to this address. `peer` is the IP address of the peer's signalling."""
        if self._is_local(host):
            # A peer that reaches us at our own public address comes from this machine, by way of the router.
            on_this_machine = peer is not None and (peer == self.public_address or self._is_local(peer))
            return not on_this_machine or port in self.signalling_ports or self._ports.holds(port)
        return host == self.public_address and (port in self.signalling_ports or self._ports.covers(port))
