"""Lets peers in who prove a password (RFC 7616): signed nonces, each count once, and a lock after too many failures.

Only a failure on a live nonce that was signed for the sender's address counts towards the lock: whoever forges that
address never hears the nonce, and cannot lock its owner out.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from callagent.sip.message import ALGORITHMS, Proof, Request, parse_digest, write_digest
from callagent.sip.transport import Hop

NONCE_SECONDS = 60.0
MAX_FAILURES = 5
FAILURE_SECONDS = 60.0
PROVEN_SECONDS = 3600.0
"""How long a source that has proven itself is exempt from the lock and the rate limit of its address."""
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
        self._proven: OrderedDict[_Source, float] = OrderedDict()

    def is_proven(self, source: Hop, now: float) -> bool:
        """Whether a peer has proven a password from exactly this address and port within `PROVEN_SECONDS`."""
        at = self._proven.get(_source_of(source))
        return at is not None and now - at <= PROVEN_SECONDS

    def is_locked(self, source: Hop, now: float) -> bool:
        """Whether this address failed so often of late that it is not listened to.

        A peer that has proven itself is: another one behind the same address translator must not lock it out.
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
        # What the nonce does not bind to this address is not computed at all: it neither counts nor tells a right
        # password from a wrong one, so nobody can try passwords on a nonce of one's own choice.
        if not self._is_live(fields.get("nonce", ""), host, now):
            return self._challenge(host, now, stale=True)
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
        if not self._counts_up(fields["nonce"], fields["nc"], now):
            return self._challenge(host, now, stale=True)
        self._failures.pop(host, None)
        return Verdict(account.trunk)

    def _is_live(self, nonce: str, host: str, now: float) -> bool:
        """Whether we signed the nonce for this address less than `NONCE_SECONDS` ago."""
        stamp, _, signature = nonce.partition("-")
        return _same(signature, self._sign(stamp, host)) and now - NONCE_SECONDS <= _made(stamp) <= now + 1

    def _counts_up(self, nonce: str, nc: str, now: float) -> bool:
        """Whether the count of a live nonce is higher than any before; it is remembered then."""
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


_Source = tuple[str, int, str]
"""Address, port and transport."""


def _source_of(hop: Hop) -> _Source:
    return (hop.host, hop.port, hop.transport)


def _made(stamp: str) -> float:
    """When the nonce with this stamp was made; only for stamps whose signature has been checked."""
    return int(stamp[:12], 16) / 1000


def _same(one: str, other: str) -> bool:
    """In a time that tells nothing of where they differ."""
    return hmac.compare_digest(_octets(one), _octets(other))


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
