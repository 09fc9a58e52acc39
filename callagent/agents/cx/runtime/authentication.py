"""How an app proves to outside servers who it is: keys, tokens, and client credentials.

Secrets of the platform have names (`projects/…/secrets/NAME/versions/…`); here NAME is a variable of the worker's
environment, which the server's settings declare.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from callagent.agents.cx.openapi import lookup
from callagent.agents.cx.runtime.http import Requests

_SECRET = re.compile(r"(?:.*/)?secrets/([^/]+)(?:/versions/[^/]+)?")
_EARLY = 30.0
"""Seconds before its end at which a token is fetched anew."""


class SecretMissing(LookupError):
    """A secret is not in the worker's environment."""


class Authentication:
    """Of one call; tokens are kept as long as they hold."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._tokens: dict[str, tuple[float, str]] = {}

    def apply(self, given: Any, request: dict[str, Any], session: Mapping[str, Any]) -> None:
        """Add headers or parameters to a request. Raises `SecretMissing` and OSError."""
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
            request.setdefault("headers", {})["Authorization"] = f"Bearer {self._token(oauth)}"

    def _token(self, oauth: Mapping[str, Any]) -> str:
        """By client credentials (RFC 6749 §4.4)."""
        endpoint, client = str(oauth.get("tokenEndpoint")), str(oauth.get("clientId"))
        until, token = self._tokens.get(f"{endpoint} {client}", (0.0, ""))
        if time.monotonic() < until:
            return token
        form = {
            "grant_type": "client_credentials",
            "client_id": client,
            "client_secret": secret(str(oauth.get("clientSecretVersion"))),
        }
        if scopes := oauth.get("scopes"):
            form["scope"] = " ".join(str(each) for each in scopes)
        answer = self._requests.post(endpoint, data=form)
        answer.raise_for_status()
        granted = answer.json()
        token = str(granted["access_token"])
        self._tokens[f"{endpoint} {client}"] = (
            time.monotonic() + float(granted.get("expires_in") or 60) - _EARLY, token
        )  # fmt: skip
        return token


def secret(name: str) -> str:
    """Raises `SecretMissing`."""
    found = _SECRET.fullmatch(name)
    variable = found[1] if found else name
    value = os.environ.get(variable)
    if value is None:
        raise SecretMissing(f"the secret '{variable}' is not in the environment of project code")
    return value
