"""Offer and answer for one audio stream (RFC 3264): G.711, telephone events, 20 ms packets."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from callagent.sip.sdp import Direction, MediaDescription, SessionDescription

PROTOCOLS = ("RTP/AVP", "RTP/AVPF")
CODECS = {"0": "PCMU", "8": "PCMA"}
_TELEPHONE_EVENT = "101"


class NotAcceptable(ValueError):
    """Nothing of what is offered can be used: 488."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both sides said about the audio."""

    remote: tuple[str, int] | None
    """Where our packets go; None while the peer has switched the stream off."""
    codec: str
    """`PCMU` or `PCMA`."""
    telephone_event: int | None
    """Payload type of DTMF; None when the peer has none."""
    direction: Direction
    """Ours: SENDRECV in a conversation, anything else while held."""

    @property
    def held(self) -> bool:
        return self.remote is None or self.direction is not Direction.SENDRECV


class Negotiation:
    """Our side of one call's offers and answers; the origin's version grows when the description changes."""

    def __init__(self, host: str, port: int, session_id: int, *, loopback: bool) -> None:
        """`host` and `port` are where the peer sends audio to; `loopback` allows targets on this machine's loopback."""
        self._host = host
        self._port = port
        self._session_id = session_id
        self._loopback = loopback
        self._last: SessionDescription | None = None

    def offer(self, direction: Direction = Direction.SENDRECV) -> bytes:
        media = self._describe((*CODECS, _TELEPHONE_EVENT), _TELEPHONE_EVENT, direction)
        return self._write((media,))

    def answer(self, body: bytes) -> tuple[bytes, Agreement]:
        """Our answer to an offer. Raises `ValueError` (`NotAcceptable` where only the choice does not suit)."""
        offer = SessionDescription.parse(body)
        index = _choose(offer)
        chosen = offer.media[index]
        agreement = self._agree(chosen)
        event = agreement.telephone_event
        codec = next(number for number, name in CODECS.items() if name == agreement.codec)
        formats = (codec,) if event is None else (codec, str(event))
        ours = self._describe(formats, None if event is None else str(event), agreement.direction)
        if chosen.port == 0:
            ours = chosen.refused()
        ours = MediaDescription("audio", ours.port, chosen.protocol, ours.formats, "", ours.attributes)
        media = tuple(ours if at == index else other.refused() for at, other in enumerate(offer.media))
        return self._write(media), agreement

    def accept(self, body: bytes) -> Agreement:
        """Read the answer to our offer. Raises `ValueError`."""
        answer = SessionDescription.parse(body)
        if len(answer.media) != 1 or answer.media[0].kind != "audio":
            raise NotAcceptable("Answer does not match the offer")
        return self._agree(answer.media[0])

    def _agree(self, media: MediaDescription) -> Agreement:
        codec = next((CODECS[number] for number in media.formats if _is_codec(media, number)), None)
        if codec is None:
            raise NotAcceptable("No common codec")
        events = (number for number in media.formats if media.encoding(number) == "TELEPHONE-EVENT/8000")
        event = next((int(number) for number in events if number.isdigit() and int(number) < 128), None)
        direction = media.direction.reversed
        remote = self._target(media)
        # RFC 2543 peers hold with the address 0.0.0.0 (RFC 3264 §8.4).
        if remote is None and media.port and direction is Direction.SENDRECV:
            direction = Direction.RECVONLY
        return Agreement(remote, codec, event, direction)

    def _target(self, media: MediaDescription) -> tuple[str, int] | None:
        if media.port == 0:
            return None
        try:
            address = ipaddress.ip_address(media.address)
        except ValueError:
            raise NotAcceptable("Media address is not an IP address") from None
        if address.is_unspecified:
            return None
        if address.is_multicast or str(address) == "255.255.255.255" or media.port < 1024:
            raise NotAcceptable("Media target is not allowed")
        if (address.is_loopback and not self._loopback) or (str(address), media.port) == (self._host, self._port):
            raise NotAcceptable("Media target is not allowed")
        return (str(address), media.port)

    def _describe(self, formats: tuple[str, ...], event: str | None, direction: Direction) -> MediaDescription:
        attributes = [("rtpmap", f"{number} {CODECS[number]}/8000") for number in formats if number in CODECS]
        if event is not None:
            attributes += [("rtpmap", f"{event} telephone-event/8000"), ("fmtp", f"{event} 0-15")]
        attributes += [("ptime", "20"), (direction.value, "")]
        return MediaDescription("audio", self._port, PROTOCOLS[0], formats, "", tuple(attributes), direction)

    def _write(self, media: tuple[MediaDescription, ...]) -> bytes:
        last = self._last
        version = self._session_id if last is None else last.version
        written = SessionDescription(self._host, media, self._session_id, version)
        if last is not None and bytes(last) != bytes(written):
            written = written.with_version(version + 1)
        self._last = written
        return bytes(written)


def _choose(offer: SessionDescription) -> int:
    """The first audio stream in use, else the first at all: a stream that was switched off stays answered."""
    audio = [index for index, media in enumerate(offer.media) if media.kind == "audio" and media.protocol in PROTOCOLS]
    if not audio:
        raise NotAcceptable("No usable audio stream")
    usable = [index for index in audio if offer.media[index].port]
    return usable[0] if usable else audio[0]


def _is_codec(media: MediaDescription, number: str) -> bool:
    return number in CODECS and media.encoding(number) == f"{CODECS[number]}/8000"
