"""Digest access authentication in both roles (RFC 7616, RFC 8760).

Our requests answer the challenges of trunks (`authorized`); `Authenticator` challenges peers, with signed nonces, each
count accepted once, and a lock after many failures. Only a failure with a valid nonce that was signed for the sender's
address counts towards the lock: an attacker who forges that address never receives the nonce, and so cannot lock its
owner out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from callagent.sip.message import CSeq, Headers, Hop, Request, Response, quote, split_list, unquote

ALGORITHMS = {"SHA-256": "sha256", "MD5": "md5"}
"""Strongest first."""
MAX_PROOFS = 3
"""Challenges that one request may answer: a proxy's, the server's, and one after a stale nonce."""
_TOKENS = ("algorithm", "nc", "qop", "stale")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Our user name and password at one trunk."""

    username: str
    password: str
    realm: str
    """Challenges of other realms are not answered."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The values that a digest is computed from, besides the password (RFC 7616 §3.4)."""

    username: str
    realm: str
    method: str
    uri: str
    nonce: str
    algorithm: str = "MD5"
    qop: str = ""
    nc: str = ""
    cnonce: str = ""

    def response(self, password: str) -> str:
        """Return the digest."""
        name = ALGORITHMS[self.algorithm]
        secret = _hash(name, f"{self.username}:{self.realm}:{password}")
        request = _hash(name, f"{self.method}:{self.uri}")
        middle = f"{self.nonce}:{self.nc}:{self.cnonce}:{self.qop}" if self.qop else self.nonce
        return _hash(name, f"{secret}:{middle}:{request}")


def parse_digest(value: str) -> dict[str, str]:
    """Return names in lower case and unquoted values of a `Digest …` field. Raises `ValueError`."""
    scheme, _, rest = value.strip().partition(" ")
    if scheme.lower() != "digest":
        raise ValueError("Scheme is not Digest")
    pairs = [item.partition("=") for item in split_list(rest) if item]
    fields = {name.strip().lower(): unquote(text.strip()) for name, _, text in pairs}
    if len(fields) != len(pairs):
        raise ValueError("Digest parameter occurs twice")
    return fields


def write_digest(fields: Mapping[str, str]) -> str:
    written = (f"{name}={text if name in _TOKENS else quote(text)}" for name, text in fields.items())
    return "Digest " + ", ".join(written)


def authorize(request: Request, refusal: Response, credentials: Credentials) -> tuple[str, str] | None:
    """Return the header field that answers a 401 or 407.

    None if no challenge is one that we can answer, is of another realm, or refuses the proof that was sent.
    """
    asks, answers = ("Proxy-Authenticate", "Proxy-Authorization") if refusal.status == 407 else _PLAIN
    # Of our realm only: the password must not go to whoever asks for it.
    challenge = _choose(refusal.headers.values(asks), credentials.realm)
    if challenge is None:
        return None
    # A second challenge means that the password is wrong, unless the nonce was stale (RFC 7616 §3.3).
    if answers in request.headers and challenge.get("stale", "").lower() != "true":
        return None
    qop = "auth" if "qop" in challenge else ""
    proof = Proof(
        username=credentials.username,
        realm=challenge["realm"],
        method=request.method,
        uri=str(request.uri),
        nonce=challenge.get("nonce", ""),
        algorithm=challenge["algorithm"],
        qop=qop,
        nc="00000001" if qop else "",
        cnonce=secrets.token_hex(8) if qop else "",
    )
    fields = {"username": proof.username, "realm": proof.realm, "nonce": proof.nonce, "uri": proof.uri}
    fields |= {"response": proof.response(credentials.password), "algorithm": proof.algorithm}
    # A peer of RFC 2069 offers no qop: it expects neither a count nor a nonce of the client.
    if qop:
        fields |= {"cnonce": proof.cnonce, "qop": qop, "nc": proof.nc}
    if "opaque" in challenge:
        fields["opaque"] = challenge["opaque"]
    return answers, write_digest(fields)


def authorized(request: Request, refusal: Response, credentials: Credentials) -> Request | None:
    """Return the request with its proof, for a new transaction; None if `authorize` finds nothing to answer.

    The caller has to stop after `MAX_PROOFS` challenges.
    """
    header = authorize(request, refusal, credentials)
    if header is None:
        return None
    again = repeated(request)
    again.headers.set(*header)
    return again


def repeated(request: Request) -> Request:
    """Return the request for a new transaction: with the next CSeq, and without Via (RFC 3261 §8.1.3.5)."""
    # A copy: the first transaction may still send the original again.
    again = Request(Headers(request.headers), request.body, request.method, request.uri)
    again.headers.remove("Via")
    again.headers.set("CSeq", str(CSeq(request.cseq.number + 1, request.method)))
    return again


_PLAIN = ("WWW-Authenticate", "Authorization")


def _choose(values: Sequence[str], realm: str) -> dict[str, str] | None:
    """Return the fields of the strongest challenge of our realm that we can answer."""
    known: dict[str, dict[str, str]] = {}
    for value in values:
        try:
            fields = parse_digest(value)
        except ValueError:
            continue
        algorithm = fields.get("algorithm", "MD5").upper()
        qops = [qop.strip().lower() for qop in fields.get("qop", "auth").split(",")]
        if algorithm in ALGORITHMS and fields.get("realm") == realm and "auth" in qops:
            known.setdefault(algorithm, {**fields, "algorithm": algorithm})
    return next((known[algorithm] for algorithm in ALGORITHMS if algorithm in known), None)


def _hash(name: str, text: str) -> str:
    return hashlib.new(name, text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()


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
        # A right password from a forbidden address counts as a failure: the response does not tell that it is right.
        if not right or not account.admits(host):
            return self._fail(host, now)
        # After the password: only its owner may move the count, and a replay is told to use a new nonce.
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
        # The address that failed first is forgotten; a dictionary keeps its keys in the order of insertion.
        if len(self._failures) >= _MAX_HOSTS:
            self._failures.pop(next(iter(self._failures)))
        self._failures.setdefault(host, deque(maxlen=MAX_FAILURES)).append(now)
        return self._challenge(host, now)

    def _challenge(self, host: str, now: float, *, stale: bool = False) -> Verdict:
        # The nonce holds its own time and signature, so that challenges of strangers take no memory.
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
