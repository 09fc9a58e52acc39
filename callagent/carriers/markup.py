"""The answers to a carrier that asks over HTTP what to do with a call, and the language in which they are written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Verdict(Enum):
    """An answer that needs no more words."""

    HANG_UP = "hang up"
    REJECT = "reject"
    """Refuse the call before it is answered: the caller hears busy and pays nothing."""
    CARRY_ON = "carry on"
    """Leave the call as it is."""


@dataclass(frozen=True, slots=True)
class ConnectStream:
    """Open a media stream for the call."""

    token: str
    """It proves, once, that the stream belongs to this call."""
    caller: str
    callee: str


@dataclass(frozen=True, slots=True)
class Greet:
    """Say some words to the person who was called, before the caller is joined to them."""

    text: str
    """Empty: nothing is said."""
    confirm_key: str
    """The key by which the person takes the call; empty: the answer alone counts."""


Answer = Verdict | ConnectStream | Greet


class Markup(Protocol):
    """The XML documents of one carrier. A carrier that is led by requests of ours needs none."""

    content_type: str

    def write_document(self, answer: Answer) -> str:
        """Return the whole document; text from outside is escaped."""
