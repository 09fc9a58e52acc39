"""Tokens of Google service accounts, by a key: an assertion signed with it is given for a token (RFC 7523 §2.1).

Keys are the JSON files of service accounts, in the variable `GOOGLE_SERVICE_ACCOUNT_KEY` of the worker's environment:
one, or a list of several.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from callagent.agents.cx.runtime.http import Requests

VARIABLE = "GOOGLE_SERVICE_ACCOUNT_KEY"
DEFAULT_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_LIFETIME = 3600


class SecretMissing(LookupError):
    """A secret is not in the worker's environment."""


def key_of(account: str) -> Mapping[str, Any]:
    """Of the account of that address; empty: of the first one. Raises `SecretMissing`."""
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
    """A token and the seconds that it holds. Raises `SecretMissing` and OSError."""
    granted = _granted(requests, key_of(account), {"scope": " ".join(scopes) or DEFAULT_SCOPE})
    return str(granted["access_token"]), float(granted.get("expires_in") or 60)


def identity_token(requests: Requests, audience: str) -> tuple[str, float]:
    """For the server at `audience`: who asks. Raises as above."""
    granted = _granted(requests, key_of(""), {"target_audience": audience})
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
    """RS256 (RFC 7518 §3.3). Raises `SecretMissing` when the key is none."""
    import jwt

    if "RS256" not in jwt.algorithms.get_default_algorithms():
        raise SecretMissing("keys of service accounts need the extra 'google': pip install 'callagent[google]'")
    try:
        headers = {"kid": str(key.get("private_key_id") or "")}
        return jwt.encode(dict(payload), str(key.get("private_key") or ""), "RS256", headers)
    except (jwt.PyJWTError, ValueError, TypeError):
        # What the library says may quote the key.
        raise SecretMissing(f"the key of '{key.get('client_email')}' in '{VARIABLE}' cannot be used") from None
