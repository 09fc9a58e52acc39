"""How a set of a server's tools proves who asks: `auth_scheme` and `auth_credential`, as headers.

Nobody is asked for a token: a credential that has none, or that would have to be exchanged, is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from callagent.agents.adk.fields import snake_case


def auth_headers(scheme: Any, credential: Any) -> dict[str, str]:
    """Of maps, or of objects with the same fields. Raises ValueError, without what is secret."""
    given = _plain(credential)
    if not given:
        if scheme is None:
            return {}
        raise ValueError("'auth_scheme' is there and 'auth_credential' is not")
    if token := _plain(given.get("oauth2")).get("access_token"):
        return {"Authorization": f"Bearer {token}"}
    if http := _plain(given.get("http")):
        return _of_http(http)
    if key := given.get("api_key"):
        return _of_key(_plain(scheme), str(key))
    raise ValueError("'auth_credential' has no token and no key; none is fetched from elsewhere")


def _of_http(http: Mapping[str, Any]) -> dict[str, str]:
    """RFC 7617 §2 for `basic`, RFC 6750 §2.1 for `bearer`."""
    scheme, secrets = str(http.get("scheme") or ""), _plain(http.get("credentials"))
    more = {str(name): str(value) for name, value in (http.get("additional_headers") or {}).items()}
    if scheme.lower() == "basic" and secrets.get("username") and secrets.get("password"):
        pair = f"{secrets['username']}:{secrets['password']}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}", **more}
    if token := secrets.get("token") if scheme and scheme.lower() != "basic" else None:
        return {"Authorization": f"{'Bearer' if scheme.lower() == 'bearer' else scheme} {token}", **more}
    if more:
        return more
    raise ValueError(f"'auth_credential.http': '{scheme}' lacks what it needs")


def _of_key(scheme: Mapping[str, Any], key: str) -> dict[str, str]:
    place, name = scheme.get("in", scheme.get("in_")), scheme.get("name")
    if str(getattr(place, "value", place)) != "header" or not isinstance(name, str):
        raise ValueError("'auth_scheme': a key goes in a header, with 'in: header' and its 'name'")
    return {name: key}


def _plain(value: Any) -> dict[str, Any]:
    """The keys in one manner of the two; what is nothing of this kind is empty."""
    data = value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
    return {snake_case(str(key)): each for key, each in data.items()} if isinstance(data, Mapping) else {}
