"""Accounts with their rights and sessions, bounds on guessing passwords, and the login of a server without accounts."""

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
"""How long a login link can be used."""
# Bounds on memory: the oldest link, session or address is forgotten for a new one.
_MAX_LINKS: Final = 20
_MAX_SESSIONS = 1000
_MAX_ATTEMPTS = 10
"""Wrong passwords of an address within `_ATTEMPT_SECONDS`."""
_ATTEMPT_SECONDS = 300.0
_MAX_ADDRESSES = 10_000
# scrypt (RFC 7914): 16 MB and some 50 ms for each password that is tried.
_COST, _BLOCK, _PARALLEL = 2**14, 8, 1


class Right(Enum):
    """What an account may do; the settings name rights by their values."""

    VIEW = "view"
    """See calls, figures and timings, without telephone numbers and spoken words."""
    PERSONAL = "personal"
    """See who called and what was said; hear recordings."""
    CONTROL = "control"
    """Hang up a call, give it to a person; with `personal`, delete what is stored of a caller."""
    CALL = "call"
    """Talk to the agents at `/phone`, and let them dial."""
    CONFIGURE = "configure"
    """Change the settings that projects read while calls run."""


ALL_RIGHTS: Final = frozenset(Right)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sent a request."""

    name: str
    rights: frozenset[Right]
    csrf: str = ""
    """The token that unsafe requests of this session must carry; empty where there is no session to be misused."""

    def may(self, right: Right) -> bool:
        """Return whether the account has the right."""
        return right in self.rights


LOCAL: Final = Identity("local", ALL_RIGHTS)
"""The user who started a server without accounts."""
METRICS_READER: Final = Identity("metrics", frozenset())
"""The holder of the metrics token, who sees nothing else."""


@dataclass(frozen=True, slots=True)
class Account:
    """One of the settings' users."""

    name: str
    rights: frozenset[Right]
    password: str = ""
    """The hash that `hash_password` returns; empty: no login with a password."""
    token: str = ""
    """SHA-256 of a bearer token in hexadecimal; a random token needs no slow hash."""


def hash_password(password: str) -> str:
    """Return the salted hash that the settings hold instead of the password."""
    salt = secrets.token_bytes(16)
    return f"scrypt${_base64(salt)}${_base64(_scrypt(password, salt))}"


def password_fits(password: str, hashed: str) -> bool:
    """Return whether the password is the hashed one. It takes some 50 ms: call it from a thread."""
    kind, _, rest = hashed.partition("$")
    salt, _, digest = rest.partition("$")
    if kind != "scrypt":
        return False
    # The comparison takes the same time for every wrong password, as all comparisons of secrets here do.
    return hmac.compare_digest(_scrypt(password, base64.b64decode(salt)), base64.b64decode(digest))


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, maxmem=64 << 20)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# For an unknown name a password is hashed as well: the time that this takes must not tell which names exist.
_UNMATCHED_HASH: Final = "scrypt$AAAAAAAAAAAAAAAAAAAAAA==$" + _base64(bytes(64))


class Accounts:
    """The accounts, their sessions, and the attempts to log in. `now` is seconds of the monotonic clock."""

    def __init__(self, accounts: Sequence[Account]) -> None:
        self._accounts = {account.name: account for account in accounts}
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, tuple[Identity, float]] = OrderedDict()
        self._attempts: OrderedDict[str, deque[float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def hash_of(self, name: str) -> str:
        """Return the hash to compare a password of `name` with; for an unknown name one that no password has."""
        account = self._accounts.get(name)
        return account.password if account and account.password else _UNMATCHED_HASH

    def count_attempt(self, address: str, now: float) -> bool:
        """Count an attempt of `address` to log in, before its outcome is known; return whether it may be made."""
        attempts = self._attempts.setdefault(address, deque())
        while attempts and attempts[0] < now - _ATTEMPT_SECONDS:
            attempts.popleft()
        if len(attempts) >= _MAX_ATTEMPTS:
            return False
        attempts.append(now)
        self._attempts.move_to_end(address)
        while len(self._attempts) > _MAX_ADDRESSES:
            self._attempts.popitem(last=False)
        return True

    def uncount_attempt(self, address: str, began: float) -> None:
        """Take back the attempt that began at `began`, whose password was right. The others go on counting."""
        if began in (attempts := self._attempts.get(address, deque())):
            attempts.remove(began)

    def log_in(self, name: str, now: float) -> tuple[str, Identity]:
        """Begin a session of an account whose password was right; return its cookie and the identity."""
        account = self._accounts[name]
        return self.begin_session(account.name, account.rights, now)

    def begin_session(self, name: str, rights: frozenset[Right], now: float) -> tuple[str, Identity]:
        """Begin a session; return its cookie, of which only a hash is kept, and the identity."""
        # Every login gets a new cookie, so that one planted in the browser before is worth nothing.
        cookie = secrets.token_urlsafe(32)
        identity = Identity(name, rights, secrets.token_urlsafe(32))
        self._sessions[_sha256(cookie)] = (identity, now + SESSION_SECONDS)
        while len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return cookie, identity

    def identify_by_cookie(self, cookie: str, now: float) -> Identity | None:
        """Return the identity whose session has this cookie; None: there is no such session, or it has ended."""
        found = self._sessions.get(_sha256(cookie))
        if found is None:
            return None
        if found[1] <= now:
            self.log_out(cookie)
            return None
        return found[0]

    def log_out(self, cookie: str) -> None:
        self._sessions.pop(_sha256(cookie), None)

    def identify_by_proxy(self, name: str) -> Identity | None:
        """Return the account that a proxy has logged in; None: there is none. As a session, it needs a CSRF token."""
        account = self._accounts.get(name)
        if account is None:
            return None
        # There is no session to keep a CSRF token in: it is derived from the name, by a secret of this process.
        return Identity(name, account.rights, hmac.new(self._secret, name.encode(), "sha256").hexdigest())

    def identify_by_token(self, token: str) -> Identity | None:
        """Return the account that the bearer token belongs to; None: there is none."""
        digest = _sha256(token)
        for account in self._accounts.values():
            if account.token and hmac.compare_digest(account.token.lower(), digest):
                return Identity(account.name, account.rights)
        return None


class LocalLogin:
    """The login without accounts: a token that the command line reads from a private file, and links for browsers.

    A link opens one session; only its hash is kept. `now` is seconds of the monotonic clock.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(32)
        self._links: OrderedDict[str, float] = OrderedDict()

    def has_token(self, token: str) -> bool:
        """Return whether `token` is the one in the private file."""
        return hmac.compare_digest(_sha256(token), _sha256(self.token))

    def make_link(self, now: float) -> str:
        """Return the secret of a new link; if there are too many links, the oldest becomes invalid."""
        link = secrets.token_urlsafe(32)
        self._links[_sha256(link)] = now + LINK_SECONDS
        while len(self._links) > _MAX_LINKS:
            self._links.popitem(last=False)
        return link

    def take_link(self, link: str, now: float) -> bool:
        """Use a link up; return whether it was valid."""
        ends_at = self._links.pop(_sha256(link), None)
        return ends_at is not None and now < ends_at


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
