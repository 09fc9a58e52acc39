"""Digest access authentication in both roles (RFC 7616, RFC 8760).

`authorize_request` answers the challenges of trunks. `Authenticator` challenges peers: its nonces are signed, each
count of a nonce is accepted once, and an address is locked after many failures. Only a failure whose nonce was signed
for the sender's address counts towards the lock: an attacker who forges that address never receives the nonce, and so
cannot lock its owner out.
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
"""Names in SIP and in `hashlib`, the strongest first."""
MAX_CHALLENGES = 3
"""Challenges that one request may answer: a proxy's, the server's, and one after a stale nonce."""
_UNQUOTED = ("algorithm", "nc", "qop", "stale")
"""Parameters that `write_digest` does not quote; in a challenge, `qop` is given with its quotes."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Our user name and password at one trunk."""

    username: str
    password: str
    realm: str
    """Challenges of other realms are not answered."""


@dataclass(frozen=True, slots=True)
class DigestInput:
    """The values that a digest is computed from, besides the password (RFC 7616 §3.4).

    `qop` is the quality of protection, `nc` the count of the nonce, and `cnonce` the nonce of the client.
    """

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
    written = (f"{name}={text if name in _UNQUOTED else quote(text)}" for name, text in fields.items())
    return "Digest " + ", ".join(written)


