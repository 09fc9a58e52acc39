"""Tools of MCP servers, and what proves to outside servers who asks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest

from callagent.agents.cx import check_cx_app, check_cx_imports, cx_runtime, load_cx_app
from callagent.agents.cx.format import OperationRequest
from callagent.agents.cx.format.app import AUTHENTICATION
from callagent.agents.cx.runtime.http import Requests
from callagent.agents.cx.runtime.tool_servers import Authentication, SecretMissing, _headers
from callagent.agents.tree import TreeSettings
from callagent.testing.in_process import InProcessPool
from callagent.workers import ProcessPool
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import DrivenAgent, results, words
from tests.agents.flows.support import call_info, scripted
from tests.agents.mcp_server import mcp_server
from tests.end_to_end.baresip import free_port


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


USES = """
    def both(town: str) -> dict:
        "Asks twice."
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


async def test_a_server_that_was_away_offers_its_tools_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(socket.SOCK_STREAM)
    own = {"displayName": "Towns", "mcpToolset": {"serverAddress": f"http://127.0.0.1:{port}/mcp"}}
    more = {"toolsets/towns/towns.json": json.dumps(own)}
    app = write_app(tmp_path, agent={"toolsets": [{"toolset": "towns"}]}, more=more)
    pool = InProcessPool(cx_runtime(app))
    (finding,) = (await check_cx_imports(pool)).warnings
    assert (finding.file, finding.line) == ("toolsets/towns/towns.json", 1)
    monkeypatch.setattr("callagent.agents.tree.description.RETRY_SECONDS", 0.0)
    project = load_cx_app(app, scripted(), pool)
    try:
        assert "Towns_add" not in [tool.name for tool in (await project.prepare()).tools]
        with mcp_server(port=port):
            async with asyncio.timeout(20):
                while "Towns_add" not in [tool.name for tool in (await project.prepare()).tools]:
                    await asyncio.sleep(0.1)
    finally:
        await project.close()


async def test_overrides_rename_a_servers_tools_and_pins_stand_in_for_it(tmp_path: Path) -> None:
    overrides = [
        {"tool": "describe", "nameOverride": "look", "descriptionOverride": "Look at a town."},
        {"tool": "add", "snapshot": {"description": "Adds.", "inputSchema": {"type": "OBJECT", "properties": {}}}},
    ]

    def app(address: str, name: str) -> Path:
        own = {"displayName": "Towns", "mcpToolset": {"serverAddress": address, "toolOverrides": overrides}}
        more = {"toolsets/towns/towns.json": json.dumps(own)}
        return write_app(tmp_path / name, agent={"toolsets": [{"toolset": "towns"}]}, more=more)

    with mcp_server() as address:
        calls = call("Towns_look", town="Bonn")
        async with driven(app(address, "there"), calls, {"text": "So."}) as agent:
            assert results(await agent.says("Tell me.")) == {"Towns_look": {"town": "Bonn", "sky": "blue"}}
            offered = {each["function"]["name"]: each["function"] for each in agent.model.requests[0][1]}
            assert offered["Towns_look"]["description"] == "Look at a town."
    async with driven(app("http://127.0.0.1:9/mcp", "away"), call("Towns_add"), {"text": "Sorry."}) as agent:
        actions = await agent.says("Tell me.")
        assert "cannot be reached" in results(actions)["Towns_add"]["error"]
        offered = {each["function"]["name"]: each["function"] for each in agent.model.requests[0][1]}
        assert offered["Towns_add"]["parameters"]["type"] == "object"


class _Outside(BaseHTTPRequestHandler):
    """Tokens for forms, and whatever else is asked: how it was asked."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = dict(urllib.parse.parse_qsl(body))
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        number = len(self.server.asked)  # type: ignore[attr-defined]
        kind = "id_token" if "target_audience" in _claims(asked) else "access_token"
        self._answer({kind: f"t{number}", "expires_in": 3600})

    def do_GET(self) -> None:
        if self.path.startswith("/slow"):
            time.sleep(7)
        self._answer({"path": self.path, "authorization": self.headers.get("Authorization")})

    def _answer(self, data: Any) -> None:
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(data).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the test's output."""


