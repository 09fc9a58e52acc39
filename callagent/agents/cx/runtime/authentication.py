"""How an app proves to outside servers who it is: keys, tokens, client credentials, service accounts.

Secrets of the platform have names (`projects/…/secrets/NAME/versions/…`); here NAME is a variable of the worker's
environment, which the server's settings declare.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from callagent.agents.cx.format import lookup
from callagent.agents.cx.runtime.http import Requests
from callagent.agents.cx.runtime.service_account import SecretMissing, access_token, identity_token

_SECRET = re.compile(r"(?:.*/)?secrets/([^/]+)(?:/versions/[^/]+)?")
_EARLY = 30.0
"""Seconds before its end at which a token is fetched anew."""


class Authentication:
    """Of one call; tokens are kept as long as they hold."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._tokens: dict[str, tuple[float, str]] = {}
        self._fetching = threading.Lock()

    def apply(self, given: Any, request: dict[str, Any], session: Mapping[str, Any], address: str = "") -> None:
        """Add headers or parameters to a request to `address`. Raises `SecretMissing`, `StatusError` and OSError."""
        if not isinstance(given, Mapping):
            return
        if isinstance(key := given.get("apiKeyConfig"), Mapping):
            place = "params" if str(key.get("requestLocation")).upper() == "QUERY_STRING" else "headers"
            request.setdefault(place, {})[str(key.get("keyName"))] = secret(str(key.get("apiKeySecretVersion")))
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

    def _kept(self, name: str, fetch: Callable[[], tuple[str, float]]) -> str:
        """A token by what it was asked for; `fetch` gives it with the seconds that it holds."""
        with self._fetching:
            until, token = self._tokens.get(name, (0.0, ""))
            if time.monotonic() >= until:
                token, seconds = fetch()
                self._tokens[name] = time.monotonic() + seconds - _EARLY, token
            return token

    def _account_token(self, account: Mapping[str, Any]) -> str:
        address, scopes = str(account.get("serviceAccount") or ""), [str(each) for each in account.get("scopes") or ()]
        asked = " ".join(["account", address, *scopes])
        return self._kept(asked, lambda: access_token(self._requests, address, scopes))

    def _identity_token(self, address: str) -> str:
        parts = urlsplit(address)
        audience = f"{parts.scheme}://{parts.netloc}"
        return self._kept(f"identity {audience}", lambda: identity_token(self._requests, audience))

    def _client_token(self, oauth: Mapping[str, Any]) -> str:
        scopes = " ".join(str(each) for each in oauth.get("scopes") or ())
        asked = f"client {oauth.get('tokenEndpoint')} {oauth.get('clientId')} {scopes}"
        return self._kept(asked, lambda: self._client_credentials(oauth, scopes))

    def _client_credentials(self, oauth: Mapping[str, Any], scopes: str) -> tuple[str, float]:
        """RFC 6749 §4.4."""
        form = {
            "grant_type": "client_credentials",
            "client_id": str(oauth.get("clientId")),
            "client_secret": secret(str(oauth.get("clientSecretVersion"))),
        }
        if scopes:
            form["scope"] = scopes
        answer = self._requests.post(str(oauth.get("tokenEndpoint")), data=form)
        answer.raise_for_status()
        granted = answer.json()
        return str(granted["access_token"]), float(granted.get("expires_in") or 60)


def secret(name: str) -> str:
    """Raises `SecretMissing`."""
    found = _SECRET.fullmatch(name)
    variable = found[1] if found else name
    value = os.environ.get(variable)
    if value is None:
        raise SecretMissing(f"the secret '{variable}' is not in the environment of project code")
    return value
