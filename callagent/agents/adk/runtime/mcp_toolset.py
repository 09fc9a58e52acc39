"""Toolsets of Model Context Protocol servers, and the headers by which they authenticate.

No server is asked while the project is imported, because an unreachable one must not keep the project from opening.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeGuard

from pydantic import BaseModel, ConfigDict, Field

from callagent.agents.adk.config_keys import ALLOW_PROGRAMS, snake_case
from callagent.agents.adk.runtime.google_classes import FunctionDeclaration, ReadonlyContext, ToolContext
from callagent.agents.adk.runtime.tools import BaseTool, BaseToolset, ToolArgsConfig
from callagent.agents.mcp import HttpWire, McpFailed, McpServer, ProgramWire, SseWire, Wire
from callagent.agents.mcp import McpTool as Declared
from callagent.workers import Plain

_CALL_SECONDS = 30.0
"""Seconds for one call where the project sets none."""
_TRUE_WORDS = ("1", "true", "yes", "on")


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="allow")


class StdioServerParameters(_Parameters):
    """A server that is a program."""

    command: str
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] | None = None
    cwd: object = None


class StdioConnectionParams(_Parameters):
    server_params: StdioServerParameters
    timeout: float = 5.0


class SseConnectionParams(_Parameters):
    url: str
    headers: dict[str, object] | None = None
    timeout: float = 5.0
    sse_read_timeout: float | None = None


class StreamableHTTPConnectionParams(_Parameters):
    url: str
    headers: dict[str, object] | None = None
    timeout: float = 5.0
    sse_read_timeout: float | None = None


Parameters = StdioServerParameters | StdioConnectionParams | SseConnectionParams | StreamableHTTPConnectionParams
KINDS: Mapping[str, type[_Parameters]] = {
    "stdio_server_params": StdioServerParameters,
    "stdio_connection_params": StdioConnectionParams,
    "sse_connection_params": SseConnectionParams,
    "streamable_http_connection_params": StreamableHTTPConnectionParams,
}
"""The keys in YAML that name a server, and the parameters that each takes."""


HeaderAnswer = Mapping[str, object] | Awaitable[Mapping[str, object] | None] | None
"""What a project's `header_provider` returns: headers or None, or an awaitable of these."""


class McpTool(BaseTool):
    def __init__(self, toolset: McpToolset, declared: Declared) -> None:
        super().__init__(name=toolset.shown_name(declared.name), description=declared.description)
        self._toolset = toolset
        self._declared = declared

    @property
    def timeout(self) -> float | None:
        return self._toolset.timeout

    def _get_declaration(self) -> FunctionDeclaration:
        return FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=dict(self._declared.parameters)
        )

    async def run_async(self, *, args: Plain, tool_context: ToolContext) -> object:
        """Call the tool. If its server is unreachable or too slow, the result tells the model, and the turn goes on."""
        try:
            headers = await self._toolset.own_headers(tool_context)
            server = self._toolset.server(headers)
            # The client blocks, so it runs in a thread: other tools of the same answer go on meanwhile.
            return await asyncio.to_thread(server.call, self._declared.name, args, tool_context.seconds)
        except McpFailed as error:
            return {"error": str(error)}


