"""Servers of an app's tools: authentication to them, and the tools of MCP servers (Model Context Protocol).

Authentication is by API keys, bearer tokens, client credentials or Google service accounts. The platform names secrets
`projects/…/secrets/NAME/versions/…`; here NAME is a variable of the worker's environment, which the server's settings
declare. The variable `GOOGLE_SERVICE_ACCOUNT_KEY` has the JSON key file of a service account, or a list of several; an
assertion signed with the key is exchanged for a token (RFC 7523 §2.1).

MCP tools are single (`mcpTool`) or come from a toolset (`mcpToolset`).
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import urlencode, urlsplit

from callagent.agents.cx.format import MAX_TOOL_SECONDS, CxApp, OperationRequest, ToolsetConfig, lookup, tool_name
from callagent.agents.cx.runtime.http import Requests
from callagent.agents.kernel import Finding
from callagent.agents.mcp import HttpWire, McpFailed, McpServer, McpTool, list_all
from callagent.json_values import JsonObject, list_at, number_at, object_at, objects_at

_CONTEXT = "$context."
"""The prefix of a value that the call fills in."""
_NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}
DEFAULT_TOKEN_SECONDS = 60.0
"""Assumed lifetime in seconds of a token whose server does not state one."""
_SECRET = re.compile(r"(?:.*/)?secrets/([^/]+)(?:/versions/[^/]+)?")
_RENEW_BEFORE_EXPIRY = 30.0
"""Seconds before its expiry at which a token is renewed."""


class Authentication:
    """The authentication of one call's requests to tool servers. Tokens are kept until they expire."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._tokens: dict[str, tuple[float, str]] = {}
        self._fetch_lock = threading.Lock()

    def apply(self, own: JsonObject, request: OperationRequest, session: Mapping[str, object]) -> None:
        """Add the credentials of `apiAuthentication` in a tool's settings to a request's headers or parameters.

        Raises `SecretMissing`, `StatusError` and OSError.
        """
        settings = object_at(own, "apiAuthentication")
        if isinstance(key := settings.get("apiKeyConfig"), Mapping):
            name, secret = str(key.get("keyName")), read_secret(str(key.get("apiKeySecretVersion")))
            if str(key.get("requestLocation")).upper() == "QUERY_STRING":
                request.params[name] = secret
            else:
                request.headers[name] = secret
        if token := self._bearer_token(settings, request.url, session):
            request.headers["Authorization"] = f"Bearer {token}"

    def _bearer_token(self, settings: JsonObject, url: str, session: Mapping[str, object]) -> str:
        """Return the token of the last declared kind; empty if none is declared or the call has no value for it."""
        found = ""
        if isinstance(bearer := settings.get("bearerTokenConfig"), Mapping):
            token = str(bearer.get("token") or "")
            found = str(lookup(token, session) or "") if token.startswith(_CONTEXT) else token
        if isinstance(oauth := settings.get("oauthConfig"), Mapping):
            found = self._client_token(oauth)
        if isinstance(account := settings.get("serviceAccountAuthConfig"), Mapping):
            found = self._account_token(account)
        if isinstance(settings.get("serviceAgentIdTokenAuthConfig"), Mapping):
            found = self._identity_token(url)
        return found

    def _cached_token(self, purpose: str, fetch: Callable[[], tuple[str, float]]) -> str:
        """Return the token for a purpose. `fetch` returns a new one and the seconds until it expires."""
        # Tools run in parallel threads: the first one fetches the token, and the others wait for it.
        with self._fetch_lock:
            until, token = self._tokens.get(purpose, (0.0, ""))
            if time.monotonic() >= until:
                token, seconds = fetch()
                self._tokens[purpose] = time.monotonic() + seconds - _RENEW_BEFORE_EXPIRY, token
            return token

    def _account_token(self, account: JsonObject) -> str:
        address = str(account.get("serviceAccount") or "")
        scopes = [str(each) for each in list_at(account, "scopes")]
        purpose = " ".join(["account", address, *scopes])
        return self._cached_token(purpose, lambda: access_token(self._requests, address, scopes))

    def _identity_token(self, address: str) -> str:
        # An identity token is valid for all paths of one server.
        parts = urlsplit(address)
        audience = f"{parts.scheme}://{parts.netloc}"
        return self._cached_token(f"identity {audience}", lambda: identity_token(self._requests, audience))

    def _client_token(self, oauth: JsonObject) -> str:
        scopes = " ".join(str(each) for each in list_at(oauth, "scopes"))

        purpose = f"client {oauth.get('tokenEndpoint')} {oauth.get('clientId')} {scopes}"
        return self._cached_token(purpose, lambda: self._client_credentials(oauth, scopes))

    def _client_credentials(self, oauth: JsonObject, scopes: str) -> tuple[str, float]:
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
        return str(granted["access_token"]), float(granted.get("expires_in") or DEFAULT_TOKEN_SECONDS)


