"""Session descriptions (RFC 8866): read with bounds, names never resolved, written with the lines we use."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum

from callagent.sip.message import parse_integer

MAX_LENGTH = 8 * 1024
MAX_ATTRIBUTES = 64
MAX_MEDIA = 8
MAX_FORMATS = 32

_LINE = re.compile(r"([a-z])=(.*)", re.DOTALL)
_CONNECTION = re.compile(r"IN (IP4|IP6) ([^\s/]+)(?:/[0-9/]+)?\s*")
_ORIGIN = re.compile(r"(\S+) (\d{1,20}) (\d{1,20}) IN (?:IP4|IP6) (\S+)\s*")
_MEDIA = re.compile(r"(\S+) (\d{1,5})(?:/(\d{1,5}))? (\S+) (.+)")
_FORMAT_MAP = re.compile(r"(\S+) ([A-Za-z0-9\-.+_]+)/(\d{1,7})(?:/(\d{1,2}))?\s*")
_STATIC = {"0": "PCMU/8000", "8": "PCMA/8000", "9": "G722/8000", "13": "CN/8000", "18": "G729/8000"}


class Direction(Enum):
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
    kind: str
    port: int
    """0: refused, or not used any more."""
    protocol: str
    formats: tuple[str, ...]
    address: str = ""
    """From its own connection line, else the session's."""
    attributes: Attributes = ()
    """Its own; `a=sendrecv` is ("sendrecv", "")."""
    direction: Direction = Direction.SENDRECV

    def encodings(self) -> dict[str, str]:
        """`PCMU/8000`, name in upper case, of each format that says what it is, in the order of preference."""
        named: dict[str, str] = {}
        for name, value in self.attributes:
            match = _FORMAT_MAP.fullmatch(value) if name == "rtpmap" else None
            if match is not None:
                named.setdefault(match[1], f"{match[2].upper()}/{match[3]}")
        known = ((number, named.get(number) or _STATIC.get(number)) for number in self.formats)
        return {number: encoding for number, encoding in known if encoding is not None}

    def values(self, attribute: str) -> list[str]:
        return [value for name, value in self.attributes if name == attribute]

    def refused(self) -> MediaDescription:
        return MediaDescription(self.kind, 0, self.protocol, self.formats[:1])


@dataclass(frozen=True, slots=True)
class SessionDescription:
    address: str
    media: tuple[MediaDescription, ...]
    session_id: int = 0
    version: int = 0
    user: str = "callagent"
    attributes: Attributes = field(default=())

    @classmethod
    def parse(cls, data: bytes) -> SessionDescription:
        """Raises `ValueError` only."""
        if len(data) > MAX_LENGTH:
            raise ValueError("SDP is too long")
        lines = _lines(data)
        if not lines or lines[0] != ("v", "0"):
            raise ValueError("SDP version is not valid")
        sections: list[list[tuple[str, str]]] = [[]]
        for kind, value in lines[1:]:
            if kind == "m":
                sections.append([])
            sections[-1].append((kind, value))
        if len(sections) - 1 > MAX_MEDIA:
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
        whole = MediaDescription("", 0, "", (), address, attributes, _direction(attributes, Direction.SENDRECV))
        media = tuple(_parse_media(section, whole) for section in sections[1:])
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
        # Some write a line indented, which RFC 8866 §5 does not allow; there is no doubt about what it means.
        match = _LINE.fullmatch(line.lstrip(" \t"))
        if match is None:
            raise ValueError("SDP line is not valid")
        lines.append((match[1], match[2]))
    return lines


def _parse_media(section: list[tuple[str, str]], whole: MediaDescription) -> MediaDescription:
    match = _MEDIA.fullmatch(section[0][1])
    if match is None:
        raise ValueError("SDP media line is not valid")
    formats = tuple(match[5].split())
    if not formats or len(formats) > MAX_FORMATS:
        raise ValueError("SDP formats are not valid")
    attributes = _attributes(section)
    own = dict(section).get("c")
    return MediaDescription(
        kind=match[1],
        port=parse_integer(match[2], 65535),
        protocol=match[4],
        formats=formats,
        address=_address(own) if own is not None else whole.address,
        attributes=attributes,
        direction=_direction(attributes, whole.direction),
    )


def _attributes(section: list[tuple[str, str]]) -> Attributes:
    attributes = [value.partition(":") for kind, value in section if kind == "a"]
    if len(attributes) > MAX_ATTRIBUTES:
        raise ValueError("SDP has too many attributes")
    return tuple((name, value) for name, _, value in attributes)


def _address(connection: str | None) -> str:
    if connection is None:
        return ""
    match = _CONNECTION.fullmatch(connection)
    if match is None:
        raise ValueError("SDP connection is not valid")
    return match[2]


def _direction(attributes: Attributes, otherwise: Direction) -> Direction:
    names = {direction.value: direction for direction in Direction}
    return next((names[name] for name, value in attributes if name in names and not value), otherwise)