def authorization_for(request: Request, refusal: Response, credentials: Credentials) -> tuple[str, str] | None:
    """Return the header field that answers a 401 or 407.

    None if no challenge of our realm has a supported algorithm, or if the peer refuses the digest that was sent.
    """
    proxy = refusal.status == 407
    challenge_name = "Proxy-Authenticate" if proxy else "WWW-Authenticate"
    answer_name = "Proxy-Authorization" if proxy else "Authorization"
    # Only challenges of our realm are answered: no other server may get a digest of the password.
    challenge = _choose_challenge(refusal.headers.values(challenge_name), credentials.realm)
    if challenge is None:
        return None
    # A second challenge means that the password is wrong, unless the nonce was stale (RFC 7616 §3.3).
    if answer_name in request.headers and challenge.get("stale", "").lower() != "true":
        return None
    qop = "auth" if "qop" in challenge else ""
    digest = DigestInput(
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
    fields = {"username": digest.username, "realm": digest.realm, "nonce": digest.nonce, "uri": digest.uri}
    fields |= {"response": digest.response(credentials.password), "algorithm": digest.algorithm}
    # A peer of RFC 2069 offers no qop: it expects neither a count nor a nonce of the client.
    if qop:
        fields |= {"cnonce": digest.cnonce, "qop": qop, "nc": digest.nc}
    if "opaque" in challenge:
        fields["opaque"] = challenge["opaque"]
    return answer_name, write_digest(fields)


def authorize_request(request: Request, refusal: Response, credentials: Credentials) -> Request | None:
    """Return the request with its digest, for a new transaction; None if `authorization_for` returns None.

    The caller limits the repetitions to `MAX_CHALLENGES`.
    """
    header = authorization_for(request, refusal, credentials)
    if header is None:
        return None
    again = copy_for_retry(request)
    again.headers.set(*header)
    return again


def copy_for_retry(request: Request) -> Request:
    """Return a copy of the request for a new transaction: with the next CSeq, and without Via (RFC 3261 §8.1.3.5)."""
    # A copy: the first transaction may still send the original again.
    again = Request(Headers(request.headers), request.body, request.method, request.uri)
    again.headers.remove("Via")
    again.headers.set("CSeq", str(CSeq(request.cseq.number + 1, request.method)))
    return again


def _choose_challenge(values: Sequence[str], realm: str) -> dict[str, str] | None:
    """Return the fields of the challenge of our realm with the strongest supported algorithm; None if there is none."""
    usable: dict[str, dict[str, str]] = {}
    for value in values:
        try:
            fields = parse_digest(value)
        except ValueError:
            continue
        algorithm = fields.get("algorithm", "MD5").upper()
        qops = [qop.strip().lower() for qop in fields.get("qop", "auth").split(",")]
        if algorithm in ALGORITHMS and fields.get("realm") == realm and "auth" in qops:
            usable.setdefault(algorithm, {**fields, "algorithm": algorithm})
    return next((usable[algorithm] for algorithm in ALGORITHMS if algorithm in usable), None)


def _hash(name: str, text: str) -> str:
    return hashlib.new(name, text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()


NONCE_SECONDS = 60.0
"""How long a nonce is valid."""
MAX_FAILURES = 5
FAILURE_SECONDS = 60.0
"""`MAX_FAILURES` within this time lock an address."""
PROVEN_SECONDS = 3600.0
"""How long a source that has proven a password is exempt from the lock and the rate limit of its address."""
_MAX_NONCES = 20_000
_MAX_HOSTS = 20_000
"""Nonces, and addresses with failures or proven passwords, that are remembered."""
_REQUIRED_FIELDS = ("username", "realm", "nonce", "uri", "response", "cnonce", "nc", "qop")


def _admit_any(host: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Account:
    """The account by whose password a peer authenticates as a trunk."""

    trunk: str
    password: str = field(repr=False)
    admits: Callable[[str], bool] = _admit_any
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
    """The trunk of the account whose password was proven; None if none was."""
    challenges: tuple[str, ...] = ()
    """Values of WWW-Authenticate for a 401, the same for known and unknown users."""


class Authenticator:
    """Verifier of the digests in requests, with bounded memory of counts, failures and authenticated sources."""

    def __init__(self, settings: DigestSettings) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(32)
        # The digest of an unknown user is computed as well, so that the time does not reveal which users exist.
        self._unknown_user = Account("", secrets.token_hex(16), lambda host: False)
        self._counts: dict[str, tuple[float, int]] = {}
        """The time of each nonce that was used, and its highest count."""
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
        """Check the digest of a request; a request without one for our realm is challenged."""
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
        # With an invalid nonce the digest is not checked: its failures do not count towards the lock, so passwords
        # could be guessed without limit.
        if not self._is_live(fields.get("nonce", ""), host, now):
            return self._challenge(host, now, stale=True)
        algorithm = fields.get("algorithm", "MD5").upper()
        complete = all(fields.get(name) for name in _REQUIRED_FIELDS) and fields["qop"].lower() == "auth"
        if not complete or algorithm not in self._settings.algorithms:
            return self._fail(host, now)
        account = self._settings.accounts.get(fields["username"], self._unknown_user)
        # The URI is that of the Authorization field, because proxies may have rewritten the Request-URI since.
        digest = DigestInput(
            fields["username"], fields["realm"], method, fields["uri"], fields["nonce"],
            algorithm, fields["qop"], fields["nc"], fields["cnonce"],
        )  # fmt: skip
        right = _is_equal(digest.response(account.password), fields["response"].lower())
        # A right password from a forbidden address counts as a failure: the response does not tell that it is right.
        if not right or not account.admits(host):
            return self._fail(host, now)
        # The count is checked after the password: nobody else may use up the counts. A replay gets a new nonce.
        if not self._accept_count(fields["nonce"], fields["nc"], now):
            return self._challenge(host, now, stale=True)
        self._failures.pop(host, None)
        return Verdict(account.trunk)

    def _is_live(self, nonce: str, host: str, now: float) -> bool:
        """Whether we signed the nonce for this address within `NONCE_SECONDS`."""
        stamp, _, signature = nonce.partition("-")
        return _is_equal(signature, self._sign(stamp, host)) and now - NONCE_SECONDS <= _time_of(stamp) <= now + 1

    def _accept_count(self, nonce: str, nc: str, now: float) -> bool:
        """Remember the count of a valid nonce; False if it is not higher than all before (a replay)."""
        try:
            count = int(nc, 16)
        except ValueError:
            return False
        if len(nc) != 8 or count <= self._counts.get(nonce, (0.0, 0))[1]:
            return False
        self._store_count(nonce, _time_of(nonce), count, now)
        return True

    def _note_proven(self, source: Hop, now: float) -> None:
        key = _source_of(source)
        self._proven[key] = now
        self._proven.move_to_end(key)
        if len(self._proven) > _MAX_HOSTS:
            self._proven.popitem(last=False)

    def _store_count(self, nonce: str, made: float, count: int, now: float) -> None:
        if len(self._counts) >= _MAX_NONCES:
            self._counts = {each: used for each, used in self._counts.items() if used[0] > now - NONCE_SECONDS}
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
        return hmac.new(self._key, _encode(f"{stamp} {host}"), "sha256").hexdigest()[:32]


_Source = tuple[str, int, str]
"""Address, port and transport."""


def _source_of(hop: Hop) -> _Source:
    return (hop.host, hop.port, hop.transport)


def _time_of(stamp: str) -> float:
    """Return when the nonce with this stamp was made; only for stamps whose signature is verified."""
    return int(stamp[:12], 16) / 1000


def _is_equal(one: str, other: str) -> bool:
    """Compare in a time that does not depend on where the texts differ."""
    return hmac.compare_digest(_encode(one), _encode(other))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
