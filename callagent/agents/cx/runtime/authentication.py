"""Authentication to tool servers: API keys, bearer tokens, client credentials, Google service accounts.

Secrets of the platform have names (`projects/…/secrets/NAME/versions/…`); here NAME is a variable of the worker's
environment, which the server's settings declare. Keys of service accounts are their JSON files in the variable
`GOOGLE_SERVICE_ACCOUNT_KEY`, one or a list of several; an assertion signed with the key is exchanged for a token
(RFC 7523 §2.1).
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from callagent.agents.cx.format import lookup
from callagent.agents.cx.runtime.http import Requests

_SECRET = re.compile(r"(?:.*/)?secrets/([^/]+)(?:/versions/[^/]+)?")
_RENEW_BEFORE_EXPIRY = 30.0
"""Seconds before its expiry at which a token is fetched anew."""


class Authentication:
    """Adds authentication to the requests of one call; tokens are kept until they expire."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._tokens: dict[str, tuple[float, str]] = {}
        self._fetching = threading.Lock()

    def apply(self, given: Any, request: dict[str, Any], session: Mapping[str, Any], address: str = "") -> None:
        """Add headers or parameters to a request to `address`.

        Raises `SecretMissing`, `StatusError` and OSError.
        """
        if not isinstance(given, Mapping):
            return
        if isinstance(key := given.get("apiKeyConfig"), Mapping):
            place = "params" if str(key.get("requestLocation")).upper() == "QUERY_STRING" else "headers"
            request.setdefault(place, {})[str(key.get("keyName"))] = read_secret(str(key.get("apiKeySecretVersion")))
        if isinstance(bearer := given.get("bearerTokenConfig"), Mapping):
            token = str(bearer.get("token") or "")
            token = str(lookup(token, session) or "") if token.startswith("$context.") else token
            if token:
                request.setdefault("headers", {})["Authorization"] = f"Bearer {token}"
        if isinstance(oauth := given.get("oauthConfig"), Mapping):
            request.setdefault("headers", {})["Authorization"] = f"Bearer {self._client_token(oauth)}"
        if isinstance(account := given.get("serviceAccountAuthConfig"), Mapping):
            request.setdefault("headers", {})["Authorization"] = f"Bearer {self._account_token(account)}"
        if isinstance(given.get("serviceAgentIdTokenAuthConfig"), Mapping):
            request.setdefault("headers", {})["Authorization"] = f"Bearer {self._identity_token(address)}"

    def _cached_token(self, name: str, fetch: Callable[[], tuple[str, float]]) -> str:
        """Return a token by what it is for. `fetch` returns a new one and the seconds until it expires."""
        with self._fetching:
            until, token = self._tokens.get(name, (0.0, ""))
            if time.monotonic() >= until:
                token, seconds = fetch()
                self._tokens[name] = time.monotonic() + seconds - _RENEW_BEFORE_EXPIRY, token
            return token

    def _account_token(self, account: Mapping[str, Any]) -> str:
        address, scopes = str(account.get("serviceAccount") or ""), [str(each) for each in account.get("scopes") or ()]
        asked = " ".join(["account", address, *scopes])
        return self._cached_token(asked, lambda: access_token(self._requests, address, scopes))

    def _identity_token(self, address: str) -> str:
        parts = urlsplit(address)
        audience = f"{parts.scheme}://{parts.netloc}"
        return self._cached_token(f"identity {audience}", lambda: identity_token(self._requests, audience))

    def _client_token(self, oauth: Mapping[str, Any]) -> str:
        scopes = " ".join(str(each) for each in oauth.get("scopes") or ())
        asked = f"client {oauth.get('tokenEndpoint')} {oauth.get('clientId')} {scopes}"
        return self._cached_token(asked, lambda: self._client_credentials(oauth, scopes))

    def _client_credentials(self, oauth: Mapping[str, Any], scopes: str) -> tuple[str, float]:
        """Fetch a token by client credentials (RFC 6749 §4.4)."""
        form = {
            "grant_type": "client_credentials",
            "client_id": str(oauth.get("clientId")),
            "client_secret": read_secret(str(oauth.get("clientSecretVersion"))),
        }
        if scopes:
            form["scope"] = scopes
        answer = self._requests.post(str(oauth.get("tokenEndpoint")), data=form)
        answer.raise_for_status()
        granted = answer.json()
        return str(granted["access_token"]), float(granted.get("expires_in") or 60)


def read_secret(name: str) -> str:
    """Return a secret from the environment. Raises `SecretMissing`."""
    found = _SECRET.fullmatch(name)
    variable = found[1] if found else name
    value = os.environ.get(variable)
    if value is None:
        raise SecretMissing(f"the read_secret '{variable}' is not in the environment of project code")
    return value


VARIABLE = "GOOGLE_SERVICE_ACCOUNT_KEY"
DEFAULT_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_LIFETIME = 3600


class SecretMissing(LookupError):
    """A read_secret is not in the worker's environment."""


def service_account_key(account: str) -> Mapping[str, Any]:
    """Return the key of the account with this address; empty: the first key. Raises `SecretMissing`."""
    try:
        given = json.loads(os.environ.get(VARIABLE) or "[]")
    except ValueError:
        raise SecretMissing(f"the variable '{VARIABLE}' is not JSON") from None
    keys = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, dict)]
    found = next((each for each in keys if account in ("", each.get("client_email"))), None)
    if found is None:
        whose = f" of '{account}'" if account else ""
        raise SecretMissing(f"the environment of project code has no key{whose} in '{VARIABLE}'")
    return found


def access_token(requests: Requests, account: str, scopes: Sequence[str]) -> tuple[str, float]:
    """Return an access token and the seconds until it expires. Raises `SecretMissing` and OSError."""
    granted = _granted(requests, service_account_key(account), {"scope": " ".join(scopes) or DEFAULT_SCOPE})
    return str(granted["access_token"]), float(granted.get("expires_in") or 60)


def identity_token(requests: Requests, audience: str) -> tuple[str, float]:
    """Return an identity token for the server at `audience`. Raises `SecretMissing` and OSError."""
    granted = _granted(requests, service_account_key(""), {"target_audience": audience})
    return str(granted["id_token"]), float(_LIFETIME)


def _granted(requests: Requests, key: Mapping[str, Any], claims: Mapping[str, str]) -> Mapping[str, Any]:
    endpoint = str(key.get("token_uri") or "https://oauth2.googleapis.com/token")
    now = int(time.time())
    payload = {"iss": key.get("client_email"), "aud": endpoint, "iat": now, "exp": now + _LIFETIME, **claims}
    answer = requests.post(endpoint, data={"grant_type": _GRANT, "assertion": _signed(key, payload)})
    answer.raise_for_status()
    granted = answer.json()
    return granted if isinstance(granted, dict) else {}


def _signed(key: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
    """Return a JWT signed with RS256 (RFC 7518 §3.3). Raises `SecretMissing` when the key cannot be used."""
    import jwt

    if "RS256" not in jwt.algorithms.get_default_algorithms():
        raise SecretMissing("keys of service accounts need the extra 'google': pip install 'callagent[google]'")
    try:
        headers = {"kid": str(key.get("private_key_id") or "")}
        return jwt.encode(dict(payload), str(key.get("private_key") or ""), "RS256", headers)
    except (jwt.PyJWTError, ValueError, TypeError):
        # The library's own message may quote the key, so it is not passed on.
        raise SecretMissing(f"the key of '{key.get('client_email')}' in '{VARIABLE}' cannot be used") from None