def _claims(asked: dict[str, str]) -> dict[str, Any]:
    if "assertion" not in asked:
        return {}
    claims: dict[str, Any] = jwt.decode(asked["assertion"], options={"verify_signature": False})
    return claims


@pytest.fixture
def tokens() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Outside)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def account_key() -> Any:
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def service_account(key: Any, server: Any, email: str = "desk@p.iam.gserviceaccount.com") -> dict[str, str]:
    """As Google's console writes the file of a key."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    uri = f"http://127.0.0.1:{server.server_address[1]}/token"
    return {
        "type": "service_account",
        "client_email": email,
        "private_key_id": "k7",
        "private_key": pem,
        "token_uri": uri,
    }


def applied(
    given: Any,
    session: dict[str, Any] | None = None,
    *,
    url: str = "https://api.example.com/",
    authentication: Authentication | None = None,
) -> OperationRequest:
    request = OperationRequest("GET", url)
    (authentication or Authentication(Requests())).apply({"apiAuthentication": given}, request, session or {})
    return request


def test_keys_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_KEY", "k1")
    key = {"keyName": "X-Key", "apiKeySecretVersion": "projects/p/secrets/WEATHER_KEY/versions/1"}
    request = applied({"apiKeyConfig": key})
    assert (request.headers, request.params) == ({"X-Key": "k1"}, {})
    in_query = {**key, "requestLocation": "QUERY_STRING"}
    assert applied({"apiKeyConfig": in_query}).params == {"X-Key": "k1"}
    bearer = {"bearerTokenConfig": {"token": "$context.variables.token"}}
    assert applied(bearer, {"variables": {"token": "t"}}).headers == {"Authorization": "Bearer t"}
    with pytest.raises(SecretMissing, match="OTHER"):
        applied({"apiKeyConfig": {**key, "apiKeySecretVersion": "OTHER"}})


def test_client_credentials_are_fetched_once(tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", base64.b64encode(b"s").decode())
    endpoint = f"http://127.0.0.1:{tokens.server_address[1]}/token"
    oauth = {"clientId": "me", "clientSecretVersion": "CLIENT_SECRET", "tokenEndpoint": endpoint, "scopes": ["a", "b"]}
    authentication = Authentication(Requests())
    for _ in range(2):
        request = applied({"oauthConfig": oauth}, authentication=authentication)
        assert request.headers == {"Authorization": "Bearer t1"}
    (asked,) = tokens.asked
    assert (asked["grant_type"], asked["client_id"], asked["scope"]) == ("client_credentials", "me", "a b")


def test_a_service_account_gives_a_signed_assertion_for_its_token(
    tokens: Any, account_key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = service_account(account_key, tokens)
    other = service_account(account_key, tokens, "other@p.iam.gserviceaccount.com")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps([other, key]))
    authentication = Authentication(Requests())
    account = {"serviceAccountAuthConfig": {"serviceAccount": key["client_email"], "scopes": ["a", "b"]}}
    for _ in range(2):
        request = applied(account, authentication=authentication)
        assert request.headers == {"Authorization": "Bearer t1"}
    (asked,) = tokens.asked
    assert asked["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert jwt.get_unverified_header(asked["assertion"]) == {"alg": "RS256", "typ": "JWT", "kid": "k7"}
    claims = jwt.decode(asked["assertion"], account_key.public_key(), ["RS256"], audience=key["token_uri"])
    assert (claims["iss"], claims["scope"], claims["exp"] - claims["iat"]) == (key["client_email"], "a b", 3600)


def test_the_service_agent_proves_itself_to_the_server_that_is_asked(
    tokens: Any, account_key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(service_account(account_key, tokens)))
    authentication = Authentication(Requests())
    for path, token in (("a?b=1", "t1"), ("c", "t1")):
        agent: dict[str, Any] = {"serviceAgentIdTokenAuthConfig": {}}
        request = applied(agent, url=f"https://api.example.com/{path}", authentication=authentication)
        assert request.headers == {"Authorization": f"Bearer {token}"}
    (asked,) = tokens.asked
    assert _claims(asked)["target_audience"] == "https://api.example.com"


def test_a_key_that_is_none_says_nothing_of_itself(tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"serviceAccountAuthConfig": {"serviceAccount": "desk@p.iam.gserviceaccount.com"}}
    for given, reason in (("", "has no key"), ("{", "not JSON"), ("[]", "has no key")):
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", given)
        with pytest.raises(SecretMissing, match=reason):
            applied(account)
    key = {"client_email": "desk@p.iam.gserviceaccount.com", "private_key": "hidden words"}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    with pytest.raises(SecretMissing) as failed:
        applied(account)
    assert "cannot be used" in str(failed.value)
    assert "hidden" not in str(failed.value)


def openapi(server: Any, path: str, operation: str) -> str:
    address = f"http://127.0.0.1:{server.server_address[1]}"
    got = {"operationId": operation, "summary": "Looks.", "responses": {}}
    return json.dumps({"openapi": "3.0.0", "servers": [{"url": address}], "paths": {path: {"get": got}}})


async def test_an_openapi_tool_is_one_operation_with_its_account(
    tmp_path: Path, tokens: Any, account_key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = service_account(account_key, tokens)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    own = {
        "openApiSchema": "tools/sky/schema.yaml",
        "name": "sky",
        "apiAuthentication": {"serviceAccountAuthConfig": {"serviceAccount": key["client_email"]}},
    }
    uses = """
        def both() -> dict:
            'The sky, by the tool of one operation.'
            return tools.sky({}).json()
    """
    app = write_app(
        tmp_path,
        agent={"tools": ["sky", "both"]},
        tools={"both": uses},
        more={
            "tools/sky/sky.json": json.dumps({"displayName": "sky", "openApiTool": own}),
            "tools/sky/schema.yaml": openapi(tokens, "/sky", "sky"),
        },
    )
    assert check_cx_app(app).warnings == ()
    async with driven(app, call("sky"), call("both"), {"text": "Blue."}) as agent:
        found = results(await agent.says("How is the sky?"))
        assert list(found.values()) == [{"path": "/sky", "authorization": "Bearer t1"}] * 2
        assert len(tokens.asked) == 1


async def test_a_tools_own_timeout_ends_it_and_the_call_goes_on(tmp_path: Path, tokens: Any) -> None:
    slow = {"displayName": "slow", "timeout": "5s", "openApiTool": {"openApiSchema": "tools/slow/schema.yaml"}}
    endless = """
        def endless() -> dict:
            while True:
                pass
    """
    patient = """
        import time

        def patient() -> dict:
            time.sleep(1.5)
            return {"done": True}
    """
    app = write_app(tmp_path, tools={"endless": endless, "patient": patient})
    for name, timeout in (("endless", "0.5s"), ("patient", "20s")):
        file = app / f"tools/{name}/{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "timeout": timeout}))
    (app / "tools/slow").mkdir()
    (app / "tools/slow/slow.json").write_text(json.dumps(slow))
    (app / "tools/slow/schema.yaml").write_text(openapi(tokens, "/slow", "slow"))
    agent_file = app / "agents/desk/desk.json"
    agent_data = json.loads(agent_file.read_text())
    agent_file.write_text(json.dumps({**agent_data, "tools": [*agent_data["tools"], "slow"]}))
    calls = {"calls": [{"name": name, "arguments": {}} for name in ("slow", "endless", "patient")]}
    settings = TreeSettings(function_timeout=1.0)
    async with driven(app, calls, {"text": "Sorry."}, settings=settings, make_pool=ProcessPool) as agent:
        actions = await agent.says("Look.")
        assert words(actions) == ["Sorry."]
        found = results(actions)
        assert "timed out" in found["slow"]["error"]
        assert found["endless"]["error"] == "FunctionTimeout: no answer within 0.5 s"
        assert found["patient"] == {"done": True}


KINDS = {
    "clientFunction": {"name": "map"},
    "connectorTool": {},
    "dataStoreTool": {"name": "books"},
    "fileSearchTool": {"name": "files"},
    "googleSearchTool": {"name": "web"},
    "remoteAgentTool": {},
    "widgetTool": {"name": "card", "parameters": {"type": "OBJECT", "properties": {"title": {"type": "STRING"}}}},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_what_only_the_platform_has_is_told_to_the_model(kind: str, tmp_path: Path) -> None:
    data = {"displayName": "special", kind: KINDS[kind]}
    app = write_app(
        tmp_path, agent={"tools": ["special"]}, more={"tools/special/special.json": json.dumps(data, indent=1)}
    )
    (warning,) = check_cx_app(app).warnings
    assert (warning.file, warning.line) == ("tools/special/special.json", 3)
    async with driven(app, call("special", query="books"), {"text": "I cannot look."}) as agent:
        actions = await agent.says("Look.")
        assert words(actions) == ["I cannot look."]
        assert "not available in this conversation" in results(actions)["special"]["error"]
        (offered,) = (each["function"] for each in agent.model.requests[0][1] if each["function"]["name"] == "special")
        assert offered["parameters"]["type"] == "object"


async def test_a_fake_answers_for_what_only_the_platform_has(tmp_path: Path) -> None:
    fake = {"enableFakeMode": True, "codeBlock": {"pythonCode": "tools/books/fake.py"}}
    data = {"displayName": "books", "dataStoreTool": {"name": "books"}, "toolFakeConfig": fake}
    source = "def fake_tool_call(tool, input, callback_context):\n    return {'snippets': [input['query']]}\n"
    more = {"tools/books/books.json": json.dumps(data), "tools/books/fake.py": source}
    app = write_app(tmp_path, agent={"tools": ["books"]}, more=more)
    project = load_cx_app(app, scripted(call("books", query="tea"), {"text": "Tea."}), InProcessPool(cx_runtime(app)))
    try:
        async with project.open_for_test({}) as agent:
            driven_agent = DrivenAgent(agent, None)
            assert results(await driven_agent.says("Tea?")) == {"books": {"snippets": ["tea"]}}
    finally:
        await project.close()


def test_what_does_not_work_is_told(tmp_path: Path) -> None:
    server = {"serverAddress": "x", "apiAuthentication": {"otherConfig": {}}, "tlsConfig": {"caCerts": [{}]}}
    own = {"timeout": "soon", "mcpToolset": server}
    more = {"toolsets/towns/towns.json": json.dumps(own)}
    told = [(each.file, each.rule, each.message) for each in check_cx_app(write_app(tmp_path, more=more)).warnings]
    file = "toolsets/towns/towns.json"
    assert told == [
        (
            file,
            "CX014",
            f"'otherConfig' does not work here, and requests are sent without it: use {', '.join(AUTHENTICATION)}",
        ),
        (file, "CX011", "'soon' has no effect: write a duration such as '20s'"),
        (file, "CX011", "'tlsConfig' has no effect here: the system's certificates and name resolution are used"),
    ]


def test_headers_of_the_apps_own_are_the_calls_variables() -> None:
    own = {"serverAddress": "http://127.0.0.1:9/mcp", "customHeaders": {"X-Customer": "$context.variables.customer"}}
    assert dict(_headers(own, {"variables": {"customer": 7}})) == {"X-Customer": "7"}
    assert dict(_headers(own, {})) == {}


async def test_code_may_call_a_clients_function_in_a_session(tmp_path: Path) -> None:
    data = {"displayName": "map", "clientFunction": {"name": "map", "description": "Shows a map."}}
    callback = """
        def before_model_callback(callback_context, llm_request):
            return LlmResponse.from_parts([Part.from_function_call("map", {"town": "Bonn"})])
    """
    more = {"tools/map/map.json": json.dumps(data)}
    app = write_app(tmp_path, agent={"tools": ["map"]}, callbacks={"before_model": callback}, more=more)
    project = load_cx_app(app, scripted(), InProcessPool(cx_runtime(app)))

    async def write_metric(name: str, value: Any) -> None:
        """Nobody asks."""

    try:
        agent = await project.open_with(call_info(), write_metric, clients=True)
        await DrivenAgent(agent, None).says("Where is it?")
        (asked,) = agent.client_tool_calls()
        assert (asked["displayName"], asked["args"]) == ("map", {"town": "Bonn"})
        await agent.close()
    finally:
        await project.close()
