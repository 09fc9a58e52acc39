"""Digest access authentication (RFC 7616, RFC 8760): what both sides compute, and ours towards a trunk."""

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
"""For one request: a proxy's, the server's, and one whose nonce was too old."""
_TOKENS = ("algorithm", "nc", "qop", "stale")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Ours at one trunk."""

    username: str
    password: str
    realm: str
    """They are told to no other."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a digest is computed from, besides the password."""

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
        name = ALGORITHMS[self.algorithm]
        secret = _hash(name, f"{self.username}:{self.realm}:{password}")
        request = _hash(name, f"{self.method}:{self.uri}")
        middle = f"{self.nonce}:{self.nc}:{self.cnonce}:{self.qop}" if self.qop else self.nonce
        return _hash(name, f"{secret}:{middle}:{request}")


def parse_digest(value: str) -> dict[str, str]:
    """Names in lower case and unquoted values of a `Digest …` field. Raises `ValueError`."""
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
    """The header that answers a 401 or 407; None where it asks for something else, again, or in another's name."""
    asks, answers = ("Proxy-Authenticate", "Proxy-Authorization") if refusal.status == 407 else _PLAIN
    challenge = _choose(refusal.headers.values(asks), credentials.realm)
    if challenge is None:
        return None
    # A second no means a wrong password, unless it was only the nonce that was too old (RFC 7616 §3.3).
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
    """The request once more, with its proof, as a new transaction; None where there is nothing to prove.

    Whoever sends it stops after `MAX_PROOFS`.
    """
    header = authorize(request, refusal, credentials)
    if header is None:
        return None
    again = repeated(request)
    again.headers.set(*header)
    return again


def repeated(request: Request) -> Request:
    """The same request for a new transaction: the next number, no Via yet (RFC 3261 §8.1.3.5)."""
    again = Request(Headers(request.headers), request.body, request.method, request.uri)
    again.headers.remove("Via")
    again.headers.set("CSeq", str(CSeq(request.cseq.number + 1, request.method)))
    return again


_PLAIN = ("WWW-Authenticate", "Authorization")


def _choose(values: Sequence[str], realm: str) -> dict[str, str] | None:
    """The strongest challenge of our realm that we can answer."""
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
