"""`conv.api` against a real server on loopback, and with mocks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from callagent.agents.flows.runtime.api_types import NotAvailable
from callagent.agents.flows.runtime.integrations import ApiIntegrations, Mocks

Seen = list[tuple[str, str, dict[str, str], str]]
OPERATIONS = {
    "find": {"method": "GET", "resource": "guests/{guest}/visits/{visit}?full=1"},
    "add": {"method": "POST", "resource": "guests"},
}


class Service(HTTPServer):
    seen: Seen


class Handler(BaseHTTPRequestHandler):
    server: Service

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        text = json.dumps({"access_token": "T"} if self.path == "/token" else {"ok": True}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service(("127.0.0.1", 0), Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(service: Service) -> str:
    return f"http://127.0.0.1:{service.server_address[1]}"


def api(base_url: str, auth_type: str = "none", secret: Any = None, mocks: Any = None) -> tuple[Any, list[Any]]:
    logged: list[Any] = []
    settings = {"base_url": base_url, "auth_type": auth_type, "operations": OPERATIONS}
    made = ApiIntegrations({"crm": settings}, Mocks(mocks or {}), lambda name: secret, logged.append)
    return made, logged


def test_path_variables_are_given_in_order_or_by_name_and_escaped(service: Service):
    made, logged = api(url(service))
    assert made.crm.find("a b", visit="x/y", params={"q": "1"}).json() == {"ok": True}
    assert service.seen[0][:2] == ("GET", "/guests/a%20b/visits/x%2Fy?full=1&q=1")
    assert [response.status_code for response in logged] == [200]


def test_a_body_and_headers_go_along(service: Service):
    made, _ = api(url(service))
    made.crm.add(json={"name": "Ida"}, headers={"X-Line": "7"})
    method, path, headers, body = service.seen[0]
    assert (method, path, json.loads(body), headers["X-Line"]) == ("POST", "/guests", {"name": "Ida"}, "7")


@pytest.mark.parametrize(
    ("auth_type", "secret", "header", "value"),
    [
        ("basic", {"username": "u", "password": "p"}, "Authorization", "Basic dTpw"),
        ("apiKey", {"header": "X-Key", "key": "k"}, "X-Key", "k"),
        ("apiKey", "k", "X-API-Key", "k"),
        ("oauth2", {"token": "t"}, "Authorization", "Bearer t"),
    ],
)
def test_credentials_come_from_the_secret(service: Service, auth_type: str, secret: Any, header: str, value: str):
    made, _ = api(url(service), auth_type, secret)
    made.crm.add()
    assert service.seen[0][2][header] == value


def test_a_key_may_be_a_query_parameter(service: Service):
    made, _ = api(url(service), "apiKey", {"query_param": "key", "key": "k"})
    made.crm.add()
    assert service.seen[0][1] == "/guests?key=k"


def test_client_credentials_are_exchanged_for_a_token(service: Service):
    secret = {"token_url": f"{url(service)}/token", "client_id": "c", "client_secret": "s", "scope": "all"}
    made, _ = api(url(service), "oauth2_client_credentials", secret)
    made.crm.add()
    assert service.seen[0][3] == "grant_type=client_credentials&scope=all"
    assert service.seen[1][2]["Authorization"] == "Bearer T"


def test_mocks_answer_in_order_and_then_the_service(service: Service):
    rules = [{"status": 404, "body": "gone", "repeat": 2}, {"body": {"id": 1}, "headers": {"X-A": "b"}}]
    made, logged = api(url(service), mocks={"crm": {"add": rules}})
    answers = [made.crm.add() for _ in range(4)]
    assert [answer.status_code for answer in answers] == [404, 404, 200, 200]
    assert (answers[0].text, answers[2].json(), answers[2].headers["X-A"]) == ("gone", {"id": 1}, "b")
    assert answers[2].request.method == "POST"
    assert len(service.seen) == 1
    assert len(logged) == 4


def test_a_mock_may_answer_for_ever():
    made, _ = api("", mocks={"crm": {"add": [{"status": 500, "repeat": -1}]}})
    assert [made.crm.add().status_code for _ in range(3)] == [500, 500, 500]


def test_what_cannot_be_called_says_why():
    made, _ = api("")
    with pytest.raises(AttributeError, match="no API integration 'erp'; it has: crm"):
        made.erp.find()
    with pytest.raises(AttributeError, match="no operation 'drop'"):
        made.crm.drop()
    with pytest.raises(NotAvailable, match="base_url"):
        made.crm.add()
    with pytest.raises(TypeError, match="needs a value for 'visit'"):
        made.crm.find("a")
    with pytest.raises(TypeError, match="takes 2 values"):
        made.crm.find("a", "b", "c")
    with pytest.raises(TypeError, match="no variable colour"):
        made.crm.find("a", "b", colour="red")
    with pytest.raises(NotAvailable, match="jwt_client_assertion"):
        api("http://127.0.0.1:9", "jwt_client_assertion", {})[0].crm.add()
