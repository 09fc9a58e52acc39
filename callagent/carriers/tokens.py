"""One-time tokens: they tie a media stream to the signed webhook that asked for it."""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar

from callagent.errors import CallagentError

LIFETIME: Final = 60.0
"""Seconds between the webhook's answer and the stream's start."""
CAPACITY: Final = 4096

T = TypeVar("T")


class TooManyTokens(CallagentError):
    """More webhooks were answered within a minute than streams were opened."""


@dataclass(frozen=True, slots=True)
class _Issued(Generic[T]):
    call_sid: str
    expires: float
    held: T


class TokenTable(Generic[T]):
    """Tokens that were given out and not yet used, each with what the server keeps for it."""

    def __init__(self, lifetime: float = LIFETIME, capacity: int = CAPACITY) -> None:
        self._lifetime = lifetime
        self._capacity = capacity
        # By digest, oldest first: the time a look-up takes tells nothing about the token.
        self._issued: OrderedDict[bytes, _Issued[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, call_sid: str, held: T, now: float) -> str:
        """A new token for one stream of this call. Raises `TooManyTokens`."""
        self._expire(now)
        if len(self._issued) >= self._capacity:
            raise TooManyTokens(f"{self._capacity} tokens are waiting for their streams")
        token = secrets.token_urlsafe(32)
        self._issued[_digest(token)] = _Issued(call_sid, now + self._lifetime, held)
        return token

    def redeem(self, token: str, call_sid: str, now: float) -> T | None:
        """What was kept for the token, once; None: unknown, used, expired, another call's. It is spent in any case."""
        issued = self._issued.pop(_digest(token), None)
        if issued is None or now >= issued.expires:
            return None
        if not hmac.compare_digest(issued.call_sid.encode(), call_sid.encode("utf-8", "surrogatepass")):
            return None
        return issued.held

    def _expire(self, now: float) -> None:
        while self._issued and next(iter(self._issued.values())).expires <= now:
            self._issued.popitem(last=False)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
