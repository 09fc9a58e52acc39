"""DTMF digits in INFO bodies, in the two forms that gateways send."""

from __future__ import annotations

import re

_RELAY = re.compile(rb"\s*Signal\s*=\s*(\d{1,2}|[A-Da-d*#])\s*(?:\r?\n.*)?", re.IGNORECASE | re.DOTALL)
_PLAIN = re.compile(rb"\s*(\d{1,2}|[A-Da-d*#])\s*")
_NUMBERED = {"10": "*", "11": "#", "12": "A", "13": "B", "14": "C", "15": "D"}

DTMF_TYPES = ("application/dtmf-relay", "application/dtmf")


def parse_digit(content_type: str, body: bytes) -> str | None:
    """The digit, one of `0123456789*#ABCD`; None where the body says another signal, such as a hook flash."""
    form = _RELAY if content_type == "application/dtmf-relay" else _PLAIN
    match = form.fullmatch(body)
    if match is None:
        return None
    signal = match[1].decode().upper()
    return _NUMBERED.get(signal, signal if len(signal) == 1 else None)
