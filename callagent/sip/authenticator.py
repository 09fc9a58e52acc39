"""Lets peers in who prove a password (RFC 7616): signed nonces, each count once, and a lock after too many failures."""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from callagent.sip.digest import ALGORITHMS, Proof, parse_digest, write_digest
from callagent.sip.message import Request

NONCE_SECONDS = 60.0
MAX_FAILURES = 5
FAILURE_SECONDS = 60.0
_MAX_NONCES = 20_000
_MAX_HOSTS = 20_000
_FIELDS = ("username", "realm", "nonce", "uri", "response", "cnonce", "nc", "qop")


def _anywhere(host: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Account:
    """What a peer has to prove to be let in as a trunk."""

    trunk: str
    password: str = field(repr=False)
    admits: Callable[[str], bool] = _anywhere
    """Whether it may come from this IP address."""


@dataclass(frozen=True, slots=True)
class DigestSettings:
    realm: str
    accounts: Mapping[str, Account]
    """By user name."""
    algorithms: Sequence[str] = tuple(ALGORITHMS)
    """Offered in this order; some peers read the first challenge only, and know MD5 only."""


@dataclass(frozen=True, slots=True)
class Verdict:
    trunk: str | None
    """The trunk that was proven."""
    challenges: tuple[str, ...] = ()
    """Values of WWW-Authenticate for a 401 otherwise; the same for known and unknown users."""


class Authenticator:
    def __init__(self, settings: DigestSettings) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(32)
        # An unknown user costs the same time as a known one.
        self._nobody = Account("", secrets.token_hex(16), lambda host: False)
        self._counts: dict[str, tuple[float, int]] = {}
        self._failures: dict[str, deque[float]] = {}

    def is_locked(self, host: str, now: float) -> bool:
        """Whether this address failed so often of late that it is not listened to."""
        failures = self._failures.get(host)
        if failures is None:
            return False
        while failures and failures[0] <= now - FAILURE_SECONDS:
            failures.popleft()
        if not failures:
            del self._failures[host]
        return len(failures) >= MAX_FAILURES

    def check(self, request: Request, host: str, now: float) -> Verdict:
        for value in request.headers.values("Authorization"):
            try:
                fields = parse_digest(value)
            except ValueError:
                continue
            if fields.get("realm") == self._settings.realm:
                return self._check(request.method, fields, host, now)
        return self._challenge(host, now)

    def _check(self, method: str, fields: Mapping[str, str], host: str, now: float) -> Verdict:
        algorithm = fields.get("algorithm", "MD5").upper()
        complete = all(fields.get(name) for name in _FIELDS) and fields["qop"].lower() == "auth"
        if not complete or algorithm not in self._settings.algorithms:
            return self._fail(host, now)
        account = self._settings.accounts.get(fields["username"], self._nobody)
        # The URI is the one that the peer signed: gateways on the way may have rewritten the request's.
        proof = Proof(
            fields["username"], fields["realm"], method, fields["uri"], fields["nonce"],
            algorithm, fields["qop"], fields["nc"], fields["cnonce"],
        )  # fmt: skip
        right = _same(proof.response(account.password), fields["response"].lower())
        if not right or not account.admits(host):
            return self._fail(host, now)
        if not self._is_fresh(fields["nonce"], fields["nc"], host, now):
            return self._challenge(host, now, stale=True)
        self._failures.pop(host, None)
        return Verdict(account.trunk)

    def _is_fresh(self, nonce: str, nc: str, host: str, now: float) -> bool:
        """Ours, young, made for this address, and with a higher count than before."""
        stamp, _, signature = nonce.partition("-")
        try:
            made, count = int(stamp[:12], 16) / 1000, int(nc, 16)
        except ValueError:
            return False
        if len(nc) != 8 or not _same(signature, self._sign(stamp, host)):
            return False
        if not now - NONCE_SECONDS <= made <= now + 1 or count <= self._counts.get(nonce, (0.0, 0))[1]:
            return False
        self._remember(nonce, made, count, now)
        return True

    def _remember(self, nonce: str, made: float, count: int, now: float) -> None:
        if len(self._counts) >= _MAX_NONCES:
            self._counts = {own: seen for own, seen in self._counts.items() if seen[0] > now - NONCE_SECONDS}
        if len(self._counts) >= _MAX_NONCES:
            # More live nonces than anybody honest has: start anew rather than grow or let a replay pass.
            self._key = secrets.token_bytes(32)
            self._counts.clear()
        self._counts[nonce] = (made, count)

    def _fail(self, host: str, now: float) -> Verdict:
        if len(self._failures) >= _MAX_HOSTS:
            self._failures.pop(next(iter(self._failures)))
        self._failures.setdefault(host, deque(maxlen=MAX_FAILURES)).append(now)
        return self._challenge(host, now)

    def _challenge(self, host: str, now: float, *, stale: bool = False) -> Verdict:
        stamp = f"{int(now * 1000):012x}{secrets.token_hex(4)}"
        fields = {"realm": self._settings.realm, "nonce": f"{stamp}-{self._sign(stamp, host)}", "qop": '"auth"'}
        if stale:
            fields["stale"] = "true"
        return Verdict(None, tuple(write_digest({**fields, "algorithm": name}) for name in self._settings.algorithms))

    def _sign(self, stamp: str, host: str) -> str:
        return hmac.new(self._key, _octets(f"{stamp} {host}"), "sha256").hexdigest()[:32]


def _same(one: str, other: str) -> bool:
    """In a time that tells nothing of where they differ."""
    return hmac.compare_digest(_octets(one), _octets(other))


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
