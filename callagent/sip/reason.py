"""Why a peer ended a call, in its own words (RFC 3326)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callagent.sip.grammar import is_token, parse_integer, split_list
from callagent.sip.parameters import Parameters

_MAX_REASONS = 8
_MAX_CAUSE = 999


@dataclass(frozen=True, slots=True)
class Reason:
    protocol: str
    """`SIP` (the cause is a status), `Q.850` or another."""
    cause: int | None = None
    text: str = ""

    @classmethod
    def parse(cls, value: str) -> Reason:
        """One value. Raises `ValueError`."""
        protocol, separator, rest = value.partition(";")
        protocol = protocol.strip()
        if not is_token(protocol):
            raise ValueError("Reason is not valid")
        parameters = Parameters.parse(separator + rest)
        cause = parameters.get("cause")
        return cls(
            protocol, None if cause is None else parse_integer(cause.strip(), _MAX_CAUSE), parameters.get("text") or ""
        )

    def __str__(self) -> str:
        """As figures count it, without the text: `Q.850 16`."""
        return self.protocol if self.cause is None else f"{self.protocol} {self.cause}"


def parse_reasons(values: Sequence[str]) -> tuple[Reason, ...]:
    """Those that can be read, eight at most: each protocol may give its own (§2)."""
    reasons: list[Reason] = []
    for value in values:
        try:
            reasons += [Reason.parse(item) for item in split_list(value)[:_MAX_REASONS]]
        except ValueError:
            continue
    return tuple(reasons[:_MAX_REASONS])
