"""Thousands of messages that nobody should send, the same in every run: valid ones and the torture files, damaged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_METHODS = (
    "INVITE",
    "OPTIONS",
    "BYE",
    "CANCEL",
    "ACK",
    "REGISTER",
    "REFER",
    "NOTIFY",
    "INFO",
    "UPDATE",
    "PRACK",
    "MESSAGE",
)
_SDP = (
    b"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
    b"m=audio 4000 RTP/AVP 0 8 101\r\na=rtpmap:101 telephone-event/8000\r\na=ptime:20\r\na=sendrecv\r\n"
)
_FORMS = [
    b"%n%n%n%s%s%x%d", b"\x00", b"\xff" * 50, b"\xc3\x28", b"A" * 300, b"9" * 40, b"-1", b"4294967296", b"1e309",
    b"'\";--", b"<" * 60, b">" * 60, b'"' * 61, b"\\" * 99, b";" * 200, b"," * 200, b"%" * 90, b"%00", b"%0d%0a",
    b"[" * 80, b"[::1", b"[::ffff:1.2.3.4]", b"@" * 60, b":" * 60, b"\t\t \t", b"\r", b"\n", b"\r\n ", b"\r\n\r\n",
    "ﾃﾞ٣²".encode(), b"sip:" * 40, b"=;=;=" * 40, b"../" * 30, b"0x7fffffff", b"(" * 70 + b")" * 70,
]  # fmt: skip
_NAMES = (
    *("Via", "From", "To", "Call-ID", "CSeq", "Contact", "Max-Forwards", "Content-Length", "Content-Type", "Route"),
    *("Record-Route", "Require", "Supported", "Replaces", "Session-Expires", "Min-SE", "Authorization", "Refer-To"),
    *("Identity", "RAck", "RSeq", "Event", "Subscription-State", "Accept", "Content-Encoding", "P-Asserted-Identity"),
)


def valid(number: int) -> bytes:
    """A message as a phone would send it."""
    method = _METHODS[number % len(_METHODS)]
    body = _SDP if method in ("INVITE", "UPDATE") else b""
    lines = [
        f"{method} sip:agent@127.0.0.1 SIP/2.0",
        f"Via: SIP/2.0/UDP 127.0.0.1:5999;branch=z9hG4bKm{number};rport",
        "Max-Forwards: 70",
        f'From: "M" <sip:m@127.0.0.1>;tag=m{number}',
        "To: <sip:agent@127.0.0.1>",
        f"Call-ID: mutant{number}@127.0.0.1",
        f"CSeq: 1 {method}",
        "Contact: <sip:m@127.0.0.1:5999>",
        "Refer-To: <sip:desk@127.0.0.1>",
        "Supported: timer, replaces",
        f"Content-Type: application/{'sdp' if body else 'dtmf-relay'}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def mutants(count: int, torture: Sequence[bytes], seed: int = 20) -> Iterator[bytes]:
    """Each is a valid message or a torture file with one to four kinds of damage."""
    chance = random.Random(seed)
    for number in range(count):
        data = chance.choice(torture) if torture and chance.random() < 0.3 else valid(number)
        for _ in range(chance.randint(1, 4)):
            data = chance.choice(_DAMAGES)(chance, data)
        yield data[:60_000]


def _insert(chance: random.Random, data: bytes) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + chance.choice(_FORMS) + data[at:]


def _replace_value(chance: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\r\n")
    at = chance.randrange(len(lines))
    name, colon, value = lines[at].partition(b":")
    form = chance.choice(_FORMS) * chance.choice((1, 1, 1, 20))
    lines[at] = name + colon + b" " + (form if chance.random() < 0.5 else value + form)
    return b"\r\n".join(lines)


def _flip(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randint(0, len(data))]


def _drop_line(chance: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\r\n")
    del lines[chance.randrange(len(lines))]
    return b"\r\n".join(lines)


def _repeat_line(chance: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\r\n")
    at = chance.randrange(len(lines))
    return b"\r\n".join([*lines[:at], *[lines[at]] * chance.choice((2, 5, 70, 120)), *lines[at:]])


def _add_field(chance: random.Random, data: bytes) -> bytes:
    start, _, rest = data.partition(b"\r\n")
    value = chance.choice(_FORMS) * chance.choice((1, 3, 100))
    return start + b"\r\n" + chance.choice(_NAMES).encode() + b": " + value + b"\r\n" + rest


def _shuffle(chance: random.Random, data: bytes) -> bytes:
    start, *lines = data.split(b"\r\n")
    chance.shuffle(lines)
    return b"\r\n".join([start, *lines])


def _bare_lines(chance: random.Random, data: bytes) -> bytes:
    return data.replace(b"\r\n", chance.choice((b"\n", b"\r", b"\r\r\n", b"\n\r")))


_DAMAGES = (
    *(_insert, _insert, _replace_value, _replace_value, _replace_value, _flip, _cut),
    *(_drop_line, _repeat_line, _add_field, _add_field, _shuffle, _bare_lines),
)
