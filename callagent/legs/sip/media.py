"""The media of SIP calls: what a trunk allows, what an offer and answer mean for RTP, and which targets are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address

from callagent.rtp import RtpParameters, RtpPorts, SrtpKeys, available_codecs, open_codec
from callagent.sip import FRAME_TIME, Agreement, Encryption, Hop, MediaPolicy, Negotiation, Uri, route_to


@dataclass(frozen=True, slots=True)
class TrunkMedia:
    """What the settings say of a trunk's media."""

    codecs: tuple[str, ...] = ()
    """Codecs in the order in which we offer them; empty: all that are installed."""
    encryption: Encryption = Encryption.ALLOWED
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks from which the trunk's media may come, besides the address in its SDP."""
    in_band_digits: bool = False
    """Whether we send digits as tones in the audio, and read keys there although telephone events (RFC 4733) were
    negotiated. Where they were not negotiated, keys are always read in the audio."""
    trusted: bool = True
    """Whether we believe what its headers say of the caller (RFC 3325 §4)."""


ANY_MEDIA = TrunkMedia()
MediaOfTrunk = Callable[[str], TrunkMedia]
"""Return the media settings of a trunk by its name, which is empty for a peer that is no trunk."""


def any_trunk(_: str) -> TrunkMedia:
    return ANY_MEDIA


def negotiation_with(hop: Hop, local: str, port: int, media: TrunkMedia) -> Negotiation:
    """Return the negotiation of a call whose signalling came over `hop`; we take its audio at `local` and `port`."""
    return _negotiation(local, port, media, tls=hop.transport == "tls", peer=hop.host)


def negotiation_towards(target: str, local: str, port: int, media: TrunkMedia) -> Negotiation:
    """Return the negotiation of a call that we place. Raises `ValueError` for a target that is no URI."""
    uri = Uri.parse(target)
    tls = uri.scheme == "sips" or (uri.parameters.get("transport") or "").lower() == "tls"
    return _negotiation(local, port, media, tls=tls, peer=None)


def _negotiation(local: str, port: int, media: TrunkMedia, *, tls: bool, peer: str | None) -> Negotiation:
    # A peer that reaches us over loopback is on this machine: so may be its media, and nobody else reads its SRTP keys.
    loopback = ip_address(local).is_loopback
    installed = available_codecs()
    codecs = tuple(name for name in media.codecs or installed if name in installed)
    policy = MediaPolicy(codecs, media.encryption, confidential=tls or loopback)
    return Negotiation(local, port, random.getrandbits(31), loopback=loopback, policy=policy, peer=peer)


def rtp_parameters(agreement: Agreement, media: TrunkMedia) -> RtpParameters:
    """Return the parameters of RTP that were agreed on. Raises `ValueError` for a codec that is not installed."""
    codec = open_codec(agreement.codec, agreement.payload_type)
    if codec is None:
        raise ValueError(f"codec {agreement.codec} is not installed")
    keys = None
    if agreement.send_key is not None and agreement.receive_key is not None:
        own, peers = agreement.send_key, agreement.receive_key
        keys = SrtpKeys(own.suite, own.key, peers.suite, peers.key)
    parameters = RtpParameters(
        codec,
        agreement.telephone_event,
        agreement.telephone_event_rate,
        own_payload_type=agreement.own_payload_type,
        own_telephone_event=agreement.own_telephone_event,
        control=agreement.control,
        keys=keys,
        packet_frames=agreement.packet_time // FRAME_TIME,
        networks=media.networks,
        in_band_digits=media.in_band_digits or agreement.telephone_event is None,
    )
    if agreement.comfort_noise is None:
        return parameters
    return replace(parameters, comfort_noise=agreement.comfort_noise)


def is_of_this_machine(host: str) -> bool:
    """Return whether an IP address is one of this machine's: packets to it would leave from that address itself."""
    return ip_address(host).is_loopback or route_to(host) == host


class OwnAddresses:
    """The media addresses of this server, which no peer may name as the target of our packets.

    It would have us send audio to ourselves, or to other programs of this machine.

    A peer on this machine (a softphone, a PBX) has its media here as well: only the ports that we hold are refused to
    it. `public_address` may be that of a NAT with others behind it: only our ports there are refused. To all other
    peers every address of this machine is refused.
    """

    def __init__(self, ports: RtpPorts, is_local: Callable[[str], bool] = is_of_this_machine) -> None:
        self.signalling_ports: set[int] = set()
        self.public_address: str | None = None
        self._ports = ports
        self._is_local = is_local

    def refuse(self, host: str, port: int, peer: str | None) -> bool:
        """Return whether media may not go there. `peer` is the IP address of the peer's signalling."""
        if self._is_local(host):
            on_this_machine = peer is not None and (peer == self.public_address or self._is_local(peer))
            return not on_this_machine or port in self.signalling_ports or self._ports.holds(port)
        return host == self.public_address and (port in self.signalling_ports or self._ports.covers(port))
