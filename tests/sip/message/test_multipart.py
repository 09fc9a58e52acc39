"""The session description among what gateways put beside it."""

from __future__ import annotations

import pytest

from callagent.sip.message.headers import Headers
from callagent.sip.message.message import Message, unwrap_description

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
