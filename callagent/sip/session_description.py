"""Session descriptions (SDP, RFC 8866) and the keys in them (SDES, RFC 4568): bounded parsing, and writing.

Their host names are never resolved.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from dataclasses import dataclass, field, replace
from enum import Enum

from callagent.sip.message import parse_integer

MAX_OCTETS = 8 * 1024
MAX_SECTION_ATTRIBUTES = 64
MAX_MEDIA_LINES = 8
MAX_LINE_FORMATS = 32
"""Bounds of the descriptions that are parsed."""

_LINE = re.compile(r"([a-z])=(.*)", re.DOTALL)
_CONNECTION = re.compile(r"IN (IP4|IP6) ([^\s/]+)(?:/[0-9/]+)?\s*")
_ORIGIN = re.compile(r"(\S+) (\d{1,20}) (\d{1,20}) IN (?:IP4|IP6) (\S+)\s*")
_MEDIA = re.compile(r"(\S+) (\d{1,5})(?:/(\d{1,5}))? (\S+) (.+)")
_FORMAT_MAP = re.compile(r"(\S+) ([A-Za-z0-9\-.+_]+)/(\d{1,7})(?:/(\d{1,2}))?\s*")
_STATIC = {"0": "PCMU/8000", "8": "PCMA/8000", "9": "G722/8000", "13": "CN/8000", "18": "G729/8000"}


class Direction(Enum):
    """The direction attribute of a media stream, from the side that writes it."""

    SENDRECV = "sendrecv"
    SENDONLY = "sendonly"
    RECVONLY = "recvonly"
    INACTIVE = "inactive"

    @property
    def reversed(self) -> Direction:
        """The same direction seen from the other side."""
        swap = {Direction.SENDONLY: Direction.RECVONLY, Direction.RECVONLY: Direction.SENDONLY}
        return swap.get(self, self)

    @property
    def sends(self) -> bool:
        return self in (Direction.SENDRECV, Direction.SENDONLY)

    @property
    def receives(self) -> bool:
        return self in (Direction.SENDRECV, Direction.RECVONLY)


Attributes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MediaDescription:
    """One `m=` line with the lines that follow it."""

    kind: str
    port: int
    """0: refused, or switched off."""
    protocol: str
    formats: tuple[str, ...]
    address: str = ""
    """The address of its own connection line, or else of the session's."""
    attributes: Attributes = ()
    """Name and value of its own attributes; `a=sendrecv` is ("sendrecv", "")."""
    direction: Direction = Direction.SENDRECV

    def encodings(self) -> dict[str, str]:
        """Return the encoding, such as `PCMU/8000`, of each format in order of preference; the name is in upper case.

        Formats whose encoding is neither given nor static (RFC 3551 §6) are left out.
        """
        named: dict[str, str] = {}
        for name, value in self.attributes:
            match = _FORMAT_MAP.fullmatch(value) if name == "rtpmap" else None
            if match is not None:
                named.setdefault(match[1], f"{match[2].upper()}/{match[3]}")
        known = ((number, named.get(number) or _STATIC.get(number)) for number in self.formats)
        return {number: encoding for number, encoding in known if encoding is not None}

    def values(self, attribute: str) -> list[str]:
        """Return the values of all attributes of that name."""
        return [value for name, value in self.attributes if name == attribute]

    def refused(self) -> MediaDescription:
        """Return the line that refuses this stream (RFC 3264 §6)."""
        return MediaDescription(self.kind, 0, self.protocol, self.formats[:1])


@dataclass(frozen=True, slots=True)
class SessionDescription:
    """One session description."""

    address: str
    media: tuple[MediaDescription, ...]
    session_id: int = 0
    version: int = 0
    user: str = "callagent"
    attributes: Attributes = field(default=())

    @classmethod
    def parse(cls, data: bytes) -> SessionDescription:
        """Parse a description. Raises `ValueError` only."""
        if len(data) > MAX_OCTETS:
            raise ValueError("SDP is too long")
        lines = _lines(data)
        if not lines or lines[0] != ("v", "0"):
            raise ValueError("SDP version is not valid")
        sections: list[list[tuple[str, str]]] = [[]]
        for kind, value in lines[1:]:
            if kind == "m":
                sections.append([])
            sections[-1].append((kind, value))
        if len(sections) - 1 > MAX_MEDIA_LINES:
            raise ValueError("SDP has too many media lines")
        return cls._of_sections(sections)

    @classmethod
    def _of_sections(cls, sections: list[list[tuple[str, str]]]) -> SessionDescription:
        first = dict(sections[0])
        origin = _ORIGIN.fullmatch(first.get("o", ""))
        if origin is None:
            raise ValueError("SDP origin is not valid")
        address = _address(first.get("c"))
        attributes = _attributes(sections[0])
        session = MediaDescription("", 0, "", (), address, attributes, _direction(attributes, Direction.SENDRECV))
        media = tuple(_parse_media(section, session) for section in sections[1:])
        return cls(address, media, int(origin[2]), int(origin[3]), origin[1], attributes)

    def __bytes__(self) -> bytes:
        kind = "IP6" if ":" in self.address else "IP4"
        lines = ["v=0", f"o={self.user} {self.session_id} {self.version} IN {kind} {self.address}", "s=-"]
        lines += [f"c=IN {kind} {self.address}", "t=0 0"]
        for media in self.media:
            lines.append(f"m={media.kind} {media.port} {media.protocol} {' '.join(media.formats)}")
            lines += [f"a={name}:{value}" if value else f"a={name}" for name, value in media.attributes]
        return "\r\n".join([*lines, ""]).encode()

    def with_version(self, version: int) -> SessionDescription:
        return replace(self, version=version)


