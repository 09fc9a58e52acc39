"""Keys in the session description (SDES, RFC 4568; the GCM suites of RFC 7714)."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from dataclasses import dataclass, field

KEY_OCTETS = {
    "AES_CM_128_HMAC_SHA1_80": 30,
    "AES_CM_128_HMAC_SHA1_32": 30,
    "AEAD_AES_128_GCM": 28,
    "AEAD_AES_256_GCM": 44,
}
"""Suites and the lengths of their master key with its salt."""
OFFERED = ("AEAD_AES_256_GCM", "AEAD_AES_128_GCM", "AES_CM_128_HMAC_SHA1_80", "AES_CM_128_HMAC_SHA1_32")
_LINE = re.compile(r"(\d{1,9})[ \t]+(\S+)[ \t]+(\S+)((?:[ \t]+\S+)*)[ \t]*")
_INLINE = re.compile(r"inline:([A-Za-z0-9+/]+={0,2})(\|(?:2\^\d{1,2}|\d{1,15}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Crypto:
    """One `a=crypto` line that can be used."""

    tag: int
    suite: str
    key: bytes = field(repr=False)
    """Master key and salt."""

    @classmethod
    def parse(cls, value: str) -> Crypto:
        """Raises `ValueError`, also for what we do not do: several keys, their identifiers, weaker sessions."""
        match = _LINE.fullmatch(value)
        if match is None:
            raise ValueError("SDP crypto line is not valid")
        suite = match[2].upper()
        # A session parameter must be understood, unless it begins with a hyphen (§6.3); the window is only a hint.
        if any(not each.upper().startswith(("-", "WSH=")) for each in match[4].split()):
            raise ValueError("SDP crypto line has parameters that we do not support")
        inline = _INLINE.fullmatch(match[3])
        if inline is None or suite not in KEY_OCTETS:
            raise ValueError("SDP crypto line is not supported")
        try:
            key = base64.b64decode(inline[1] + "=" * (-len(inline[1]) % 4), validate=True)
        except binascii.Error:
            raise ValueError("SDP key is not valid") from None
        if len(key) != KEY_OCTETS[suite]:
            raise ValueError("SDP key is not valid")
        return cls(int(match[1]), suite, key)

    @classmethod
    def make(cls, tag: int, suite: str) -> Crypto:
        """With a new random key."""
        return cls(tag, suite, secrets.token_bytes(KEY_OCTETS[suite]))

    def __str__(self) -> str:
        return f"{self.tag} {self.suite} inline:{base64.b64encode(self.key).decode()}"


def usable(values: list[str]) -> list[Crypto]:
    """The lines that can be used, in the peer's order; a tag that comes twice counts for nothing (§4.1)."""
    lines = []
    for value in values:
        try:
            lines.append(Crypto.parse(value))
        except ValueError:
            continue
    tags = [line.tag for line in lines]
    return [line for line in lines if tags.count(line.tag) == 1]