def read_secret(name: str) -> str:
    """Return a secret from the environment. Raises `SecretMissing`."""
    # The version is ignored, because the environment has one value for a secret.
    found = _SECRET.fullmatch(name)
    variable = found[1] if found else name
    value = os.environ.get(variable)
    if value is None:
        raise SecretMissing(f"the secret '{variable}' is not in the environment of project code")
    return value


SERVICE_ACCOUNT_VARIABLE = "GOOGLE_SERVICE_ACCOUNT_KEY"
DEFAULT_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ASSERTION_SECONDS = 3600
"""Validity of an assertion and of the identity token for it."""


class SecretMissing(LookupError):
    """A secret is missing in the worker's environment or cannot be used."""


def service_account_key(account: str) -> JsonObject:
    """Return the key of the account with this address; empty address: the first key. Raises `SecretMissing`."""
    try:
        data = json.loads(os.environ.get(SERVICE_ACCOUNT_VARIABLE) or "[]")
    except ValueError:
        raise SecretMissing(f"the variable '{SERVICE_ACCOUNT_VARIABLE}' is not JSON") from None
    listed = data if isinstance(data, list) else [data]
    keys: list[JsonObject] = [each for each in listed if isinstance(each, dict)]
    found = next((each for each in keys if account in ("", each.get("client_email"))), None)
    if found is None:
        whose = f" of '{account}'" if account else ""
        raise SecretMissing(f"the environment of project code has no key{whose} in '{SERVICE_ACCOUNT_VARIABLE}'")
    return found


def access_token(requests: Requests, account: str, scopes: Sequence[str]) -> tuple[str, float]:
    """Return an access token and the seconds until it expires. Raises `SecretMissing` and OSError."""
    granted = _exchange_assertion(requests, service_account_key(account), {"scope": " ".join(scopes) or DEFAULT_SCOPE})
    return str(granted["access_token"]), number_at(granted, "expires_in") or DEFAULT_TOKEN_SECONDS


def identity_token(requests: Requests, audience: str) -> tuple[str, float]:
    """Return an identity token for the server at `audience`. Raises `SecretMissing` and OSError."""
    granted = _exchange_assertion(requests, service_account_key(""), {"target_audience": audience})
    return str(granted["id_token"]), float(_ASSERTION_SECONDS)


def _exchange_assertion(requests: Requests, key: JsonObject, claims: Mapping[str, str]) -> JsonObject:
    """Exchange an assertion signed with a key for a token. Raises `SecretMissing`, `StatusError` and OSError."""
    endpoint = str(key.get("token_uri") or "https://oauth2.googleapis.com/token")
    now = int(time.time())
    payload = {"iss": key.get("client_email"), "aud": endpoint, "iat": now, "exp": now + _ASSERTION_SECONDS, **claims}
    answer = requests.post(endpoint, data={"grant_type": _GRANT_TYPE, "assertion": _sign(key, payload)})
    answer.raise_for_status()
    granted = answer.json()
    return granted if isinstance(granted, dict) else {}


def _sign(key: JsonObject, payload: Mapping[str, object]) -> str:
    """Return a JWT signed with RS256 (RFC 7518 §3.3). Raises `SecretMissing` when the key cannot be used."""
    # Imported here, because few apps have a service account. RS256 needs `cryptography` from the extra `google`.
    import jwt

    if "RS256" not in jwt.algorithms.get_default_algorithms():
        raise SecretMissing("keys of service accounts need the extra 'google': pip install 'callagent[google]'")
    try:
        headers = {"kid": str(key.get("private_key_id") or "")}
        return jwt.encode(dict(payload), str(key.get("private_key") or ""), "RS256", headers)
    except (jwt.PyJWTError, ValueError, TypeError):
        # The library's own message may quote the key, so it is not passed on.
        raise SecretMissing(
            f"the key of '{key.get('client_email')}' in '{SERVICE_ACCOUNT_VARIABLE}' cannot be used"
        ) from None


MAX_SERVER_SESSIONS = 16
"""Sessions with MCP servers that one call keeps; the least recently used one is closed first."""