class McpToolset(BaseToolset):
    """Stand-in for `google.adk.tools.mcp_tool.McpToolset`."""

    def __init__(
        self,
        *,
        connection_params: object = None,
        tool_filter: object = None,
        tool_name_prefix: str | None = None,
        header_provider: Callable[[ReadonlyContext], HeaderAnswer] | None = None,
        auth_scheme: object = None,
        auth_credential: object = None,
        **options: object,
    ) -> None:
        self._parameters = _parameters(connection_params)
        self._filter = tool_filter
        self._prefix = tool_name_prefix or ""
        self._header_provider = header_provider
        self._servers: dict[tuple[tuple[str, str], ...], McpServer] = {}
        self._listed: list[McpTool] | None = None
        self.refusal = ""
        """Why the server may not be used; empty if it may."""
        self._auth: Mapping[str, str] = {}
        try:
            self._auth = auth_headers(auth_scheme, auth_credential)
        except ValueError as error:
            self.refusal = str(error)

    @classmethod
    def from_config(cls, config: ToolArgsConfig, config_abs_path: str) -> McpToolset:
        """Make the toolset from YAML, which may start programs only where the operator has allowed it."""
        arguments = config.model_dump()
        named = {key: value for key, value in arguments.items() if key in KINDS and value is not None}
        if len(named) != 1:
            raise ValueError(f"McpToolset: one of {', '.join(KINDS)} is needed")
        ((key, value),) = named.items()
        rest = {key: value for key, value in arguments.items() if key not in KINDS}
        made = cls(connection_params=KINDS[key].model_validate(value), **rest)
        # As in the ADK, whoever may write YAML must not be able to start programs with it. The project's Python may
        # start those of `limits.function_programs`.
        if key.startswith("stdio") and os.environ.get(ALLOW_PROGRAMS, "").strip().lower() not in _TRUE_WORDS:
            made.refusal = f"YAML may start programs only where 'function_environment' sets {ALLOW_PROGRAMS} to 1"
        return made

    @property
    def timeout(self) -> float | None:
        """Seconds for one call; None: the project sets none."""
        return getattr(self._parameters, "sse_read_timeout", None)

    def shown_name(self, name: str) -> str:
        return f"{self._prefix}_{name}" if self._prefix else name

    async def get_tools(self, readonly_context: object = None) -> list[BaseTool]:
        """List the server's tools. Raises `McpFailed`."""
        return list(self.keep_listed(await asyncio.to_thread(self.server().tools)))

    def keep_listed(self, declared: list[Declared]) -> list[McpTool]:
        """Keep and return those of the server's tools that pass the filter."""
        self._listed = [tool for each in declared if self._passes_filter(tool := McpTool(self, each), each.name)]
        return self._listed

    def may_have(self, name: str) -> bool:
        """Return whether the set may have a tool of this name, without asking the server."""
        own = self._own_name(name)
        return own is not None and (not isinstance(self._filter, list) or own in self._filter)

    def tool(self, name: str, *, is_only_candidate: bool) -> McpTool | None:
        """Return the tool that models call by this name. Raises `McpFailed`.

        `is_only_candidate`: no other toolset may have the tool, so that the server need not be asked for its list.
        """
        # A replacement worker has no list of the tools, because another process made the description.
        if self._listed is None and not is_only_candidate:
            self.keep_listed(self.server().tools())
        if self._listed is not None:
            return next((each for each in self._listed if each.name == name), None)
        return McpTool(self, Declared(self._own_name(name) or name, "", {}))

    async def own_headers(self, context: ReadonlyContext) -> dict[str, str]:
        if self._header_provider is None:
            return {}
        answer = self._header_provider(context)
        headers = await answer if inspect.isawaitable(answer) else answer
        return {str(name): str(value) for name, value in (headers or {}).items()}

    def server(self, headers: Mapping[str, str] | None = None) -> McpServer:
        """Return the session for these headers. Raises `McpFailed`."""
        if self.refusal:
            raise McpFailed(self.refusal)
        # One session for each set of headers, because a server may tie data of a caller to the session.
        key = tuple(sorted((headers or {}).items()))
        if key not in self._servers:
            begin_timeout = getattr(self._parameters, "timeout", 5.0)
            timeout = self.timeout or _CALL_SECONDS
            self._servers[key] = McpServer(self._wire(dict(key)), max(timeout, begin_timeout), begin_timeout)
        return self._servers[key]

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()

    def _wire(self, headers: Mapping[str, str]) -> Wire:
        parameters = self._parameters
        if isinstance(parameters, StdioConnectionParams):
            parameters = parameters.server_params
        if isinstance(parameters, StdioServerParameters):
            folder = None if parameters.cwd is None else str(parameters.cwd)
            return ProgramWire(parameters.command, parameters.args, parameters.env or {}, folder)
        own = {str(name): str(value) for name, value in (parameters.headers or {}).items()} | dict(headers)
        # Header names are case-insensitive (RFC 9110, section 5.1): headers from `auth_credential` replace those of any
        # spelling.
        replaced = {name.lower() for name in self._auth}
        kept = {name: value for name, value in own.items() if name.lower() not in replaced}
        kind = SseWire if isinstance(parameters, SseConnectionParams) else HttpWire
        return kind(parameters.url, {**kept, **self._auth})

    def _own_name(self, name: str) -> str | None:
        """Return the server's own name of a tool, or None when the tool is not in this set."""
        start = f"{self._prefix}_" if self._prefix else ""
        return name.removeprefix(start) if name.startswith(start) else None

    def _passes_filter(self, tool: McpTool, name: str) -> bool:
        if callable(self._filter):
            return bool(self._filter(tool, None))
        return not isinstance(self._filter, list) or name in self._filter


