"""Offer and answer for one audio stream (RFC 3264, RFC 6337): codecs, keys, and where packets may be sent.

Other streams that a peer offers are refused. We ask for packets of 20 ms, and send packets as long as the peer asks
for, in whole frames of 20 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from callagent.sip import session_description as sdp

PLAIN = ("RTP/AVP", "RTP/AVPF")
SECURE = ("RTP/SAVP", "RTP/SAVPF")
"""Protocols of media lines without and with encryption."""
_ENCODINGS = {
    "PCMU/8000": "PCMU",
    "PCMA/8000": "PCMA",
    "G722/8000": "G722",
    # RFC 3551 §4.5.2 requires the clock rate 8000; some phones write the sampling rate.
    "G722/16000": "G722",
    "OPUS/48000": "OPUS",
}
_CLOCK_RATES = {"PCMU": 8000, "PCMA": 8000, "G722": 8000, "OPUS": 48000}
_RTPMAPS = {"PCMU": "PCMU/8000", "PCMA": "PCMA/8000", "G722": "G722/8000", "OPUS": "opus/48000/2"}
_PAYLOAD_TYPES = {"PCMU": "0", "PCMA": "8", "G722": "9", "OPUS": "107"}
_EVENT_PAYLOAD_TYPES = {8000: "101", 16000: "102", 48000: "103"}
_EVENT_PREFIX = "TELEPHONE-EVENT/"
_COMFORT_NOISE = "CN/8000"
_NOISE_PAYLOAD_TYPE = "13"
"""The payload type of comfort noise, which a peer may send us in its silences (RFC 3389 §4); we send none."""
_TIME = re.compile(r"\d{1,4}(?:\.\d{1,3})?\s*", re.ASCII)
_RTCP = re.compile(r"(\d{1,5})(?: IN IP[46] (\S+))?\s*")

FRAME_TIME = 20
"""Milliseconds of a frame."""
_MAX_PACKET_TIME = 60
"""Milliseconds of the longest packet that we send, which is the longest frame of Opus (RFC 6716 §2)."""

MIN_PORT = 1024
"""Lower ports belong to services of the system; no media is sent to them."""
_SITE_LOCAL = tuple(
    ip_network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
_LINK_LOCAL = tuple(ip_network(each) for each in ("169.254.0.0/16", "fe80::/10"))
_THIS_NETWORK = ip_network("0.0.0.0/8")


def _refuses_none(host: str, port: int) -> bool:
    return False


class NotAcceptable(ValueError):
    """The offer or answer of the peer cannot be used; the response to such an offer is 488."""


class Encryption(Enum):
    """Whether media is encrypted with keys in the SDP."""

    OFF = "off"
    ALLOWED = "allowed"
    """Used if the peer offers it; offered in a way that a peer without it still answers (RFC 8643)."""
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class MediaPolicy:
    """The codecs and the encryption that one trunk allows."""

    codecs: tuple[str, ...] = ("PCMU", "PCMA")
    """Some of PCMU, PCMA, G722 and OPUS, in the order of our offers; an answer follows the peer's order."""
    encryption: Encryption = Encryption.OFF
    confidential: bool = False
    """Whether the signalling keeps keys secret, by TLS or on one machine; otherwise no keys are offered or accepted."""

    @property
    def allows_keys(self) -> bool:
        return self.confidential and self.encryption is not Encryption.OFF

    @property
    def allows_plain(self) -> bool:
        return self.encryption is not Encryption.REQUIRED


DEFAULT_POLICY = MediaPolicy()


