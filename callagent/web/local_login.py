"""How the user who started the server gets in while there are no accounts: a token in a private file, and links."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import Final

LINK_SECONDS: Final = 600.0
"""How long a link is good for."""
_LINK_BOUND: Final = 20


class LocalLogin:
    """The token that the command line reads from its file, and links of which each opens one session.

    Only hashes are kept of links. `now` is monotonic seconds.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(32)
        self._links: OrderedDict[str, float] = OrderedDict()

    def knows(self, token: str) -> bool:
        return hmac.compare_digest(_digest(token), _digest(self.token))

    def make_link(self, now: float) -> str:
        """The secret of a new link. The oldest link is given up where there are too many."""
        link = secrets.token_urlsafe(32)
        self._links[_digest(link)] = now + LINK_SECONDS
        while len(self._links) > _LINK_BOUND:
            self._links.popitem(last=False)
        return link

    def take_link(self, link: str, now: float) -> bool:
        """Whether the link was good. It is not any more."""
        ends = self._links.pop(_digest(link), None)
        return ends is not None and now < ends


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
