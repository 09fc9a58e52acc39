"""Messages: bounds, properties of the parser on any input, and a second parser's opinion."""

from __future__ import annotations

import pytest
import sipmessage
from hypothesis import given, settings
from hypothesis import strategies as st

from callagent.sip import MalformedMessage, Request, parse_message
from callagent.sip.message.headers import MAX_HEADERS, Headers
from callagent.sip.message.message import MAX_DATAGRAM, MAX_VIAS, CSeq, Message, unwrap_description
from tests.processor_time import processor_seconds

INVITE = (
    b"INVITE sip:agent@192.0.2.2 SIP/2.0\r\n"
    b"Via: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK1;rport\r\n"
    b'From: "A. Caller" <sip:+15551230000@192.0.2.1;user=phone>;tag=a\r\n'
    b"To: <sip:agent@192.0.2.2>\r\n"
    b"Call-ID: one@192.0.2.1\r\n"
    b"CSeq: 1 INVITE\r\n"
    b"Max-Forwards: 70\r\n"
    b"Contact: <sip:+15551230000@192.0.2.1:5060>\r\n"
    b"Content-Type: application/sdp\r\n"
    b"Content-Length: 3\r\n\r\nv=0"
)


def with_header(line: bytes) -> bytes:
    return INVITE.replace(b"Max-Forwards: 70\r\n", line + b"\r\nMax-Forwards: 70\r\n")


def test_compact_forms_are_the_same_fields() -> None:
    compact = INVITE
    for long, short in ((b"Via", b"v"), (b"From", b"f"), (b"To", b"t"), (b"Call-ID", b"i"), (b"Contact", b"m")):
        compact = compact.replace(b"\r\n" + long + b":", b"\r\n" + short + b" :")
    assert bytes(parse_message(compact)) == bytes(parse_message(INVITE))


def test_a_folded_field_is_one_line() -> None:
    parsed = parse_message(with_header(b"X-Long: one\r\n  two\r\n\tthree"))
    assert parsed.headers.get("x-long") == "one two three"


def test_empty_lines_before_the_message_are_skipped() -> None:
    assert isinstance(parse_message(b"\r\n\r\n" + INVITE), Request)


@pytest.mark.parametrize(
    "data",
    [
        INVITE + b" " * MAX_DATAGRAM,
        with_header(b"\r\n".join([b"X-H: 1"] * MAX_HEADERS)),
        with_header(b"X-H: " + b"x" * 8192),
        with_header(b"Via: " + b",".join([b"SIP/2.0/UDP a;branch=z9hG4bKx"] * MAX_VIAS)),
        with_header(b"X-H: a\nb"),
        with_header(b"No colon"),
        INVITE.replace(b"CSeq: 1 ", "CSeq: ١ ".encode()),
        INVITE.replace(b"CSeq: 1 ", b"CSeq: 2147483648 "),
        INVITE.replace(b":5060;branch", b":99999;branch"),
        INVITE.replace(b"Length: 3", b"Length: 4"),
    ],
)
def test_what_is_too_large_or_not_valid_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_message(data)


@pytest.mark.parametrize(
    "piece", [b'"', b"<", b"\\", b",", b";", b";a=", b"%", b" ", b"\r\n ", b'"\\', b"(", b"[", b":", b'="', b"a"]
)
@pytest.mark.parametrize("field", [b"From", b"Via", b"Contact", b"X-Any"])
def test_no_field_takes_long_to_read(field: bytes, piece: bytes) -> None:
    line = field + b": " + (piece * 8000)[:8000]
    data = INVITE.replace(b"\r\n" + field + b":", b"\r\n" + line + b"\r\nX-Old:", 1)

    def work() -> None:
        for one in (data, with_header(line)):
            try:
                parse_message(one)
            except MalformedMessage:
                pass

    assert processor_seconds(work, 0.5) < 0.5


def test_nobody_can_smuggle_a_field() -> None:
    with pytest.raises(ValueError, match="not valid"):
        Headers().add("X-A", "1\r\nX-B: 2")
    with pytest.raises(ValueError, match="not valid"):
        Headers().add("X-A: 1\r\nX-B", "2")