@dataclass(frozen=True, slots=True)
class Agreement:
    """The outcome of one offer and answer for the audio."""

    remote: tuple[str, int] | None
    """Where our packets go; None while the peer has switched the stream off or holds with 0.0.0.0."""
    codec: str
    """`PCMU`, `PCMA`, `G722` or `OPUS`."""
    telephone_event: int | None
    """Payload type of the telephone events that we send; None if the peer does not support them."""
    direction: sdp.Direction
    """From our side: SENDONLY to a peer that only listens (`a=recvonly`), RECVONLY from one that holds us."""
    payload_type: int = 0
    """The payload type of the audio that we send."""
    telephone_event_rate: int = 8000
    offered_payload_type: int | None = None
    """The payload type that our offer gave the codec: the peer may send it although its answer names another."""
    offered_telephone_event: int | None = None
    comfort_noise: int | None = None
    packet_time: int = FRAME_TIME
    """Milliseconds of audio in a packet that we send."""
    control: tuple[str, int] | None = None
    """Where RTCP goes; equal to `remote` with `rtcp-mux` (RFC 5761). None: the port above `remote`."""
    send_key: sdp.Crypto | None = None
    receive_key: sdp.Crypto | None = None

    @property
    def is_held(self) -> bool:
        """Whether the peer has stopped listening (RFC 3264 §8.4); it may stop sending and still listen (§5.1)."""
        return self.remote is None or not self.direction.sends


