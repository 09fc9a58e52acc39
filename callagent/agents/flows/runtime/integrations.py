"""The services that project code calls: API integrations (`conv.api`) and MCP servers.

`conv.api` sends with `requests`; in a test the mocks answer first. Credentials are not in the project. They are the
secret that has the integration's name, a JSON object: `username` and `password` (basic), `key` with `header` or
`query_param` (apiKey), `token` (oauth2), or `token_url`, `client_id`, `client_secret` and perhaps `scope`
(oauth2_client_credentials).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from callagent.agents.flows.runtime.api_types import InvalidInput, NotAvailable, SecretNotFound
from callagent.json_values import JsonObject
from callagent.workers import Plain

if TYPE_CHECKING:
    # Both are imported by the first request: most projects make none, and a worker starts without them.
    from requests import Response

    from callagent.agents.mcp import McpServer

REQUEST_SECONDS = 10.0
"""Default timeout."""
_VARIABLE = re.compile(r"\{(\w+)\}")
_REQUEST_OPTIONS = ("params", "json", "data", "headers", "timeout")
Secret = Callable[[str], Any]
"""`conv.utils.get_secret`."""
Log = Callable[..., None]
"""`conv.log_api_response`."""


class Mocks:
    """Prepared answers of a test, used in order."""

    def __init__(self, rules: Plain) -> None:
        self._left = {
            (integration, operation): [dict(rule) for rule in answers]
            for integration, operations in rules.items()
            for operation, answers in operations.items()
        }

    def take_answer(self, integration: str, operation: str) -> Plain | None:
        """Return the next answer; None: none is left, so the real service is called."""
        rules = self._left.get((integration, operation)) or []
        if not rules:
            return None
        rule = rules[0]
        # With -1 this answer is given to all further requests.
        if rule.get("repeat", 1) != -1:
            rule["repeat"] = rule.get("repeat", 1) - 1
            if rule["repeat"] <= 0:
                rules.pop(0)
        return rule


class ApiIntegrations:
    """`conv.api`: integrations by name; an unknown one raises AttributeError."""

    def __init__(self, integrations: Mapping[str, Plain], mocks: Mocks, secret: Secret, log: Log) -> None:
        self._executors = {
            name: ApiExecutor(name, settings, mocks, secret, log) for name, settings in integrations.items()
        }

    def __getattr__(self, name: str) -> ApiExecutor:
        # By __dict__: while the object is being unpickled or copied there is no such attribute, and asking for it
        # would come here again.
        executors = self.__dict__.get("_executors", {})
        if name not in executors:
            raise AttributeError(
                f"the project has no API integration '{name}'; it has: {', '.join(executors) or 'none'}"
            )
        found: ApiExecutor = executors[name]
        return found


class ApiExecutor:
    """One integration: its operations are methods that return a `requests.Response`."""

    def __init__(self, name: str, settings: Plain, mocks: Mocks, secret: Secret, log: Log) -> None:
        self._name = name
        self._settings = settings
        self._mocks = mocks
        self._secret = secret
        self._log = log

    def __getattr__(self, operation: str) -> Callable[..., Response]:
        operations = self.__dict__.get("_settings", {}).get("operations") or {}
        if operation not in operations:
            raise AttributeError(f"API integration '{self._name}' has no operation '{operation}'")

        def call(*values: object, **options: object) -> Response:
            return self._call(operation, operations[operation], values, options)

        return call

    def _call(self, name: str, operation: Mapping[str, str], values: tuple[object, ...], options: Plain) -> Response:
        """Call an operation: path variables in order or by name, all other arguments as `requests` takes them."""
        request = {key: options.pop(key) for key in _REQUEST_OPTIONS if key in options}
        url = f"{self._settings.get('base_url') or ''}/{_fill_path(operation['resource'], values, options)}"
        mock = self._mocks.take_answer(self._name, name)
        if mock is not None:
            response = _build_response(mock, operation["method"], url)
        else:
            response = self._send(operation["method"], url, request)
        self._log(response)
        return response

    def _send(self, method: str, url: str, request: Plain) -> Response:
        import requests

        if not self._settings.get("base_url"):
            raise NotAvailable(f"conv.api.{self._name} has no base_url in this environment")
        headers, params, auth = self._credentials()
        given = request.pop("params", None) or {}
        # Headers and parameters of the project win over those of the credentials.
        request["headers"] = {**headers, **(request.get("headers") or {})}
        request["params"] = {**params, **given} if isinstance(given, dict) else given
        # `requests` has no default timeout: without one the function would hang until its deadline.
        return requests.request(method, url, auth=auth, **{"timeout": REQUEST_SECONDS, **request})

    def _credentials(self) -> tuple[dict[str, str], dict[str, str], tuple[str, str] | None]:
        """Return headers, query parameters and basic credentials."""
        kind = self._settings.get("auth_type") or "none"
        if kind == "none":
            return {}, {}, None
        secret = self._secret(self._name)
        # A secret that is a text is the key or the token itself.
        if not isinstance(secret, dict):
            secret = {"key": secret, "token": secret}
        match kind:
            case "basic":
                return {}, {}, (str(secret.get("username")), str(secret.get("password")))
            case "apiKey" if secret.get("query_param"):
                return {}, {str(secret["query_param"]): str(secret.get("key"))}, None
            case "apiKey":
                return {str(secret.get("header") or "X-API-Key"): str(secret.get("key"))}, {}, None
            case "oauth2" | "oauth2_client_credentials":
                token = secret.get("token") or fetch_token(secret)
                return {"Authorization": f"Bearer {token}"}, {}, None
            case _:
                raise NotAvailable(f"authentication '{kind}' of conv.api.{self._name} is not available on this server")


def _fill_path(resource: str, values: tuple[object, ...], named: Mapping[str, object]) -> str:
    """Fill in the variables of a path. Raises TypeError when a variable has no value, or a value no variable."""
    left = list(values)
    unknown = set(named) - set(_VARIABLE.findall(resource))
    if unknown:
        raise TypeError(f"the resource {resource} has no variable {', '.join(sorted(unknown))}")

    def value(match: re.Match[str]) -> str:
        if match.group(1) in named:
            return quote(str(named[match.group(1)]), safe="")
        if not left:
            raise TypeError(f"the resource {resource} needs a value for '{match.group(1)}'")
        return quote(str(left.pop(0)), safe="")

    filled = _VARIABLE.sub(value, resource)
    if left:
        raise TypeError(f"the resource {resource} takes {len(values) - len(left)} values, {len(values)} were given")
    return filled


def fetch_token(secret: Plain) -> str:
    """Fetch a token by the client credentials grant (RFC 6749, section 4.4)."""
    import requests

    form = {
        "grant_type": "client_credentials",
        **{key: secret[key] for key in ("scope", "audience") if secret.get(key)},
    }
    auth = (str(secret.get("client_id")), str(secret.get("client_secret")))
    answer = requests.post(str(secret.get("token_url")), data=form, auth=auth, timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    return str(answer.json()["access_token"])


def _build_response(rule: Plain, method: str, url: str) -> Response:
    import requests

    body = rule.get("body")
    is_text = isinstance(body, str)
    response = requests.Response()
    response.status_code = int(rule.get("status") or 200)
    response.url = url
    response.headers.update({"Content-Type": "text/plain" if is_text else "application/json"})
    response.headers.update(rule.get("headers") or {})
    response.encoding = "utf-8"
    # `requests` has no public way to set a response's content.
    response._content = b"" if body is None else (str(body) if is_text else json.dumps(body, default=str)).encode()
    response.request = requests.Request(method, url if "://" in url else f"http://mock{url}").prepare()
    return response


class RemoteFunctions:
    """The MCP servers of a project; a connection is opened with a server's first request."""

    def __init__(self, servers: Mapping[str, Plain], secret: Secret) -> None:
        self._settings = servers
        self._secret = secret
        self._servers: dict[str, McpServer] = {}

    def describe(self) -> Plain:
        from callagent.agents.mcp import McpFailed

        functions: list[Plain] = []
        failures: list[Plain] = []
        for provider, settings in self._settings.items():
            enabled = settings.get("enabled")
            try:
                # An empty list enables nothing, so the server is not even asked. None enables all.
                tools = [] if enabled == [] else self._server(provider).tools()
            # A server that fails must not cost the project the functions of the others.
            except (McpFailed, OSError, InvalidInput, SecretNotFound, NotAvailable) as error:
                failures.append({"provider": provider, "error": str(error)})
                continue
            functions += [
                {
                    "provider": provider,
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                }
                for tool in tools
                if enabled is None or tool.name in enabled
            ]
        return {"functions": functions, "failures": failures}

    def call(self, provider: str, name: str, arguments: JsonObject) -> str:
        """Return a function's answer as text for the model; unlike a project function's, it cannot act on the call.

        Raises `McpFailed`, `SecretNotFound`, `NotAvailable` and OSError.
        """
        return json.dumps(self._server(provider).call(name, arguments), ensure_ascii=False)

    def _server(self, provider: str) -> McpServer:
        from callagent.agents.mcp import HttpWire, McpServer

        if provider not in self._settings:
            raise NotAvailable(f"there is no MCP server '{provider}'")
        # The connection is kept open, because beginning a session takes several requests.
        if provider not in self._servers:
            settings = self._settings[provider]
            headers, query = self._credentials(settings.get("auth") or {})
            url = _with_query(str(settings["url"]), query)
            self._servers[provider] = McpServer(HttpWire(url, headers), float(settings["timeout"]))
        return self._servers[provider]

    def _credentials(self, auth: Plain) -> tuple[dict[str, str], dict[str, str]]:
        """Return the headers and query parameters that authenticate a request."""
        for kind, default in (("header", "Authorization"), ("query_param", "api_key")):
            if isinstance(section := auth.get(kind), dict):
                entry = {_credential_name(section, default): str(self._secret(str(section.get("secret_name"))))}
                return (entry, {}) if kind == "header" else ({}, entry)
        if isinstance(section := auth.get("oauth"), dict):
            secret = self._secret(str(section.get("client_secret_name")))
            return {"Authorization": f"Bearer {fetch_token({**section, 'client_secret': secret})}"}, {}
        return {}, {}


def _credential_name(section: Plain, default: str) -> str:
    return str(section.get("name") or section.get("key") or default)


def _with_query(url: str, query: Mapping[str, str]) -> str:
    if not query:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="&".join(part for part in (parts.query, urlencode(query)) if part)))