class McpTools:
    """The MCP tools of an app. Servers list their tools in `describe`; during calls they are not asked again."""

    def __init__(self, app: CxApp, authentication: Authentication) -> None:
        self._authentication = authentication
        self._servers: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], McpServer] = OrderedDict()
        self._toolsets = {each.name: each for each in app.toolsets.values() if each.mcp is not None}
        self._single_tools = {tool_name(tool): tool for tool in app.tools.values() if tool.kind == "mcpTool"}

    def describe(self) -> tuple[dict[str, JsonObject], list[Finding]]:
        """Return declarations by name, and a finding for each server that did not answer.

        For such a server, the tools that the app has pinned are declared (`toolOverrides` with a snapshot).
        """
        found: dict[str, JsonObject] = {}
        failures: list[Finding] = []
        sets = list(self._toolsets.values())
        for toolset, answer in zip(sets, list_all([partial(self._toolset_server, each) for each in sets]), strict=True):
            if isinstance(answer, Exception):
                failures.append(Finding(toolset.file, 1, f"the toolset's tools are not known: {answer}"))
            for tool in list(_pinned_tools(toolset)) if isinstance(answer, Exception) else answer:
                declared = _declaration(toolset, tool)
                found[f"{toolset.display_name}_{declared['name']}"] = declared
        for name, single in self._single_tools.items():
            parameters = object_at(single.own, "inputSchema") or _NO_ARGUMENTS
            found[name] = {"description": single.description, "parameters": parameters}
        return found, failures

    def knows(self, name: str) -> bool:
        return name in self._single_tools or self._find_in_toolsets(name) is not None

    def names(self) -> list[str]:
        return [*self._single_tools, *(f"{each.display_name}_…" for each in self._toolsets.values())]

    def call(
        self, name: str, arguments: JsonObject, session: Mapping[str, object], seconds: float | None
    ) -> JsonObject:
        """Call a tool. Raises `McpFailed`, `SecretMissing` and OSError."""
        if name in self._single_tools:
            own = self._single_tools[name].own
            return self._server(own, session).call(str(own.get("name") or name), arguments, seconds)
        found = self._find_in_toolsets(name)
        if found is None:
            raise McpFailed(f"the app has no MCP tool '{name}'")
        own, tool = found
        return self._server(own, session).call(tool, arguments, seconds)

    def _find_in_toolsets(self, name: str) -> tuple[JsonObject, str] | None:
        """Return the toolset's settings and the server's name of a tool, by the app's name of the tool."""
        # Any name with a toolset's prefix may be one of its tools, because the server is not asked again in a call.
        for toolset in self._toolsets.values():
            prefix = f"{toolset.display_name}_"
            if toolset.mcp is not None and name.startswith(prefix):
                return toolset.mcp, _server_tool_name(toolset, name.removeprefix(prefix))
        return None

    def _toolset_server(self, toolset: ToolsetConfig) -> McpServer:
        # Outside of a call `$context` has no values, so headers that need one are left out.
        return self._server(toolset.mcp or {}, {})

    def _server(self, own: JsonObject, session: Mapping[str, object]) -> McpServer:
        """Return the session with the server for its address and headers, whose values may differ between calls."""
        address = str(own.get("serverAddress") or "")
        request = OperationRequest("POST", address, headers=dict(_headers(own, session)))
        self._authentication.apply(own, request, session)
        if request.params:
            address = f"{address}{'&' if '?' in address else '?'}{urlencode(request.params)}"
        # The key includes the headers, because a token may be the caller's own and must not serve other callers.
        key = address, tuple(sorted(request.headers.items()))
        if key not in self._servers:
            self._servers[key] = McpServer(HttpWire(address, request.headers), timeout=MAX_TOOL_SECONDS)
        self._servers.move_to_end(key)
        if len(self._servers) > MAX_SERVER_SESSIONS:
            self._servers.popitem(last=False)[1].close()
        return self._servers[key]


def _headers(own: JsonObject, session: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the app's own headers, except those whose `$context` value is missing."""
    for name, value in object_at(own, "customHeaders").items():
        found = lookup(str(value), session) if str(value).startswith(_CONTEXT) else value
        if found is not None:
            yield str(name), str(found)


def _overrides(toolset: ToolsetConfig) -> dict[str, JsonObject]:
    """Return the app's overrides of a server's tools, by the server's names."""
    return {str(each["tool"]): each for each in objects_at(toolset.mcp or {}, "toolOverrides") if each.get("tool")}


def _server_tool_name(toolset: ToolsetConfig, name: str) -> str:
    """Return the server's name of a tool that the app may have renamed."""
    renamed = (tool for tool, each in _overrides(toolset).items() if each.get("nameOverride") == name)
    return next(renamed, name)


def _pinned_tools(toolset: ToolsetConfig) -> Iterator[McpTool]:
    """Yield the tools of which the app has a snapshot; they are declared when their server does not answer."""
    for name, each in _overrides(toolset).items():
        snapshot = each.get("snapshot")
        if isinstance(snapshot, Mapping):
            schema = object_at(snapshot, "inputSchema") or _NO_ARGUMENTS
            yield McpTool(name, str(snapshot.get("description") or ""), schema)


def _declaration(toolset: ToolsetConfig, tool: McpTool) -> JsonObject:
    own = _overrides(toolset).get(tool.name, {})
    return {
        "description": str(own.get("descriptionOverride") or tool.description),
        "parameters": dict(tool.parameters),
        "toolset": toolset.name,
        "name": str(own.get("nameOverride") or tool.name),
        "original": tool.name,
    }
