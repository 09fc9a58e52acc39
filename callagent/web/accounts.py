"""Accounts: hashed passwords and tokens, sessions, and what slows down guessing. No I/O but the hash."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

SESSION_SECONDS: Final = 12 * 3600.0
LINK_SECONDS: Final = 600.0
"""How long a link is good for."""
_LINK_BOUND: Final = 20
_SESSION_BOUND = 1000
_ATTEMPTS = 10
_ATTEMPT_SECONDS = 300.0
_ADDRESS_BOUND = 10_000
# scrypt: 16 MB and some 50 ms a try (RFC 7914).
_COST, _BLOCK, _PARALLEL = 2**14, 8, 1


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


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    rights: frozenset[Right]
    password: str = ""
    """As `hash_password` makes it; empty: no login with a password."""
    token: str = ""
    """SHA-256 of a bearer token in hexadecimal; a token is random, it needs no slow hash."""


def hash_password(password: str) -> str:
    """What the settings hold instead of the password."""
    salt = secrets.token_bytes(16)
    return f"scrypt${_text(salt)}${_text(_scrypt(password, salt))}"


def password_fits(password: str, hashed: str) -> bool:
    """Takes some 50 ms: call it from a thread."""
    kind, _, rest = hashed.partition("$")
    salt, _, digest = rest.partition("$")
    if kind != "scrypt":
        return False
    return hmac.compare_digest(_scrypt(password, base64.b64decode(salt)), base64.b64decode(digest))


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, maxmem=64 << 20)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# A name that nobody has costs as much time as a wrong password.
_NOBODY: Final = "scrypt$AAAAAAAAAAAAAAAAAAAAAA==$" + _text(bytes(64))


class Accounts:
    """Who may log in, and who has. `now` is monotonic seconds."""

    def __init__(self, accounts: Sequence[Account]) -> None:
        self._accounts = {account.name: account for account in accounts}
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, tuple[Identity, float]] = OrderedDict()
        self._attempts: OrderedDict[str, deque[float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def hash_of(self, name: str) -> str:
        """What a password of `name` is to be compared with."""
        account = self._accounts.get(name)
        return account.password if account and account.password else _NOBODY

    def attempt(self, address: str, now: float) -> bool:
        """Whether `address` may try a password. The attempt counts from here on: many at once are not free."""
        attempts = self._attempts.setdefault(address, deque())
        while attempts and attempts[0] < now - _ATTEMPT_SECONDS:
            attempts.popleft()
        if len(attempts) >= _ATTEMPTS:
            return False
        attempts.append(now)
        self._attempts.move_to_end(address)
        while len(self._attempts) > _ADDRESS_BOUND:
            self._attempts.popitem(last=False)
        return True

    def succeeded(self, address: str, began: float) -> None:
        """The attempt that began then showed the right password: it does not count; the others go on counting."""
        if began in (attempts := self._attempts.get(address, deque())):
            attempts.remove(began)

    def log_in(self, name: str, now: float) -> tuple[str, Identity]:
        """A new session's cookie, for who has shown the password."""
        account = self._accounts[name]
        return self.begin_session(account.name, account.rights, now)

    def begin_session(self, name: str, rights: frozenset[Right], now: float) -> tuple[str, Identity]:
        """Its cookie."""
        cookie = secrets.token_urlsafe(32)
        identity = Identity(name, rights, secrets.token_urlsafe(32))
        self._sessions[_key(cookie)] = (identity, now + SESSION_SECONDS)
        while len(self._sessions) > _SESSION_BOUND:
            self._sessions.popitem(last=False)
        return cookie, identity

    def session(self, cookie: str, now: float) -> Identity | None:
        found = self._sessions.get(_key(cookie))
        if found is None:
            return None
        if found[1] <= now:
            self.log_out(cookie)
            return None
        return found[0]

    def log_out(self, cookie: str) -> None:
        self._sessions.pop(_key(cookie), None)

    def vouched(self, name: str) -> Identity | None:
        """The account that a proxy says it has let in. Its browser's requests carry a proof as a session's do."""
        account = self._accounts.get(name)
        if account is None:
            return None
        return Identity(name, account.rights, hmac.new(self._secret, name.encode(), "sha256").hexdigest())

    def bearer(self, token: str) -> Identity | None:
        """Whose token it is."""
        digest = _key(token)
        for account in self._accounts.values():
            if account.token and hmac.compare_digest(account.token.lower(), digest):
                return Identity(account.name, account.rights)
        return None


class LocalLogin:
    """The token that the command line reads from its file, and links of which each opens one session.

    Only hashes are kept of links. `now` is monotonic seconds.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(32)
        self._links: OrderedDict[str, float] = OrderedDict()

    def knows(self, token: str) -> bool:
        return hmac.compare_digest(_key(token), _key(self.token))

    def make_link(self, now: float) -> str:
        """The secret of a new link. The oldest link is given up where there are too many."""
        link = secrets.token_urlsafe(32)
        self._links[_key(link)] = now + LINK_SECONDS
        while len(self._links) > _LINK_BOUND:
            self._links.popitem(last=False)
        return link

    def take_link(self, link: str, now: float) -> bool:
        """Whether the link was good. It is not any more."""
        ends = self._links.pop(_key(link), None)
        return ends is not None and now < ends


def _key(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
