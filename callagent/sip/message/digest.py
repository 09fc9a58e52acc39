"""Digest access authentication: the computation, and our proofs towards a trunk (RFC 7616, RFC 8760)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from callagent.sip.message.grammar import quote, split_list, unquote
from callagent.sip.message.headers import Headers
from callagent.sip.message.message import CSeq, Request, Response

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