class Negotiation:
    """Our side of the offers and answers of one call; the origin's version grows with each change (RFC 3264 §8)."""

    def __init__(
        self,
        host: str,
        port: int,
        session_id: int,
        *,
        loopback: bool,
        policy: MediaPolicy = DEFAULT_POLICY,
        peer: str | None = None,
    ) -> None:
        """`host` and `port` are where the peer sends its audio; `loopback` allows it to name loopback addresses.

        `peer` is the IP address that the peer's signalling comes from.
        """
        self._host = host
        self._port = port
        self._session_id = session_id
        self._loopback = loopback
        self._policy = policy
        self._peer = peer
        self.refuse_target: Callable[[str, int], bool] = lambda host, port: False
        """Whether an IP address and port must not get media, because they are our own."""
        self._last: sdp.SessionDescription | None = None
        self._index = 0
        """Which of the media lines is our audio."""
        self._own_key: sdp.Crypto | None = None
        self._peer_key: sdp.Crypto | None = None

    def offer(self, direction: sdp.Direction = sdp.Direction.SENDRECV) -> bytes:
        """Return an offer, the first or a later one. Raises `NotAcceptable` if required keys would not stay secret."""
        if not self._policy.allows_plain and not self._policy.allows_keys:
            raise NotAcceptable("Encryption is required, but the keys are not safe in this signalling: use TLS")
        protocol, formats = self._last_formats()
        ours = self._describe(protocol, formats or self._all_formats(), direction, mux=True, keys=self._keys_to_offer())
        others = self._last.media if self._last is not None else (ours,)
        return self._write(tuple(ours if at == self._index else each.refused() for at, each in enumerate(others)))

    def answer(self, body: bytes) -> tuple[bytes, Agreement]:
        """Return our answer to an offer. Raises `ValueError`; `NotAcceptable` if the offer has nothing we can use."""
        offer = sdp.SessionDescription.parse(body)
        index, agreement = self._choose(offer)
        chosen = offer.media[index]
        numbers = [str(agreement.payload_type)]
        numbers += [str(each) for each in (agreement.telephone_event, agreement.comfort_noise) if each is not None]
        keys = [agreement.send_key] if agreement.send_key else []
        formats = {number: _answered_rtpmap(chosen.encodings()[number], agreement) for number in numbers}
        mux = agreement.control is not None and agreement.control == agreement.remote
        ours = self._describe(chosen.protocol, formats, agreement.direction, mux=mux, keys=keys)
        # The peer switched the stream off: it stays off, and the keys in use stay those of the last active stream.
        if chosen.port == 0:
            ours = replace(chosen.refused(), formats=tuple(formats))
        else:
            self._own_key, self._peer_key = agreement.send_key, agreement.receive_key
        self._index = index
        # As many media lines as the offer, in its order; a refused one has port 0 (RFC 3264 §6).
        media = tuple(ours if at == index else other.refused() for at, other in enumerate(offer.media))
        return self._write(media), agreement

    def accept(self, body: bytes) -> Agreement:
        """Return what the answer to our offer agrees on. Raises `ValueError`."""
        answer = sdp.SessionDescription.parse(body)
        if self._last is None or len(answer.media) != len(self._last.media):
            raise NotAcceptable("Answer does not match the offer")
        media, ours = answer.media[self._index], self._last.media[self._index]
        if media.kind != "audio" or (media.protocol in SECURE) != (ours.protocol in SECURE):
            raise NotAcceptable("Answer does not match the offer")
        agreement = self._agree(media, self._keys_of_answer(media, ours) if media.port else (None, None))
        if media.port:
            self._own_key, self._peer_key = agreement.send_key, agreement.receive_key
        own = {encoding: int(number) for number, encoding in ours.encodings().items()}
        return replace(
            agreement,
            offered_payload_type=next((own[each] for each in own if _ENCODINGS.get(each) == agreement.codec), None),
            offered_telephone_event=own.get(f"{_EVENT_PREFIX}{agreement.telephone_event_rate}"),
        )

    # Choosing

    def _choose(self, offer: sdp.SessionDescription) -> tuple[int, Agreement]:
        """Return index and agreement of the best audio line. Raises `NotAcceptable` if none can be used.

        Lines in use come before those switched off, encrypted ones before plain, the line used so far before others,
        and then the first. A stream that was switched off is still answered.
        """
        refusal = NotAcceptable("No usable audio stream")
        found: list[tuple[tuple[bool, bool, bool, int], Agreement]] = []
        for index, media in enumerate(offer.media):
            if media.kind != "audio" or media.protocol not in (*PLAIN, *SECURE):
                continue
            try:
                agreement = self._agree(media, self._keys_for_offer(media) if media.port else (None, None))
            except NotAcceptable as error:
                refusal = error
                continue
            rank = (not media.port, agreement.send_key is None, self._last is None or index != self._index, index)
            found.append((rank, agreement))
        if not found:
            raise refusal
        (*_, index), agreement = min(found, key=lambda each: each[0])
        return index, agreement

    def _agree(self, media: sdp.MediaDescription, keys: tuple[sdp.Crypto | None, sdp.Crypto | None]) -> Agreement:
        encodings = {number: each for number, each in media.encodings().items() if _is_payload_type(number)}
        audio = ((number, _ENCODINGS.get(each)) for number, each in encodings.items())
        # The peer lists its formats in the order of its preference, which decides (RFC 3264 §6.1).
        number, codec = next(((n, name) for n, name in audio if name in self._policy.codecs), ("", None))
        if codec is None:
            raise NotAcceptable("No common codec")
        rate, event = _telephone_event(encodings, _CLOCK_RATES[codec])
        noise = next((int(each) for each, name in encodings.items() if name == _COMFORT_NOISE), None)
        direction = media.direction.reversed
        remote = self._target(media.address, media.port) if media.port else None
        # RFC 2543 peers hold with the address 0.0.0.0 (RFC 3264 §8.4).
        if remote is None and media.port and direction is sdp.Direction.SENDRECV:
            direction = sdp.Direction.RECVONLY
        return Agreement(
            remote,
            codec,
            event,
            direction,
            payload_type=int(number),
            telephone_event_rate=rate,
            comfort_noise=noise if _CLOCK_RATES[codec] == 8000 else None,
            packet_time=_packet_time(media),
            control=self._control(media, remote),
            send_key=keys[0],
            receive_key=keys[1],
        )

    def _target(self, host: str, port: int) -> tuple[str, int] | None:
        own, refuse = (self._host, self._port), self.refuse_target
        return media_target(host, port, own, self._peer, loopback=self._loopback, refuse=refuse)

    def _control(self, media: sdp.MediaDescription, remote: tuple[str, int] | None) -> tuple[str, int] | None:
        if remote is None or media.values("rtcp-mux"):
            return remote
        match = next((_RTCP.fullmatch(value) for value in media.values("rtcp")), None)
        if match is None:
            return None
        # A forbidden address of RTCP alone does not refuse the call: reports then go to the port above the media.
        try:
            return self._target(match[2] or remote[0], int(match[1]))
        except NotAcceptable:
            return None

    # Keys

    def _keys_for_offer(self, media: sdp.MediaDescription) -> tuple[sdp.Crypto | None, sdp.Crypto | None]:
        """Return our key and the peer's for an offer. Raises `NotAcceptable` if a needed key is not there."""
        lines = sdp.usable_crypto(media.values("crypto")) if self._policy.allows_keys else []
        if not lines:
            if media.protocol in SECURE or not self._policy.allows_plain:
                raise NotAcceptable("Media must be encrypted, but the peer gives no key that we can use")
            return None, None
        peer, own, before = lines[0], self._own_key, self._peer_key
        # If an offer repeats the peer's key, we repeat ours, and the RTP stream goes on undisturbed.
        if own is not None and before is not None and (peer.suite, peer.key) == (before.suite, before.key):
            return sdp.Crypto(peer.tag, own.suite, own.key), peer
        return sdp.Crypto.make(peer.tag, peer.suite), peer

    def _keys_to_offer(self) -> list[sdp.Crypto]:
        if not self._policy.allows_keys or (self._last is not None and self._own_key is None):
            return []
        if self._own_key is not None:
            return [sdp.Crypto(1, self._own_key.suite, self._own_key.key)]
        return [sdp.Crypto.make(tag, suite) for tag, suite in enumerate(sdp.OFFERED_SUITES, 1)]

    def _keys_of_answer(
        self, media: sdp.MediaDescription, ours: sdp.MediaDescription
    ) -> tuple[sdp.Crypto | None, sdp.Crypto | None]:
        """Return our key and the peer's for an answer, which chooses our key by its tag (RFC 4568 §5.1.3)."""
        offered = {line.tag: line for line in sdp.usable_crypto(ours.values("crypto"))}
        for line in sdp.usable_crypto(media.values("crypto")):
            own = offered.get(line.tag)
            if own is not None and own.suite == line.suite:
                return own, line
        if media.protocol in SECURE or not self._policy.allows_plain:
            raise NotAcceptable("Media must be encrypted, but the peer gives no key that we can use")
        return None, None

    # Writing

    def _last_formats(self) -> tuple[str, dict[str, str]]:
        """Return protocol and formats of our line so far: payload types keep their meaning (RFC 3264 §8.3.2)."""
        last = self._last.media[self._index] if self._last is not None else None
        if last is not None and last.port:
            return last.protocol, _rtpmaps(last)
        return (SECURE if self._policy.encryption is Encryption.REQUIRED else PLAIN)[0], {}

    def _all_formats(self) -> dict[str, str]:
        formats = {_PAYLOAD_TYPES[name]: _RTPMAPS[name] for name in self._policy.codecs}
        rates = sorted({_CLOCK_RATES[name] for name in self._policy.codecs})
        noise = {_NOISE_PAYLOAD_TYPE: _COMFORT_NOISE} if 8000 in rates else {}
        return formats | {_EVENT_PAYLOAD_TYPES[rate]: f"telephone-event/{rate}" for rate in rates} | noise

    def _describe(
        self, protocol: str, formats: dict[str, str], direction: sdp.Direction, *, mux: bool, keys: list[sdp.Crypto]
    ) -> sdp.MediaDescription:
        attributes = list(_format_attributes(formats))
        attributes += [("crypto", str(key)) for key in keys]
        attributes += [("rtcp-mux", "")] if mux else []
        attributes += [("ptime", str(FRAME_TIME)), (direction.value, "")]
        return sdp.MediaDescription("audio", self._port, protocol, tuple(formats), "", tuple(attributes), direction)

    def _write(self, media: tuple[sdp.MediaDescription, ...]) -> bytes:
        last = self._last
        version = self._session_id if last is None else last.version
        # The same description keeps its version, by which the peer knows that nothing changed (RFC 3264 §8).
        written = sdp.SessionDescription(self._host, media, self._session_id, version)
        if last is not None and bytes(last) != bytes(written):
            written = written.with_version(version + 1)
        self._last = written
        return bytes(written)