def _lines(data: bytes) -> list[tuple[str, str]]:
    lines = []
    for line in data.decode("utf-8", "replace").replace("\r\n", "\n").strip("\n").split("\n"):
        # Some peers indent lines. RFC 8866 §5 does not allow it, but the meaning is clear.
        match = _LINE.fullmatch(line.lstrip(" \t"))
        if match is None:
            raise ValueError("SDP line is not valid")
        lines.append((match[1], match[2]))
    return lines


def _parse_media(section: list[tuple[str, str]], session: MediaDescription) -> MediaDescription:
    match = _MEDIA.fullmatch(section[0][1])
    if match is None:
        raise ValueError("SDP media line is not valid")
    formats = tuple(match[5].split())
    if not formats or len(formats) > MAX_LINE_FORMATS:
        raise ValueError("SDP formats are not valid")
    attributes = _attributes(section)
    own = dict(section).get("c")
    return MediaDescription(
        kind=match[1],
        port=parse_integer(match[2], 65535),
        protocol=match[4],
        formats=formats,
        address=_address(own) if own is not None else session.address,
        attributes=attributes,
        direction=_direction(attributes, session.direction),
    )


def _attributes(section: list[tuple[str, str]]) -> Attributes:
    attributes = [value.partition(":") for kind, value in section if kind == "a"]
    if len(attributes) > MAX_SECTION_ATTRIBUTES:
        raise ValueError("SDP has too many attributes")
    return tuple((name, value) for name, _, value in attributes)


def _address(connection: str | None) -> str:
    if connection is None:
        return ""
    match = _CONNECTION.fullmatch(connection)
    if match is None:
        raise ValueError("SDP connection is not valid")
    return match[2]


def _direction(attributes: Attributes, default: Direction) -> Direction:
    names = {direction.value: direction for direction in Direction}
    return next((names[name] for name, value in attributes if name in names and not value), default)


KEY_OCTETS = {
    "AES_CM_128_HMAC_SHA1_80": 30,
    "AES_CM_128_HMAC_SHA1_32": 30,
    "AEAD_AES_128_GCM": 28,
    "AEAD_AES_256_GCM": 44,
}
"""The suites and the octets of their master key with its salt (RFC 4568 §6.2, RFC 7714 §14)."""
OFFERED_SUITES = ("AEAD_AES_256_GCM", "AEAD_AES_128_GCM", "AES_CM_128_HMAC_SHA1_80", "AES_CM_128_HMAC_SHA1_32")
"""In the order of our preference."""
_CRYPTO_LINE = re.compile(r"(\d{1,9})[ \t]+(\S+)[ \t]+(\S+)((?:[ \t]+\S+)*)[ \t]*")
_INLINE = re.compile(r"inline:([A-Za-z0-9+/]+={0,2})(\|(?:2\^\d{1,2}|\d{1,15}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Crypto:
    """One `a=crypto` line with a suite that we support."""

    tag: int
    suite: str
    key: bytes = field(repr=False)
    """The master key and its salt."""

    @classmethod
    def parse(cls, value: str) -> Crypto:
        """Parse a line. Raises `ValueError`, also for several keys, key identifiers (MKI) and unknown parameters."""
        match = _CRYPTO_LINE.fullmatch(value)
        if match is None:
            raise ValueError("SDP crypto line is not valid")
        suite = match[2].upper()
        # Unknown session parameters make the line unusable, unless they begin with a hyphen (§6.3). The window size
        # (WSH) is only a hint.
        if any(not each.upper().startswith(("-", "WSH=")) for each in match[4].split()):
            raise ValueError("SDP crypto line has parameters that we do not support")
        inline = _INLINE.fullmatch(match[3])
        if inline is None or suite not in KEY_OCTETS:
            raise ValueError("SDP crypto line is not supported")
        try:
            key = base64.b64decode(inline[1] + "=" * (-len(inline[1]) % 4), validate=True)
        except binascii.Error:
            raise ValueError("SDP key is not valid") from None
        if len(key) != KEY_OCTETS[suite]:
            raise ValueError("SDP key is not valid")
        return cls(int(match[1]), suite, key)

    @classmethod
    def make(cls, tag: int, suite: str) -> Crypto:
        """Return a line with a new random key."""
        return cls(tag, suite, secrets.token_bytes(KEY_OCTETS[suite]))

    def __str__(self) -> str:
        return f"{self.tag} {self.suite} inline:{base64.b64encode(self.key).decode()}"


def usable_crypto(values: list[str]) -> list[Crypto]:
    """Return the usable lines in the peer's order; lines with the same tag are left out (RFC 4568 §4.1)."""
    lines = []
    for value in values:
        try:
            lines.append(Crypto.parse(value))
        except ValueError:
            continue
    # An answer names a line by its tag, so two lines with the same tag cannot be told apart.
    tags = [line.tag for line in lines]
    return [line for line in lines if tags.count(line.tag) == 1]
