"""The SHAKEN PASSporT of an Identity header field: what the caller's network attests (RFC 8224, 8225, 8588).

It is parsed, and its signature is not verified.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Any

MAX_AGE = 60.0
"""Seconds; an older one may be the replay of another call's (RFC 8224 §12.1)."""
_MAX_LENGTH = 8 * 1024
_INFO = re.compile(r"info\s*=\s*<([^<>]*)>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Passport:
    attestation: str
    """`A`: the network knows the caller and its right to the number; `B`: the caller only; `C`: neither."""
    origin: str
    """The digits of the calling number."""
    destinations: tuple[str, ...]
    issued: float
    """Seconds since 1970."""
    origin_id: str
    url: str
    """The URL of the signer's certificate, which is never fetched."""

    @classmethod
    def parse(cls, value: str) -> Passport:
        """Parse an Identity header field of type `shaken`. Raises `ValueError`."""
        token, _, rest = value.strip().partition(";")
        if len(value) > _MAX_LENGTH or token.count(".") != 2:
            raise ValueError("Identity is not valid")
        header, claims = (_decode(part) for part in token.split(".")[:2])
        if header.get("ppt") != "shaken" or header.get("typ") != "passport":
            raise ValueError("Identity is not a SHAKEN PASSporT")
        attestation, issued, origin = claims.get("attest"), claims.get("iat"), claims.get("orig")
        if attestation not in ("A", "B", "C") or type(issued) is not int or not isinstance(origin, dict):
            raise ValueError("PASSporT is not valid")
        destination = claims.get("dest")
        numbers = destination.get("tn") if isinstance(destination, dict) else None
        return cls(
            attestation,
            _digits(origin.get("tn")),
            tuple(_digits(number) for number in numbers) if isinstance(numbers, list) else (),
            float(issued),
            str(claims.get("origid") or "")[:128],
            url[1] if (url := _INFO.search(rest)) else "",
        )

    def fits(self, caller: str, now: float) -> bool:
        """Whether it is about this caller and was issued less than `MAX_AGE` seconds ago."""
        return bool(self.origin) and self.origin == _digits(caller) and abs(now - self.issued) <= MAX_AGE


def _decode(part: str) -> dict[str, Any]:
    try:
        decoded = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise ValueError("Identity is not valid") from None
    if not isinstance(decoded, dict):
        raise ValueError("Identity is not valid")
    return decoded


def _digits(number: object) -> str:
    return "".join(mark for mark in str(number or "") if mark.isascii() and mark.isdigit())
