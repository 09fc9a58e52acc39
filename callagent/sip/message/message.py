"""SIP messages: parsing with bounds on everything, writing, and responses to requests (RFC 3261 §7, §8.2.6, §20)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from callagent.sip.message import headers as header_fields
from callagent.sip.message.addressing import Address, Uri, Via

MAX_DATAGRAM = 16 * 1024
"""Octets of the longest UDP message that is parsed."""
MAX_VIAS = 64
MAX_CSEQ = 2**31 - 1
"""The limit of RFC 3261 §8.1.1.5."""

_SINGLE = {
    name.lower(): name for name in ("Call-ID", "CSeq", "From", "To", "Max-Forwards", "Content-Length", "Content-Type")
}
_REQUIRED = {name.lower(): name for name in ("Via", "From", "To", "Call-ID", "CSeq")}
_REQUEST_LINE = re.compile(rf"({header_fields.TOKEN}) ([^ ]+) (SIP/[0-9]+\.[0-9]+)", re.IGNORECASE)
_REQUEST_LIKE_LINE = re.compile(rf"{header_fields.TOKEN} .* ?SIP/[0-9]+\.[0-9]+ *", re.IGNORECASE | re.DOTALL)
_STATUS_LINE = re.compile(r"SIP/2\.0 ([1-6][0-9]{2})(?: (.*))?", re.IGNORECASE | re.DOTALL)
_CSEQ = re.compile(rf"([0-9]+)\s+({header_fields.TOKEN})")
_TYPE = re.compile(rf"\s*({header_fields.TOKEN})\s*/\s*({header_fields.TOKEN})\s*(?:;.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CSeq:
    """The CSeq header field."""

    number: int
    method: str

    @classmethod
    def parse(cls, value: str) -> CSeq:
        return _parse_cached_cseq(value)

    @classmethod
    def _parse_uncached(cls, value: str) -> CSeq:
        match = _CSEQ.fullmatch(value.strip())
        if match is None:
            raise ValueError("CSeq is not valid")
        return cls(header_fields.parse_integer(match[1], MAX_CSEQ), match[2])

    def __str__(self) -> str:
        return f"{self.number} {self.method}"


_parse_cached_cseq = header_fields.with_cache(CSeq._parse_uncached)


_parse_cached_uri = header_fields.with_cache(Uri.parse)


@dataclass(slots=True)
class Message:
    """A SIP message, the base of requests and responses. Its properties are parsed on first use and cached."""

    headers: header_fields.Headers = field(default_factory=header_fields.Headers)
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
        """The topmost Via."""
        return self.vias[0]

    @property
    def sender(self) -> Address:
        """The From header field."""
        return self.headers.read("sender", _read_sender)

    @property
    def recipient(self) -> Address:
        """The To header field."""
        return self.headers.read("recipient", _read_recipient)

    @property
    def call_id(self) -> str:
        return _require(self.headers, "Call-ID")

    @property
    def cseq(self) -> CSeq:
        return self.headers.read("cseq", _read_cseq)

    @property
    def contacts(self) -> Sequence[Address]:
        return self.headers.read("contacts", _read_contacts)

    @property
    def content_type(self) -> str | None:
        """The Content-Type as `type/subtype` in lower case, without parameters."""
        return self.headers.read("content type", _read_content_type)


def _require(headers: header_fields.Headers, name: str) -> str:
    value = headers.get(name)
    if value is None:
        raise ValueError(f"{name} is missing")
    return value


def _read_vias(headers: header_fields.Headers) -> Sequence[Via]:
    _require(headers, "Via")
    return tuple(via for value in headers.values("Via") for via in Via.parse_list(value))


def _read_sender(headers: header_fields.Headers) -> Address:
    return Address.parse(_require(headers, "From"))


def _read_recipient(headers: header_fields.Headers) -> Address:
    return Address.parse(_require(headers, "To"))


def _read_cseq(headers: header_fields.Headers) -> CSeq:
    return CSeq.parse(_require(headers, "CSeq"))


def _read_contacts(headers: header_fields.Headers) -> Sequence[Address]:
    values = headers.values("Contact")
    return tuple(address for value in values if value != "*" for address in Address.parse_list(value))


def _read_content_type(headers: header_fields.Headers) -> str | None:
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
        """Replace the topmost Via, also if its field holds several."""
        self.headers.replace_top_via((via, *self.vias[1:]))


@dataclass(slots=True)
class Response(Message):
    status: int = 200
    reason: str = ""

    def start_line(self) -> str:
        return f"SIP/2.0 {self.status} {self.reason}"


class MalformedMessage(ValueError):
    """Octets that are no valid SIP message. If `headers` is set, they can be answered with `status`."""

    def __init__(self, problem: str, *, status: int = 400, headers: header_fields.Headers | None = None) -> None:
        super().__init__(problem)
        self.status = status
        self.headers = headers
        """The fields read so far; None for a response, an ACK, or a message that is not SIP, which get no response."""


def parse_message(data: bytes, *, limit: int = MAX_DATAGRAM) -> Request | Response:
    """Parse one whole message; octets beyond Content-Length are ignored (§18.3). Raises `MalformedMessage` only."""
    if len(data) > limit:
        raise MalformedMessage("Message is too large")
    head, separator, body = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
    if not separator and head.endswith(b"\r\n"):
        # A datagram ends its message (§18.3), so a message without the empty line after its headers is whole.
        head, separator = head.removesuffix(b"\r\n"), b"\r\n"
    folded = b"\r\n " in head or b"\r\n\t" in head
    start, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
    method = start.partition(" ")[0]
    headers = header_fields.Headers()
    try:
        _read_headers(lines, headers, folded=folded)
        message = _read_start(start, headers)
        if not separator:
            raise ValueError("Blank line is missing")
        message.body = _cut_body(message, body)
        _validate(message)
    except ValueError as error:
        answerable = method != "ACK" and _REQUEST_LIKE_LINE.fullmatch(start)
        status = 505 if isinstance(error, _UnsupportedVersion) else 400
        raise MalformedMessage(str(error), status=status, headers=headers if answerable else None) from None
    return message


class _UnsupportedVersion(ValueError):
    pass


def _read_start(line: str, headers: header_fields.Headers) -> Request | Response:
    match = _STATUS_LINE.fullmatch(line)
    if match is not None:
        return Response(headers, status=int(match[1]), reason=match[2] or "")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise ValueError("Start line is not valid")
    if match[3].upper() != "SIP/2.0":
        raise _UnsupportedVersion("SIP version is not supported")
    return Request(headers, method=match[1], uri=_parse_cached_uri(match[2]))


def _read_headers(lines: list[str], headers: header_fields.Headers, *, folded: bool) -> None:
    """Unfold the lines and add them, up to the first invalid one: a 400 needs the fields before it."""
    fields = _unfold(lines) if folded else lines
    if len(fields) > header_fields.MAX_HEADERS or max(map(len, fields), default=0) > header_fields.MAX_HEADER_LENGTH:
        raise ValueError(header_fields.TOO_LARGE)
    headers.add_lines(fields)


def _unfold(lines: list[str]) -> list[str]:
    unfolded: list[str] = []
    for line in lines:
        if line[:1] not in (" ", "\t") or not unfolded:
            unfolded.append(line)
            continue
        unfolded[-1] += " " + line.strip()
        # The length is checked for each line, because each line copies the field: many short lines would take long.
        if len(unfolded[-1]) > header_fields.MAX_HEADER_LENGTH:
            raise ValueError(header_fields.TOO_LARGE)
    return unfolded


def _cut_body(message: Message, body: bytes) -> bytes:
    lengths = message.headers.values("Content-Length")
    if len(lengths) > 1:
        raise ValueError("Content-Length occurs twice")
    # Over UDP the body ends with the datagram (§18.3). Messages of a stream have been cut by Content-Length already.
    if not lengths:
        return body
    length = header_fields.parse_integer(lengths[0], 2**31)
    if length > len(body):
        raise ValueError("Content-Length is larger than the message")
    return body[:length]


def _validate(message: Request | Response) -> None:
    """Parse every field that the layers above rely on, so that they need not expect errors."""
    headers = message.headers
    headers.check(_REQUIRED, _SINGLE)
    if len(message.vias) > MAX_VIAS:
        raise ValueError("Via occurs too often")
    _ = message.sender, message.recipient, message.contacts
    for name in ("Route", "Record-Route"):
        for value in headers.values(name):
            Address.parse_list(value)
    cseq = message.cseq
    # A Call-ID is one word, with at most one `@` in it (§25.1).
    if not message.call_id or " " in message.call_id:
        raise ValueError("Call-ID is not valid")
    if isinstance(message, Request):
        _validate_request(message, cseq)


def _validate_request(request: Request, cseq: CSeq) -> None:
    if cseq.method != request.method:
        raise ValueError("CSeq does not match the method")
    # Headers are not allowed in a Request-URI, and must never be applied (§19.1.1).
    if request.uri.headers is not None:
        raise ValueError("Request-URI has headers")
    hops = request.headers.get("Max-Forwards")
    if hops is not None:
        header_fields.parse_integer(hops, 255)
    for name in ("Require", "Supported", "Accept"):
        request.headers.tokens(name)


MAX_PARTS = 16
"""Parts of a multipart body that are searched for SDP."""
SDP = "application/sdp"
_BOUNDARY = re.compile(
    rf";\s*boundary\s*=\s*({header_fields.QUOTED_STRING}|{header_fields.TOKEN}|[^\s;\"]+)", re.IGNORECASE | re.DOTALL
)
_PART_TYPE = re.compile(rb"^content-type[ \t]*:[ \t]*([^\s;]+)", re.IGNORECASE | re.MULTILINE)


def unwrap_description(message: Message) -> None:
    """Replace a multipart body by its SDP part (RFC 5621 §3); a multipart without one stays as it is.

    Gateways put other parts beside the SDP, such as ISUP, which are ignored.
    """
    if not (message.content_type or "").startswith("multipart/"):
        return
    match = _BOUNDARY.search(message.headers.get("Content-Type") or "")
    if match is None:
        return
    found = _find_sdp(message.body, header_fields.unquote(match[1]).encode("utf-8", "surrogateescape"))
    if found is not None:
        message.body = found
        message.headers.set("Content-Type", SDP)


def _find_sdp(body: bytes, boundary: bytes) -> bytes | None:
    # The line break before a delimiter belongs to the delimiter; the first delimiter may have none (RFC 2046 §5.1.1).
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    # The text before the first delimiter is no part.
    for part in parts[1 : MAX_PARTS + 1]:
        head, separator, content = part.partition(b"\r\n\r\n")
        kind = _PART_TYPE.search(head)
        if separator and kind is not None and kind[1].decode("ascii", "replace").lower() == SDP:
            return content
    return None


METHODS = ("INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "INFO", "UPDATE", "MESSAGE", "NOTIFY", "PRACK")
"""Methods that are always served."""
KNOWN_METHODS = (*METHODS, "REFER", "REGISTER", "SUBSCRIBE", "PUBLISH")
"""Unserved ones get a 405, unlisted ones a 501. REFER is served where transfers are accepted."""

_REASONS = {
    100: "Trying", 180: "Ringing", 183: "Session Progress", 200: "OK", 202: "Accepted", 302: "Moved Temporarily",
    406: "Not Acceptable", 408: "Request Timeout", 415: "Unsupported Media Type", 416: "Unsupported URI Scheme",
    420: "Bad Extension", 422: "Session Interval Too Small", 423: "Interval Too Brief",
    480: "Temporarily Unavailable", 481: "Call/Transaction Does Not Exist",
    482: "Loop Detected", 483: "Too Many Hops", 486: "Busy Here", 487: "Request Terminated",
    488: "Not Acceptable Here", 491: "Request Pending", 500: "Server Internal Error",
    505: "Version Not Supported", 513: "Message Too Large", 600: "Busy Everywhere", 603: "Decline",
    604: "Does Not Exist Anywhere", 606: "Not Acceptable",
}  # fmt: skip


def reason_phrase(status: int) -> str:
    if status in _REASONS:
        return _REASONS[status]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def respond_to(
    request: Request,
    status: int,
    *,
    tag: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
) -> Response:
    """Return a response with the header fields that the request determines (§8.2.6.2). A `body` is SDP."""
    response = Response(copy_headers(request.headers, tag), body, status=status, reason=reason_phrase(status))
    if 100 < status < 300 and request.method == "INVITE":
        for route in request.headers.values("Record-Route"):
            response.headers.add("Record-Route", route)
    for name, value in headers:
        response.headers.add(name, value)
    if body:
        response.headers.set("Content-Type", "application/sdp")
    return response


def copy_headers(received: header_fields.Headers, tag: str | None) -> header_fields.Headers:
    """Return the fields that a response copies from its request; `tag` is added to a To that has none."""
    headers = header_fields.Headers()
    for name in ("Via", "From", "To", "Call-ID", "CSeq"):
        values = received.values(name)
        headers.add_valid(name, [_with_tag(value, tag) for value in values] if name == "To" and tag else values)
    return headers


def _with_tag(to: str, tag: str) -> str:
    try:
        address = Address.parse(to)
    except ValueError:
        return to
    return to if address.tag is not None else f"{to};tag={tag}" if ">" in to else str(address.with_tag(tag))
