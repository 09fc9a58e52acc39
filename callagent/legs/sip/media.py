"""What a trunk's media may be, and what an offer and answer mean for the media session."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address

from callagent.rtp import RtpParameters, RtpPorts, SrtpKeys, available_codecs, open_codec
from callagent.sip import FRAME_TIME, Agreement, Encryption, Hop, MediaPolicy, Negotiation, Uri, route_to


@dataclass(frozen=True, slots=True)
class TrunkMedia:
    codecs: tuple[str, ...] = ()
    """As we offer them; empty: all that are installed."""
    encryption: Encryption = Encryption.ALLOWED
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Where the trunk's media may come from besides the address in its SDP."""
    in_band_digits: bool = False
    """Whether digits that we send are tones in the audio, for peers without RFC 4733, and whether keys are read in the
    audio although telephone events were negotiated. Where they were not, keys are always read there."""
    trusted: bool = True
    """Whether what its headers say of the caller is believed (RFC 3325 §4)."""


ANY_MEDIA = TrunkMedia()
MediaOfTrunk = Callable[[str], TrunkMedia]
"""By the trunk's name; empty for a peer that is none."""


def any_trunk(_: str) -> TrunkMedia:
    return ANY_MEDIA


def negotiation_with(hop: Hop, local: str, port: int, media: TrunkMedia) -> Negotiation:
    """For a call whose signalling came over `hop` and whose audio we take at `local` and `port`."""
    return _negotiation(local, port, media, tls=hop.transport == "tls", peer=hop.host)


def negotiation_towards(target: str, local: str, port: int, media: TrunkMedia) -> Negotiation:
    """For a call that we place. Raises `ValueError`."""
    uri = Uri.parse(target)
    tls = uri.scheme == "sips" or (uri.parameters.get("transport") or "").lower() == "tls"
    return _negotiation(local, port, media, tls=tls, peer=None)


def _negotiation(local: str, port: int, media: TrunkMedia, *, tls: bool, peer: str | None) -> Negotiation:
    # A peer that reaches us over loopback is on this machine: so may be its media, and nobody else reads its keys.
    loopback = ip_address(local).is_loopback
    installed = available_codecs()
    codecs = tuple(name for name in media.codecs or installed if name in installed)
    policy = MediaPolicy(codecs, media.encryption, confidential=tls or loopback)
    return Negotiation(local, port, random.getrandbits(31), loopback=loopback, policy=policy, peer=peer)


def rtp_parameters(agreement: Agreement, media: TrunkMedia) -> RtpParameters:
    """Raises `ValueError` for a codec that is not installed."""
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
    """Whether an IP address is one of this machine's: packets to it would leave from that address itself."""
    return ip_address(host).is_loopback or route_to(host) == host


class OwnAddresses:
    """A peer that names one of them would have us send audio to ourselves, or to other programs of this machine.

    A peer on this machine (a softphone, a PBX) has its media here as well: of our own addresses only the ports that we
    hold are refused to it. `public_address` may be a translator's and others may be behind it too: only our ports there
    are ours. To all other peers every address of this machine is refused.
    """

    def __init__(self, ports: RtpPorts, is_local: Callable[[str], bool] = is_of_this_machine) -> None:
        self.signalling_ports: set[int] = set()
        self.public_address: str | None = None
        self._ports = ports
        self._is_local = is_local

    def refuse(self, host: str, port: int, peer: str | None) -> bool:
        """Whether media may not go there. `peer` is the IP address of the peer's signalling."""
        if self._is_local(host):
            on_this_machine = peer is not None and (peer == self.public_address or self._is_local(peer))
            return not on_this_machine or port in self.signalling_ports or self._ports.holds(port)
        return host == self.public_address and (port in self.signalling_ports or self._ports.covers(port))
