"""Who asks, and what they may."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from aiohttp import web


class Right(Enum):
    VIEW = "view"
    """Calls, figures and timings, without numbers and words."""
    PERSONAL = "personal"
    """Who called, what was said, recordings."""
    CONTROL = "control"
    """Hang up a call, give it to a person; with `personal`: delete what is kept of a caller."""
    CALL = "call"
    """Talk to the agents at `/phone`, and let them dial."""
    CONFIGURE = "configure"
    """Change the settings that projects read while calls run."""


ALL_RIGHTS: Final = frozenset(Right)


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    rights: frozenset[Right]
    csrf: str = ""
    """What an unsafe request of this session must carry; empty: no session, nothing a foreign page could use."""

    def may(self, right: Right) -> bool:
        return right in self.rights


LOCAL: Final = Identity("local", ALL_RIGHTS)
"""The user who started the server, of one without accounts."""
METRICS_READER: Final = Identity("metrics", frozenset())
"""Whoever has the token of the metrics, and sees nothing else."""


IDENTITY: Final = web.RequestKey("identity", Identity)


def identity_of(request: web.Request) -> Identity:
    """Set by the guard for every request that is let in."""
    return request[IDENTITY]


def require(request: web.Request, right: Right) -> Identity:
    """Raises 403 for who may not."""
    identity = identity_of(request)
    if not identity.may(right):
        raise web.HTTPForbidden(text=f"the right '{right.value}' is needed")
    return identity