def _is_payload_type(number: str) -> bool:
    return number.isascii() and number.isdigit() and int(number) < 128


def _packet_time(media: sdp.MediaDescription) -> int:
    """Return the packet time that the peer asks for, in whole frames and up to its `maxptime` (RFC 8866 §6.4)."""
    preferred, limits = (
        [int(float(each)) for each in media.values(name) if _TIME.fullmatch(each)] for name in ("ptime", "maxptime")
    )
    milliseconds = min([*(preferred or [FRAME_TIME]), *limits, _MAX_PACKET_TIME])
    return max(FRAME_TIME, milliseconds // FRAME_TIME * FRAME_TIME)


def _telephone_event(encodings: dict[str, str], clock_rate: int) -> tuple[int, int | None]:
    """Return clock rate and payload type of telephone events, preferably at the rate of the audio (RFC 4733 §2.1)."""
    rates = {
        each.removeprefix(_EVENT_PREFIX): int(n)
        for n, each in reversed(encodings.items())
        if each.startswith(_EVENT_PREFIX)
    }
    for rate in (clock_rate, *_EVENT_PAYLOAD_TYPES):
        if str(rate) in rates:
            return rate, rates[str(rate)]
    return 8000, None


def _answered_rtpmap(encoding: str, agreement: Agreement) -> str:
    """Return the `rtpmap` value of a format in our answer."""
    if encoding.startswith(_EVENT_PREFIX):
        return f"telephone-event/{agreement.telephone_event_rate}"
    return encoding if encoding == _COMFORT_NOISE else _RTPMAPS[agreement.codec]


def _rtpmaps(media: sdp.MediaDescription) -> dict[str, str]:
    return {each.partition(" ")[0]: each.partition(" ")[2] for each in media.values("rtpmap")}


def _format_attributes(formats: dict[str, str]) -> Iterator[tuple[str, str]]:
    for number, written in formats.items():
        yield "rtpmap", f"{number} {written}"
        if written.startswith("telephone-event"):
            yield "fmtp", f"{number} 0-15"
        elif written.startswith("opus"):
            # All audio within the server is at 8 kHz, so a higher rate would be wasted (RFC 7587 §6.1).
            yield "fmtp", f"{number} maxplaybackrate=8000; sprop-maxcapturerate=8000; stereo=0"


def media_target(
    host: str,
    port: int,
    own: tuple[str, int],
    peer: str | None,
    *,
    loopback: bool,
    refuse: Callable[[str, int], bool] = _refuses_none,
) -> tuple[str, int] | None:
    """Return where packets for `host` and `port` of an SDP go; None for 0.0.0.0, which means hold (RFC 3264 §8.4).

    A peer with a private address whose signalling comes from a public one is behind a NAT: the public address is used.
    Raises `NotAcceptable` for a host name, and for addresses through which the server would attack others or itself:
    `refuse` tells which addresses and ports are our own.
    """
    # The mapping is removed, because `::ffff:127.0.0.1` would not be recognised as a loopback address.
    try:
        address = _unmapped(ip_address(host))
    except ValueError:
        raise NotAcceptable("Media address is not an IP address") from None
    if address.is_unspecified:
        return None
    if peer is not None and _is_site_local(address):
        source = _unmapped(ip_address(peer))
        if not (_is_site_local(source) or source.is_loopback):
            address = source
    if not _is_allowed(address, loopback) or port < MIN_PORT or (str(address), port) == own:
        raise NotAcceptable("Media target is not allowed")
    if refuse(str(address), port):
        raise NotAcceptable("Media target is an address of this server")
    if address.version != _unmapped(ip_address(own[0])).version:
        raise NotAcceptable("Media address is of the other IP version")
    return (str(address), port)


def _is_allowed(address: IPv4Address | IPv6Address, loopback: bool) -> bool:
    if address.is_loopback:
        return loopback
    if address.is_multicast or any(address in network for network in _LINK_LOCAL):
        return False
    # 240.0.0.0/4 includes the broadcast address. `is_reserved` is true for almost all of IPv6, so not used there.
    return not (isinstance(address, IPv4Address) and (address.is_reserved or address in _THIS_NETWORK))


def _is_site_local(address: IPv4Address | IPv6Address) -> bool:
    return any(address in network for network in _SITE_LOCAL)


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped if mapped is not None else address
