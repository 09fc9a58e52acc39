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
"""Seconds that may pass between the webhook's answer and the stream's start."""
MAX_TOKENS: Final = 4096

T = TypeVar("T")


class TooManyTokens(CallagentError):
    """More webhooks were answered within a minute than streams were opened."""


@dataclass(frozen=True, slots=True)
class _Issued(Generic[T]):
    call_id: str
    expires: float
    value: T


class TokenTable(Generic[T]):
    """The tokens that were issued and not yet used, each with a value that the server keeps for its stream."""

    def __init__(self, lifetime: float = LIFETIME, capacity: int = MAX_TOKENS) -> None:
        self._lifetime = lifetime
        self._capacity = capacity
        # By digest, oldest first: how long a look-up takes tells nothing about the token itself.
        self._issued: OrderedDict[bytes, _Issued[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, call_id: str, value: T, now: float) -> str:
        """Return a new token for one stream of this call. Raises `TooManyTokens`."""
        self._expire(now)
        if len(self._issued) >= self._capacity:
            raise TooManyTokens(f"{self._capacity} tokens are waiting for their streams")
        token = secrets.token_urlsafe(32)
        self._issued[_digest(token)] = _Issued(call_id, now + self._lifetime, value)
        return token

    def redeem(self, token: str, call_id: str, now: float) -> T | None:
        """Use the token up and return its value; None for one that is unknown, used, expired or of another call."""
        issued = self._issued.pop(_digest(token), None)
        if issued is None or now >= issued.expires:
            return None
        if not hmac.compare_digest(issued.call_id.encode(), call_id.encode("utf-8", "surrogatepass")):
            return None
        return issued.value

    def _expire(self, now: float) -> None:
        while self._issued and next(iter(self._issued.values())).expires <= now:
            self._issued.popitem(last=False)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
