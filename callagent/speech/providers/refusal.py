"""What a provider's refusal means, as HTTP status and JSON body tell it."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from typing import Any

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout

REASON_LIMIT = 300


def refusal(who: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """The error for an answer that is not 2xx (RFC 9110 §15.5, §15.6)."""
    reason = reason_of(body)
    text = f"{who} answered {status}" + (f": {reason}" if reason else "")
    retry_after = parse_retry_after(headers.get("Retry-After", ""), time.time())
    if status in (408, 504):
        return ProviderTimeout(text)
    if 400 <= status < 500 or retry_after is not None:
        return ProviderRefused(text, status, retry_after)
    return ProviderError(text)


def reason_of(body: bytes) -> str:
    """The words of an error body, wherever the provider puts them."""
    try:
        data = json.loads(body)
    except ValueError:
        return ""
    for key in ("error", "detail", "message", "err_msg", "reason", "title"):
        while isinstance(data, dict) and data.get(key):
            data = data[key]
    return data[:REASON_LIMIT] if isinstance(data, str) else ""


def parse_retry_after(value: str, now: float) -> float | None:
    """Seconds, from a number or a date (RFC 9110 §10.2.3); None for what is neither."""
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (TypeError, ValueError):
        return None


def parse_object(who: str, message: str | bytes, limit: int) -> dict[str, Any]:
    """A provider's JSON object. Raises `ProviderError` for anything else, and for what is longer than `limit`."""
    if len(message) > limit:
        raise ProviderError(f"{who} sent a message of {len(message)} bytes")
    try:
        data = json.loads(message)
    except (ValueError, RecursionError):
        raise ProviderError(f"{who} sent what is no JSON: {message[:80]!r}") from None
    if not isinstance(data, dict):
        raise ProviderError(f"{who} sent what is no JSON object: {message[:80]!r}")
    return data