def _parameters(value: object) -> Parameters:
    """Return connection parameters, also from the classes of the `mcp` package. Raises ValueError."""
    if isinstance(value, Parameters):
        return value
    plain = value.model_dump() if isinstance(value, BaseModel) else value
    if isinstance(plain, Mapping) and "command" in plain:
        return StdioServerParameters.model_validate(plain)
    if isinstance(plain, Mapping) and "url" in plain:
        return StreamableHTTPConnectionParams.model_validate(plain)
    raise ValueError("McpToolset: 'connection_params' with a 'url' or a 'command' is needed")


def is_mcp_toolset(value: object) -> TypeGuard[McpToolset]:
    """Return whether a value is an MCP toolset. A subclass with its own `get_tools` is not: it is asked at import."""
    return isinstance(value, McpToolset) and type(value).get_tools is McpToolset.get_tools


def auth_headers(scheme: object, credential: object) -> dict[str, str]:
    """Return the headers for `auth_scheme` and `auth_credential`: maps, or objects with the same fields.

    No token is fetched: a credential that has none, or that would have to be exchanged, raises ValueError. The error's
    text has nothing secret.
    """
    # An OAuth token comes first, then the data of an HTTP scheme, then an API key.
    fields = _snake_case_keys(credential)
    if not fields:
        if scheme is None:
            return {}
        raise ValueError("'auth_scheme' is set, but 'auth_credential' is missing")
    if token := _snake_case_keys(fields.get("oauth2")).get("access_token"):
        return {"Authorization": f"Bearer {token}"}
    if http := _snake_case_keys(fields.get("http")):
        return _http_headers(http)
    if key := fields.get("api_key"):
        return _key_header(_snake_case_keys(scheme), str(key))
    raise ValueError("'auth_credential' has no token and no key; none is fetched from elsewhere")


def _http_headers(http: Mapping[str, object]) -> dict[str, str]:
    """Return the headers of an HTTP scheme: `basic` by RFC 7617, section 2, `bearer` by RFC 6750, section 2.1."""
    scheme, secrets = str(http.get("scheme") or ""), _snake_case_keys(http.get("credentials"))
    more = {str(name): str(value) for name, value in _map(http.get("additional_headers")).items()}
    if scheme.lower() == "basic" and secrets.get("username") and secrets.get("password"):
        pair = f"{secrets['username']}:{secrets['password']}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}", **more}
    # Other schemes are sent as they are written, with their token, because "Token abc" is common.
    if token := secrets.get("token") if scheme and scheme.lower() != "basic" else None:
        return {"Authorization": f"{'Bearer' if scheme.lower() == 'bearer' else scheme} {token}", **more}
    if more:
        return more
    needed = "username and password" if scheme.lower() == "basic" else "token"
    raise ValueError(f"'auth_credential.http': the scheme '{scheme}' lacks its {needed}")


def _key_header(scheme: Mapping[str, object], key: str) -> dict[str, str]:
    place, name = scheme.get("in", scheme.get("in_")), scheme.get("name")
    if str(getattr(place, "value", place)) != "header" or not isinstance(name, str):
        raise ValueError("'auth_scheme': an API key is sent in a header only; set 'in: header' and the header's 'name'")
    return {name: key}


def _snake_case_keys(value: object) -> dict[str, object]:
    """Return a map or object with its keys in snake_case; empty for anything else."""
    data = value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
    return {snake_case(str(key)): each for key, each in data.items()} if isinstance(data, Mapping) else {}


def _map(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}
