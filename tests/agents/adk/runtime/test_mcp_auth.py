"""A set of a server's tools proves who asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.adk import adk_runtime, check_adk_imports, check_adk_project
from callagent.agents.adk.runtime.mcp_toolset import auth_headers
from callagent.testing.in_process import InProcessPool
from tests.agents.adk.support import write_project

BEARER = {"authType": "http", "http": {"scheme": "bearer", "credentials": {"token": "t0p"}}}
HTTP = {"type": "http", "scheme": "bearer"}


@pytest.mark.parametrize(
    ("scheme", "credential", "headers"),
    [
        (None, None, {}),
        (HTTP, BEARER, {"Authorization": "Bearer t0p"}),
        (HTTP, {"oauth2": {"accessToken": "t0p"}}, {"Authorization": "Bearer t0p"}),
        (
            {"type": "http", "scheme": "basic"},
            {"http": {"scheme": "basic", "credentials": {"username": "Aladdin", "password": "open sesame"}}},
            {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="},
        ),
        (
            HTTP,
            {"http": {"scheme": "Token", "credentials": {"token": "t0p"}, "additional_headers": {"X-Shop": 7}}},
            {"Authorization": "Token t0p", "X-Shop": "7"},
        ),
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, {"api_key": "t0p"}, {"X-Key": "t0p"}),
    ],
)
def test_a_credential_is_a_header(scheme: Any, credential: Any, headers: dict[str, str]) -> None:
    assert auth_headers(scheme, credential) == headers


@pytest.mark.parametrize(
    ("scheme", "credential", "told"),
    [
        (HTTP, None, "'auth_credential' is missing"),
        (HTTP, {"oauth2": {"client_id": "me", "client_secret": "t0p"}}, "has no token and no key"),
        (HTTP, {"service_account": {"use_default_credential": True}}, "has no token and no key"),
        (HTTP, {"http": {"scheme": "basic", "credentials": {"password": "t0p"}}}, "'basic' lacks"),
        ({"type": "apiKey", "in": "query", "name": "key"}, {"api_key": "t0p"}, "in a header"),
    ],
)
def test_what_cannot_be_proven_is_refused_without_its_secret(scheme: Any, credential: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told) as failure:
        auth_headers(scheme, credential)
    assert "t0p" not in str(failure.value)


@contextmanager
def listening() -> Iterator[tuple[str, list[Any]]]:
    """The address of a server that refuses everything, and the headers it was asked with."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers)
            self.send_error(401)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", asked
        finally:
            server.shutdown()


def a_project(folder: Path, address: str, credential: str) -> Path:
    text = f"""\
name: a
instruction: x
tools:
  - name: McpToolset
    args:
      streamable_http_connection_params: {{url: "{address}", headers: {{authorization: "Bearer old", X-Town: Bonn}}}}
      auth_scheme: {{type: http, scheme: bearer}}
      auth_credential: {credential}
"""
    return write_project(folder, {"root_agent.yaml": text})


async def test_a_server_is_shown_the_credential(tmp_path: Path) -> None:
    with listening() as (address, asked):
        credential = "{auth_type: http, http: {scheme: bearer, credentials: {token: t0p}}}"
        project = a_project(tmp_path, address, credential)
        assert check_adk_project(project).warnings == ()
        (finding,) = (await check_adk_imports(InProcessPool(adk_runtime(project)))).warnings
    assert asked[0].get_all("authorization") == ["Bearer t0p"]
    assert asked[0]["x-town"] == "Bonn"
    assert "t0p" not in str(finding)


async def test_a_server_is_not_asked_without_the_credential(tmp_path: Path) -> None:
    with listening() as (address, asked):
        project = a_project(tmp_path, address, "{auth_type: oauth2, oauth2: {client_id: me, client_secret: t0p}}")
        (finding,) = (await check_adk_imports(InProcessPool(adk_runtime(project)))).warnings
    assert asked == []
    assert (finding.line, "has no token and no key" in finding.message) == (4, True)
