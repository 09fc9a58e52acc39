"""Finds the session description in a multipart body (RFC 2046 §5.1, RFC 5621); what gateways put beside is skipped."""

from __future__ import annotations

import re

from callagent.sip.grammar import QUOTED_STRING, TOKEN, unquote
from callagent.sip.message import Message

MAX_PARTS = 16
SDP = "application/sdp"
_BOUNDARY = re.compile(rf";\s*boundary\s*=\s*({QUOTED_STRING}|{TOKEN}|[^\s;\"]+)", re.IGNORECASE | re.DOTALL)
_PART_TYPE = re.compile(rb"^content-type[ \t]*:[ \t]*([^\s;]+)", re.IGNORECASE | re.MULTILINE)


def unwrap_description(message: Message) -> None:
    """Make the SDP part the message's body; a multipart without one stays as it is."""
    if not (message.content_type or "").startswith("multipart/"):
        return
    match = _BOUNDARY.search(message.headers.get("Content-Type") or "")
    if match is None:
        return
    found = _find(message.body, unquote(match[1]).encode("utf-8", "surrogateescape"))
    if found is not None:
        message.body = found
        message.headers.set("Content-Type", SDP)


def _find(body: bytes, boundary: bytes) -> bytes | None:
    # The line break before a delimiter belongs to it, and the first one may lack it.
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    for part in parts[1 : MAX_PARTS + 1]:
        head, separator, content = part.partition(b"\r\n\r\n")
        kind = _PART_TYPE.search(head)
        if separator and kind is not None and kind[1].decode("ascii", "replace").lower() == SDP:
            return content
    return None
