"""SIP messages: parsed with bounds on everything, written the way they are read (RFC 3261 §7, §20)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from callagent.sip.address import Address
from callagent.sip.grammar import TOKEN, is_token, parse_integer, remember, split_list
from callagent.sip.uri import Uri
from callagent.sip.via import Via

MAX_DATAGRAM = 16 * 1024
MAX_HEADERS = 100
MAX_HEADER_LENGTH = 8 * 1024
MAX_VIAS = 64
MAX_CSEQ = 2**31 - 1

_COMPACT = {
    "a": "Accept-Contact", "b": "Referred-By", "c": "Content-Type", "d": "Request-Disposition",
    "e": "Content-Encoding", "f": "From", "i": "Call-ID", "j": "Reject-Contact", "k": "Supported",
    "l": "Content-Length", "m": "Contact", "n": "Identity-Info", "o": "Event", "r": "Refer-To", "s": "Subject",
    "t": "To", "u": "Allow-Events", "v": "Via", "x": "Session-Expires", "y": "Identity",
}  # fmt: skip
_UNABRIDGED = (
    *("Accept", "Allow", "Authorization", "CSeq", "Date", "Expires", "Max-Forwards", "Min-SE", "P-Asserted-Identity"),
    *("Privacy", "RAck", "RSeq", "Reason", "Record-Route", "Require", "Route", "Server", "User-Agent"),
)
_SINGLE = {
    name.lower(): name for name in ("Call-ID", "CSeq", "From", "To", "Max-Forwards", "Content-Length", "Content-Type")
}
_REQUIRED = {name.lower(): name for name in ("Via", "From", "To", "Call-ID", "CSeq")}
_REQUEST_LINE = re.compile(rf"({TOKEN}) ([^ ]+) (SIP/[0-9]+\.[0-9]+)", re.IGNORECASE)
_LIKE_A_REQUEST = re.compile(rf"{TOKEN} .* ?SIP/[0-9]+\.[0-9]+ *", re.IGNORECASE | re.DOTALL)
_STATUS_LINE = re.compile(r"SIP/2\.0 ([1-6][0-9]{2})(?: (.*))?", re.IGNORECASE | re.DOTALL)
_CSEQ = re.compile(rf"([0-9]+)\s+({TOKEN})")
_TYPE = re.compile(rf"\s*({TOKEN})\s*/\s*({TOKEN})\s*(?:;.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CSeq:
    number: int
    method: str

    @classmethod
    def parse(cls, value: str) -> CSeq:
        return _parse_cseq(value)

    @classmethod
    def _read(cls, value: str) -> CSeq:
        match = _CSEQ.fullmatch(value.strip())
        if match is None:
            raise ValueError("CSeq is not valid")
        return cls(parse_integer(match[1], MAX_CSEQ), match[2])

    def __str__(self) -> str:
        return f"{self.number} {self.method}"


_parse_cseq = remember(CSeq._read)


def _name(name: str) -> tuple[str, str]:
    if not is_token(name):
        raise ValueError("Header is not valid")
    full = _COMPACT.get(name.lower(), name)
    return full, full.lower()


_names = remember(_name)
"""The full name of a field, and that in lower case."""
_USUAL_NAMES = {name: (name, name.lower()) for name in (*_COMPACT.values(), *_UNABRIDGED)}
_parse_target = remember(Uri.parse)


def _count(value: str) -> int:
    return len(split_list(value))


_TOO_MUCH = "Headers are too many or too long"

Read = TypeVar("Read")


class Headers:
    """Header fields in their order; names without case, compact forms resolved, values without line breaks."""

    __slots__ = ("_index", "_items", "_read")

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items: list[tuple[str, str]] = []
        self._index: dict[str, list[str]] | None = None
        """Values by name in lower case, made when somebody asks; None after a change."""
        self._read: dict[str, Any] = {}
        """What fields were parsed to; empty after a change."""
        for name, value in items:
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Append one field. `ValueError` on what would break the message, such as a line feed."""
        if "\r" in value or "\n" in value:
            raise ValueError("Header is not valid")
        self._items.append((_names(name)[0], value.strip()))
        self._changed()

    def add_lines(self, lines: Iterable[str]) -> None:
        """Append unfolded fields as they were received; those before one that is not valid are kept."""
        self._changed()
        items, index = self._items, self._by_name()
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or "\r" in value or "\n" in value:
                raise ValueError("Header is not valid")
            full, lowered = _USUAL_NAMES.get(name) or _names(name.rstrip(" \t"))
            value = value.strip()
            items.append((full, value))
            index.setdefault(lowered, []).append(value)

    def take_over(self, name: str, values: Iterable[str]) -> None:
        """Append fields of that name, given in full, with values of another message: they are valid already."""
        self._items += [(name, value) for value in values]
        self._changed()

    def insert_first(self, name: str, value: str) -> None:
        self.add(name, value)
        self._items.insert(0, self._items.pop())

    def set(self, name: str, value: str) -> None:
        """Replace every field of that name by this one."""
        self.remove(name)
        self.add(name, value)

    def remove(self, name: str) -> None:
        lowered = name.lower()
        self._items = [item for item in self._items if item[0].lower() != lowered]
        self._changed()

    def get(self, name: str) -> str | None:
        """The first value."""
        values = self.values(name)
        return values[0] if values else None

    def values(self, name: str) -> Sequence[str]:
        return self._by_name().get(name.lower(), ())

    def _by_name(self) -> dict[str, list[str]]:
        index = self._index
        if index is None:
            index = self._index = {}
            for own, value in self._items:
                index.setdefault(own.lower(), []).append(value)
        return index

    def check(self, required: Mapping[str, str], single: Mapping[str, str]) -> None:
        """`ValueError` unless all `required` fields are there and no `single` one twice: lower case to usual name."""
        index = self._by_name()
        for lowered, name in required.items():
            if lowered not in index:
                raise ValueError(f"{name} is missing")
        for lowered, name in single.items():
            if len(index.get(lowered, ())) > 1:
                raise ValueError(f"{name} occurs twice")

    def read(self, name: str, parse: Callable[[Headers], Read]) -> Read:
        """What `parse` makes of the field, kept until something changes; `name` stands for the two."""
        known = self._read.get(name)
        if known is None:
            known = self._read[name] = parse(self)
        return cast(Read, known)

    def replace_top_via(self, vias: Sequence[Via]) -> None:
        """Write the first of these in the place of the topmost; the others stand as they are. What was read stays."""
        first, *fields = self.values("Via")
        with_it = [str(each) for each in vias[1 : len(vias) - sum(map(_count, fields))]] if "," in first else []
        values = [str(vias[0]), *with_it]
        at = next(number for number, item in enumerate(self._items) if item[0].lower() == "via")
        self._items[at : at + 1] = [("Via", value) for value in values]
        if self._index is not None:
            self._index["via"] = [*values, *fields]
        self._read["vias"] = vias

    def _changed(self) -> None:
        self._index = None
        self._read.clear()

    def tokens(self, name: str) -> list[str]:
        """All comma-separated elements of all fields of that name."""
        return [item for value in self.values(name) for item in split_list(value) if item]

    def flags(self, name: str) -> frozenset[str]:
        """The elements in lower case; none where the field cannot be read."""
        try:
            return frozenset(item.lower() for item in self.tokens(name))
        except ValueError:
            return frozenset()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: str) -> bool:
        return bool(self.values(name))


