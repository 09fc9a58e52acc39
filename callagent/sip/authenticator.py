"""Digest authentication of peers (RFC 7616): signed nonces, each count accepted once, a lock after many failures.

Only a failure with a valid nonce that was signed for the sender's address counts towards the lock: an attacker who
forges that address never receives the nonce, and so cannot lock its owner out.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from callagent.sip.message import ALGORITHMS, Hop, Proof, Request, parse_digest, write_digest

NONCE_SECONDS = 60.0
"""How long a nonce is valid."""
MAX_FAILURES = 5
FAILURE_SECONDS = 60.0
"""So many failures within this time lock an address."""
PROVEN_SECONDS = 3600.0
"""How long a source that has proven a password is exempt from the lock and the rate limit of its address."""
_MAX_NONCES = 20_000
_MAX_HOSTS = 20_000
_FIELDS = ("username", "realm", "nonce", "uri", "response", "cnonce", "nc", "qop")


def _anywhere(host: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Account:
    """The account that a peer proves to be served as a trunk."""

    trunk: str
    password: str = field(repr=False)
    admits: Callable[[str], bool] = _anywhere
    """Whether the account may be used from this IP address."""


@dataclass(frozen=True, slots=True)
class DigestSettings:
    """The realm and accounts that peers authenticate with."""

    realm: str
    accounts: Mapping[str, Account]
    """By user name."""
    algorithms: Sequence[str] = tuple(ALGORITHMS)
    """Offered in this order; some peers read only the first challenge, and support only MD5."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check."""

    trunk: str | None
    """The trunk whose account was proven; None otherwise."""
    challenges: tuple[str, ...] = ()
    """Values of WWW-Authenticate for a 401, the same for known and unknown users."""


class Authenticator:
    """Checks the proofs in requests; keeps counts of nonces, failures and proven sources in bounded memory."""

    def __init__(self, settings: DigestSettings) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(32)
        # The proof of an unknown user is computed as well, so that the time does not reveal which users exist.
        self._nobody = Account("", secrets.token_hex(16), lambda host: False)
        self._counts: dict[str, tuple[float, int]] = {}
        self._failures: dict[str, deque[float]] = {}
        self._proven: OrderedDict[_Source, float] = OrderedDict()

    def is_proven(self, source: Hop, now: float) -> bool:
        """Whether a password was proven from exactly this address and port within `PROVEN_SECONDS`."""
        at = self._proven.get(_source_of(source))
        return at is not None and now - at <= PROVEN_SECONDS

    def is_locked(self, source: Hop, now: float) -> bool:
        """Whether this address has failed so often recently that its requests are dropped.

        A proven source is never locked: another peer behind the same NAT must not lock it out.
        """
        failures = self._failures.get(source.host)
        if failures is None or self.is_proven(source, now):
            return False
        while failures and failures[0] <= now - FAILURE_SECONDS:
            failures.popleft()
        if not failures:
            del self._failures[source.host]
        return len(failures) >= MAX_FAILURES

    def check(self, request: Request, source: Hop, now: float) -> Verdict:
        """Check the proof of a request; without a proof for our realm it gets a challenge."""
        for value in request.headers.values("Authorization"):
            try:
                fields = parse_digest(value)
            except ValueError:
                continue
            if fields.get("realm") == self._settings.realm:
                verdict = self._check(request.method, fields, source.host, now)
                if verdict.trunk is not None:
                    self._note_proven(source, now)
                return verdict
        return self._challenge(source.host, now)

    def _check(self, method: str, fields: Mapping[str, str], host: str, now: float) -> Verdict:
        # A proof whose nonce is not valid for this address is not computed at all: the response would tell a right
        # password from a wrong one without counting as a failure.
        if not self._is_live(fields.get("nonce", ""), host, now):
            return self._challenge(host, now, stale=True)
        algorithm = fields.get("algorithm", "MD5").upper()
        complete = all(fields.get(name) for name in _FIELDS) and fields["qop"].lower() == "auth"
        if not complete or algorithm not in self._settings.algorithms:
            return self._fail(host, now)
        account = self._settings.accounts.get(fields["username"], self._nobody)
        # The URI is that of the proof: gateways may have rewritten the Request-URI since.
        proof = Proof(
            fields["username"], fields["realm"], method, fields["uri"], fields["nonce"],
            algorithm, fields["qop"], fields["nc"], fields["cnonce"],
        )  # fmt: skip
        right = _same(proof.response(account.password), fields["response"].lower())
        if not right or not account.admits(host):
            return self._fail(host, now)
        if not self._counts_up(fields["nonce"], fields["nc"], now):
            return self._challenge(host, now, stale=True)
        self._failures.pop(host, None)
        return Verdict(account.trunk)

    def _is_live(self, nonce: str, host: str, now: float) -> bool:
        """Whether we signed the nonce for this address within `NONCE_SECONDS`."""
        stamp, _, signature = nonce.partition("-")
        return _same(signature, self._sign(stamp, host)) and now - NONCE_SECONDS <= _made(stamp) <= now + 1

    def _counts_up(self, nonce: str, nc: str, now: float) -> bool:
        """Remember the count of a valid nonce; False if it is not higher than all before (a replay)."""
        try:
            count = int(nc, 16)
        except ValueError:
            return False
        if len(nc) != 8 or count <= self._counts.get(nonce, (0.0, 0))[1]:
            return False
        self._remember(nonce, _made(nonce), count, now)
        return True

    def _note_proven(self, source: Hop, now: float) -> None:
        key = _source_of(source)
        self._proven[key] = now
        self._proven.move_to_end(key)
        if len(self._proven) > _MAX_HOSTS:
            self._proven.popitem(last=False)

    def _remember(self, nonce: str, made: float, count: int, now: float) -> None:
        if len(self._counts) >= _MAX_NONCES:
            self._counts = {own: seen for own, seen in self._counts.items() if seen[0] > now - NONCE_SECONDS}
        if len(self._counts) >= _MAX_NONCES:
            # More valid nonces than honest peers have: a new key makes all of them invalid, and memory stays bounded.
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


_Source = tuple[str, int, str]
"""Address, port and transport."""


def _source_of(hop: Hop) -> _Source:
    return (hop.host, hop.port, hop.transport)


def _made(stamp: str) -> float:
    """Return when the nonce with this stamp was made; only for stamps whose signature is verified."""
    return int(stamp[:12], 16) / 1000


def _same(one: str, other: str) -> bool:
    """Compare in a time that does not depend on where the texts differ."""
    return hmac.compare_digest(_octets(one), _octets(other))


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
