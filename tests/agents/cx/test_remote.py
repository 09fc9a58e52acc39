"""Tools of MCP servers, and what proves to outside servers who asks."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import check_cx_app
from callagent.agents.cx.runtime.authentication import Authentication, SecretMissing
from callagent.agents.cx.runtime.http import Requests
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import results, words
from tests.agents.mcp_server import mcp_server


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


USES = """
    def both(town: str) -> dict:
        adds = async_tools.Towns_add({"a": 1, "b": 1})
        return {"town": tools.Towns_describe({"town": town}).json(), "sum": adds().json()}
"""


async def test_tools_of_an_mcp_server_are_offered_and_called(tmp_path: Path) -> None:
    with mcp_server() as address:
        own = {"displayName": "Towns", "mcpToolset": {"serverAddress": address}}
        single = {"displayName": "plus", "mcpTool": {"name": "add", "serverAddress": address, "description": "Adds."}}
        app = write_app(
            tmp_path,
            agent={"tools": ["plus", "both"], "toolsets": [{"toolset": "towns", "toolIds": ["describe"]}]},
            tools={"both": USES},
            more={"toolsets/towns/towns.json": json.dumps(own), "tools/plus/plus.json": json.dumps(single)},
        )
        assert check_cx_app(app).warnings == ()
        entries = [
            call("Towns_describe", town="Bonn"),
            call("plus", a=2, b=3),
            call("both", town="Ems"),
            {"text": "So."},
        ]
        async with driven(app, *entries) as agent:
            actions = await agent.says("Tell me.")
            assert words(actions) == ["So."]
            assert results(actions) == {
                "Towns_describe": {"town": "Bonn", "sky": "blue"},
                "plus": {"result": 5},
                "both": {"town": {"town": "Ems", "sky": "blue"}, "sum": {"result": 2}},
            }
            assert set(agent.model.tools()) == {"plus", "both", "Towns_describe"}


async def test_a_server_that_is_not_there_leaves_the_app_without_its_tools(tmp_path: Path) -> None:
    own = {"displayName": "Towns", "mcpToolset": {"serverAddress": "http://127.0.0.1:9/mcp"}}
    app = write_app(
        tmp_path, agent={"toolsets": [{"toolset": "towns"}]}, more={"toolsets/towns/towns.json": json.dumps(own)}
    )
    async with driven(app, {"text": "Hello."}) as agent:
        assert words(await agent.says("Hello?")) == ["Hello."]


class _Tokens(BaseHTTPRequestHandler):
    asked: list[dict[str, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append(dict(urllib.parse.parse_qsl(body)))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"access_token": "t1", "expires_in": 3600}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the test's output."""


@pytest.fixture
def tokens() -> Iterator[Any]:
    server = HTTPServer(("127.0.0.1", 0), _Tokens)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def applied(given: Any, session: dict[str, Any] | None = None) -> dict[str, Any]:
    request: dict[str, Any] = {"headers": {}}
    Authentication(Requests()).apply(given, request, session or {})
    return request


def test_keys_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_KEY", "k1")
    key = {"keyName": "X-Key", "apiKeySecretVersion": "projects/p/secrets/WEATHER_KEY/versions/1"}
    assert applied({"apiKeyConfig": key}) == {"headers": {"X-Key": "k1"}}
    in_query = {**key, "requestLocation": "QUERY_STRING"}
    assert applied({"apiKeyConfig": in_query})["params"] == {"X-Key": "k1"}
    bearer = {"bearerTokenConfig": {"token": "$context.variables.token"}}
    assert applied(bearer, {"variables": {"token": "t"}})["headers"] == {"Authorization": "Bearer t"}
    with pytest.raises(SecretMissing, match="OTHER"):
        applied({"apiKeyConfig": {**key, "apiKeySecretVersion": "OTHER"}})


def test_client_credentials_are_fetched_once(tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", base64.b64encode(b"s").decode())
    endpoint = f"http://127.0.0.1:{tokens.server_address[1]}/token"
    oauth = {"clientId": "me", "clientSecretVersion": "CLIENT_SECRET", "tokenEndpoint": endpoint, "scopes": ["a", "b"]}
    authentication = Authentication(Requests())
    for _ in range(2):
        request: dict[str, Any] = {}
        authentication.apply({"oauthConfig": oauth}, request, {})
        assert request["headers"] == {"Authorization": "Bearer t1"}
    (asked,) = tokens.asked
    assert (asked["grant_type"], asked["client_id"], asked["scope"]) == ("client_credentials", "me", "a b")


def test_what_does_not_work_is_told(tmp_path: Path) -> None:
    own = {"mcpToolset": {"serverAddress": "x", "apiAuthentication": {"serviceAccountAuthConfig": {}}}}
    client = {"displayName": "map", "clientFunction": {"name": "map"}}
    more = {"toolsets/towns/towns.json": json.dumps(own), "tools/map/map.json": json.dumps(client)}
    told = [(each.file, each.message) for each in check_cx_app(write_app(tmp_path, more=more)).warnings]
    assert (
        "toolsets/towns/towns.json",
        "'serviceAccountAuthConfig' does not work here: requests go without it",
    ) in told
    assert any(file == "tools/map/map.json" and "sessions only" in message for file, message in told)