@dataclass(slots=True)
class Message:
    """What requests and responses share. The typed properties parse on first use."""

    headers: Headers = field(default_factory=Headers)
    body: bytes = b""

    def start_line(self) -> str:
        raise NotImplementedError

    def __bytes__(self) -> bytes:
        lines = [self.start_line()]
        lines += [f"{name}: {value}" for name, value in self.headers if name.lower() != "content-length"]
        lines += [f"Content-Length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + self.body

    @property
    def vias(self) -> Sequence[Via]:
        return self.headers.read("vias", _read_vias)

    @property
    def via(self) -> Via:
        """The topmost."""
        return self.vias[0]

    @property
    def sender(self) -> Address:
        return self.headers.read("sender", _read_sender)

    @property
    def recipient(self) -> Address:
        return self.headers.read("recipient", _read_recipient)

    @property
    def call_id(self) -> str:
        return _required(self.headers, "Call-ID")

    @property
    def cseq(self) -> CSeq:
        return self.headers.read("cseq", _read_cseq)

    @property
    def contacts(self) -> Sequence[Address]:
        return self.headers.read("contacts", _read_contacts)

    @property
    def content_type(self) -> str | None:
        """`type/subtype` in lower case, without parameters."""
        return self.headers.read("content type", _read_content_type)


def _required(headers: Headers, name: str) -> str:
    value = headers.get(name)
    if value is None:
        raise ValueError(f"{name} is missing")
    return value


def _read_vias(headers: Headers) -> Sequence[Via]:
    _required(headers, "Via")
    return tuple(via for value in headers.values("Via") for via in Via.parse_list(value))


def _read_sender(headers: Headers) -> Address:
    return Address.parse(_required(headers, "From"))


def _read_recipient(headers: Headers) -> Address:
    return Address.parse(_required(headers, "To"))


def _read_cseq(headers: Headers) -> CSeq:
    return CSeq.parse(_required(headers, "CSeq"))


def _read_contacts(headers: Headers) -> Sequence[Address]:
    values = headers.values("Contact")
    return tuple(address for value in values if value != "*" for address in Address.parse_list(value))


def _read_content_type(headers: Headers) -> str | None:
    value = headers.get("Content-Type")
    match = None if value is None else _TYPE.fullmatch(value)
    return None if match is None else f"{match[1]}/{match[2]}".lower()


@dataclass(slots=True)
class Request(Message):
    method: str = ""
    uri: Uri = field(default_factory=lambda: Uri("sip"))

    def start_line(self) -> str:
        return f"{self.method} {self.uri} SIP/2.0"

    def replace_top_via(self, via: Via) -> None:
        """Put `via` in the place of the topmost one, whether or not it shares its field with others."""
        self.headers.replace_top_via((via, *self.vias[1:]))


@dataclass(slots=True)
class Response(Message):
    status: int = 200
    reason: str = ""

    def start_line(self) -> str:
        return f"SIP/2.0 {self.status} {self.reason}"


class MalformedMessage(ValueError):
    """The bytes are not a valid message; `headers` is there when the sender may be answered with `status`."""

    def __init__(self, why: str, *, status: int = 400, headers: Headers | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers
        """The fields read so far; None when nobody is to be answered: a response, an ACK, not SIP at all."""


def parse_message(data: bytes, *, limit: int = MAX_DATAGRAM) -> Request | Response:
    """Read one whole message. Octets after Content-Length are ignored (§18.3); raises `MalformedMessage` only."""
    if len(data) > limit:
        raise MalformedMessage("Message is too large")
    head, separator, body = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
    folded = b"\r\n " in head or b"\r\n\t" in head
    start, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
    method = start.partition(" ")[0]
    headers = Headers()
    try:
        _read_headers(lines, headers, folded=folded)
        message = _read_start(start, headers)
        if not separator:
            raise ValueError("Blank line is missing")
        message.body = _cut_body(message, body)
        _validate(message)
    except ValueError as error:
        answerable = method != "ACK" and _LIKE_A_REQUEST.fullmatch(start)
        status = 505 if isinstance(error, _UnknownVersion) else 400
        raise MalformedMessage(str(error), status=status, headers=headers if answerable else None) from None
    return message


class _UnknownVersion(ValueError):
    pass


def _read_start(line: str, headers: Headers) -> Request | Response:
    match = _STATUS_LINE.fullmatch(line)
    if match is not None:
        return Response(headers, status=int(match[1]), reason=match[2] or "")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise ValueError("Start line is not valid")
    if match[3].upper() != "SIP/2.0":
        raise _UnknownVersion("Version is not supported")
    return Request(headers, method=match[1], uri=_parse_target(match[2]))


def _read_headers(lines: list[str], headers: Headers, *, folded: bool) -> None:
    """Unfold and add. What is not valid ends the reading, so that the fields before it can still be answered."""
    fields = _unfold(lines) if folded else lines
    if len(fields) > MAX_HEADERS or max(map(len, fields), default=0) > MAX_HEADER_LENGTH:
        raise ValueError(_TOO_MUCH)
    headers.add_lines(fields)


def _unfold(lines: list[str]) -> list[str]:
    unfolded: list[str] = []
    for line in lines:
        if line[:1] not in (" ", "\t") or not unfolded:
            unfolded.append(line)
            continue
        unfolded[-1] += " " + line.strip()
        # Here and not at the end: a field of many short lines would be copied again for each.
        if len(unfolded[-1]) > MAX_HEADER_LENGTH:
            raise ValueError(_TOO_MUCH)
    return unfolded


def _cut_body(message: Message, body: bytes) -> bytes:
    lengths = message.headers.values("Content-Length")
    if len(lengths) > 1:
        raise ValueError("Content-Length occurs twice")
    if not lengths:
        return body
    length = parse_integer(lengths[0], 2**31)
    if length > len(body):
        raise ValueError("Content-Length is larger than the message")
    return body[:length]


def _validate(message: Request | Response) -> None:
    """Read every field that the layers above rely on once, so that they need not expect errors."""
    headers = message.headers
    headers.check(_REQUIRED, _SINGLE)
    if len(message.vias) > MAX_VIAS:
        raise ValueError("Via occurs too often")
    _ = message.sender, message.recipient, message.contacts
    for name in ("Route", "Record-Route"):
        for value in headers.values(name):
            Address.parse_list(value)
    cseq = message.cseq
    if not message.call_id or " " in message.call_id:
        raise ValueError("Call-ID is not valid")
    if isinstance(message, Request):
        _validate_request(message, cseq)


def _validate_request(request: Request, cseq: CSeq) -> None:
    if cseq.method != request.method:
        raise ValueError("CSeq does not match the method")
    # A Request-URI with headers may not occur in a request, and they may never be applied (§19.1.1).
    if request.uri.headers is not None:
        raise ValueError("Request-URI has headers")
    hops = request.headers.get("Max-Forwards")
    if hops is not None:
        parse_integer(hops, 255)
    for name in ("Require", "Supported", "Accept"):
        request.headers.tokens(name)
