"""Thousands of messages with one thing wrong in each, element by element, the same in every run.

The families are those of the public SIP robustness suites: long runs of one character, numbers and addresses out of
range, formats, broken UTF-8, escapes, line breaks, emptiness, repetition.
"""

from __future__ import annotations

from collections.abc import Iterator

_TEMPLATE = (
    "{method} {uri} {version}\r\n"
    "Via: {via_protocol} {via_host}:{via_port};branch={branch};rport\r\n"
    "Max-Forwards: {max_forwards}\r\n"
    "From: {from_name} <{from_uri}>;tag={from_tag}\r\n"
    "To: {to_name} <{to_uri}>{to_parameters}\r\n"
    "Call-ID: {call_id}\r\n"
    "CSeq: {cseq_number} {cseq_method}\r\n"
    "Contact: {contact}\r\n"
    "Record-Route: {record_route}\r\n"
    "Session-Expires: {session_expires}\r\n"
    "Supported: {supported}\r\n"
    "Accept: {accept}\r\n"
    "Expires: {expires}\r\n"
    "P-Asserted-Identity: {identity}\r\n"
    "Authorization: {authorization}\r\n"
    "{field_name}: {field_value}\r\n"
    "Content-Type: {content_type}\r\n"
    "Content-Length: {content_length}\r\n"
    "\r\n"
)
_BODY = (
    "v={sdp_version}\r\no={origin}\r\ns={subject}\r\nc={connection}\r\nt={times}\r\n"
    "m={media}\r\na=rtpmap:{rtpmap}\r\na=fmtp:{fmtp}\r\na=ptime:{ptime}\r\na={attribute}\r\n"
)
_VALUES = {
    "method": "INVITE", "uri": "sip:agent@127.0.0.1", "version": "SIP/2.0", "via_protocol": "SIP/2.0/UDP",
    "via_host": "127.0.0.1", "via_port": "5999", "branch": "z9hG4bKa{number}", "max_forwards": "70",
    "from_name": '"A"', "from_uri": "sip:a@127.0.0.1", "from_tag": "a{number}", "to_name": '"Agent"',
    "to_uri": "sip:agent@127.0.0.1", "to_parameters": "", "call_id": "anomaly{number}@127.0.0.1",
    "cseq_number": "1", "cseq_method": "INVITE", "contact": "<sip:a@127.0.0.1:5999>",
    "record_route": "<sip:127.0.0.1:5999;lr>", "session_expires": "1800;refresher=uac", "supported": "timer, 100rel",
    "accept": "application/sdp", "expires": "120", "identity": "<sip:a@127.0.0.1>",
    "authorization": 'Digest username="a", realm="callagent", nonce="n", uri="sip:a", response="0"',
    "field_name": "X-Field", "field_value": "value", "content_type": "application/sdp",
    "sdp_version": "0", "origin": "- 1 1 IN IP4 127.0.0.1", "subject": "-", "connection": "IN IP4 127.0.0.1",
    "times": "0 0", "media": "audio 4000 RTP/AVP 0 8 101", "rtpmap": "101 telephone-event/8000", "fmtp": "101 0-16",
    "ptime": "20", "attribute": "sendrecv",
}  # fmt: skip
_OF_BODY = ("sdp_version", *list(_VALUES)[list(_VALUES).index("origin") :])
_LENGTHS = (17, 128, 256, 1025, 4097, 30_000)
_RUNS = (
    "a",
    " ",
    "\0",
    "\t",
    "[",
    "]",
    "@",
    "=",
    ":",
    ";",
    ",",
    '"',
    "<",
    ">",
    "%",
    "\\",
    "(",
    "/",
    "?",
    "&",
    "1",
    "-",
)
_NUMBERS = (
    *("-1", "0", "00000000001", "255", "256", "65535", "65536", "2147483647", "2147483648", "-2147483648"),
    *("4294967295", "4294967296", "18446744073709551616", "1e9", "0x10", "1.5", "+1", "1 1", "\u0661", "\u00b2"),
)
_ADDRESSES = (
    *("0.0.0.0", "255.255.255.255", "256.256.256.256", "1.2.3", "1.2.3.4.5", "-1.-1.-1.-1", "224.0.0.1", "0x7f.1"),
    *("[::1]", "[::", "::1", "[fe80::1%25eth0]", "[1:2:3:4:5:6:7:8:9]", "[::ffff:999.1.1.1]", "a..b", ".", "xn--"),
)
_FORMS = (
    *("", " ", "%s%n%x%d" * 20, "%%%", "%00", "%0d%0aX:%20y", "%zz", "\r\n", "\r\n ", "\r\n\r\n", "\n", "\r", "\n\n"),
    *("\x1b[2J\x07", "\x7f", "\x01\x02\x03", "../../etc/passwd", "';--", "<script>", "${x}", "{0}", "=;=;", ",,,"),
    *('"unterminated', '"\\', "<sip:", "<<>>", "sip:", "sips:", "tel:", "sip:@", "sip:a@", "sip::@:", "sip:a@b:99999"),
    *("tel:+1;phone-context=", "cid:1@b", "sip:a@b;lr;lr;lr", "sip:a@b?X=%00", "sip:a%00@b", "*", "a/b/c", "a;b=c;b=d"),
)
_OCTETS = (b"\xff\xfe", b"\xc0\xaf", b"\xe2\x28\xa1", b"\xf8\x88\x80\x80\x80", b"\xed\xa0\x80", b"\x80" * 300)
_PLACE = "\x1a"


def anomalies() -> Iterator[bytes]:
    """Each element of an INVITE with each thing that may be wrong with it."""
    number = 0
    for element in _VALUES:
        for wrong in _wrong(_VALUES[element]):
            number += 1
            yield _message(number, element, wrong)


def _wrong(right: str) -> Iterator[bytes]:
    for each in (*_NUMBERS, *_ADDRESSES, *_FORMS):
        yield each.encode()
    yield from _OCTETS
    for run in _RUNS:
        for length in _LENGTHS:
            yield run.encode() * length
    for times in (2, 30, 500):
        yield f"{right}, ".encode() * times
        yield f"{right};x=y".encode() * times
    yield right.encode()[:-1]
    yield right.encode() + b"\0"


def _message(number: int, element: str, wrong: bytes) -> bytes:
    values = {name: value.format(number=number) for name, value in _VALUES.items()} | {element: _PLACE}
    body = _BODY.format_map(values).encode()
    if element in _OF_BODY:
        body = body.replace(_PLACE.encode(), wrong)
    head = _TEMPLATE.format_map(values | {"content_length": str(len(body))}).encode()
    return (head.replace(_PLACE.encode(), wrong) + body)[:60_000]