def test_an_ack_is_never_answered_and_nonsense_is_not_either() -> None:
    for data in (INVITE.replace(b"INVITE", b"ACK").replace(b"CSeq: 1", b"CSeq: x"), b"\x00\x01\x02", b"GET / HTTP/1.1"):
        with pytest.raises(MalformedMessage) as caught:
            parse_message(data)
        assert caught.value.headers is None


@given(st.binary(max_size=2000))
@settings(max_examples=500)
def test_any_bytes_parse_or_are_malformed(data: bytes) -> None:
    try:
        parse_message(data)
    except MalformedMessage:
        pass


@given(
    st.lists(
        st.tuples(st.integers(0, len(INVITE)), st.sampled_from([b"", b'"', b"<", b">", b";", b",", b"\r\n", b"\xff"])),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=800)
def test_any_damage_parses_or_is_malformed(damages: list[tuple[int, bytes]]) -> None:
    data = INVITE
    for position, piece in damages:
        data = data[:position] + piece + data[position + 1 :]
    try:
        message = parse_message(data)
    except MalformedMessage:
        return
    assert parse_message(bytes(message)).body == message.body


TEXT = st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=20).map(lambda text: f"h{text}")


@given(user=TEXT, host=TEXT, tag=TEXT, number=st.integers(0, 2**31 - 1), value=TEXT)
@settings(max_examples=200)
def test_another_parser_reads_the_same(user: str, host: str, tag: str, number: int, value: str) -> None:
    request = Request(Headers([("Via", f"SIP/2.0/UDP {host}.test;branch=z9hG4bK{tag}")]), b"", "OPTIONS")
    request.uri = request.uri.parse(f"sip:{user}@{host}.test")
    for name, text in (
        ("From", f"<sip:{user}@{host}.test>;tag={tag}"),
        ("To", f"<sip:{host}.test>"),
        ("Call-ID", value),
    ):
        request.headers.add(name, text)
    request.headers.add("CSeq", str(CSeq(number, "OPTIONS")))
    request.headers.add("X-Value", value)
    data = bytes(request)
    ours, theirs = parse_message(data), sipmessage.Message.parse(data)
    assert isinstance(theirs, sipmessage.Request)
    assert theirs.cseq.sequence == ours.cseq.number
    assert theirs.from_address.uri.user == ours.sender.uri.user
    assert theirs.from_address.parameters["tag"] == ours.sender.tag
    assert theirs.via[0].parameters["branch"] == ours.via.branch


ISUP = b"--u-1\r\nContent-Type: application/ISUP;version=itu-t92+\r\n\r\n\x01\x00\r\n"
SDP = b"--u-1\r\nContent-Type: application/sdp\r\nContent-Disposition: session\r\n\r\nv=0\r\ns=-\r\n\r\n"
END = b"--u-1--\r\n"


def unwrapped(body: bytes, kind: str = 'multipart/mixed;boundary="u-1"') -> Message:
    message = Message(Headers([("Content-Type", kind)]), body)
    unwrap_description(message)
    return message


@pytest.mark.parametrize("body", [ISUP + SDP + END, SDP + ISUP + END, b"preamble\r\n" + ISUP + SDP + END, SDP])
def test_the_description_becomes_the_body(body: bytes) -> None:
    message = unwrapped(body)
    assert message.body.startswith(b"v=0\r\ns=-\r\n")
    assert message.content_type == "application/sdp"


@pytest.mark.parametrize(
    ("body", "kind"),
    [(ISUP + END, "multipart/mixed;boundary=u-1"), (SDP, "multipart/mixed"), (SDP, "text/plain"), (b"", "multipart/x")],
)
def test_without_one_everything_stays(body: bytes, kind: str) -> None:
    message = unwrapped(body, kind)
    assert message.body == body
    assert message.headers.get("Content-Type") == kind


def test_hundreds_of_parts_are_not_searched() -> None:
    assert unwrapped(ISUP * 500 + SDP).content_type == "multipart/mixed"
