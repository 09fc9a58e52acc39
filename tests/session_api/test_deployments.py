"""The Session API's `deployment`: which version of an app a session runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from callagent.agents.cx import cx_runtime, load_cx_app
from callagent.session_api.routes import SessionRoutes
from callagent.web.access import guard
from callagent.workers import ProcessPool
from tests.agents.cx.format.test_deployments import APP, deployed
from tests.agents.flows.support import scripted
from tests.web.entry import HEADERS, access_of

PLACE = "projects/p/locations/us/apps/Little_App"
FIRST, SECOND, DRAFT = "The first version.", "The second version.", "As it stands."


class Served:
    def __init__(self, url: str, client: ClientSession, model: Any) -> None:
        self.url = url
        self.client = client
        self.model = model

    async def ask(self, session: str, method: str = "runSession", **config: Any) -> tuple[int, Any]:
        body = {"config": config, "inputs": [{"text": "Hello."}]}
        address = f"{self.url}/v1/{PLACE}/sessions/{session}:{method}"
        async with self.client.post(address, json=body) as response:
            return response.status, await response.json()

    async def first_of_socket(self, session: str, **config: Any) -> Any:
        place = "google.cloud.ces.v1.SessionService/BidiRunSession/locations/us"
        async with self.client.ws_connect(f"{self.url}/ws/{place}") as socket:
            await socket.send_json({"config": {"session": f"{PLACE}/sessions/{session}", **config}})
            await socket.send_json({"realtimeInput": {"text": "Hello."}})
            return await socket.receive_json(timeout=20)

    def instruction(self) -> str:
        """What the model was told last."""
        return str(self.model.messages(-1)[0]["content"])


@pytest.fixture
async def served(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """An app as it stands, or its deployment `phone`, with the deployments `phone`, `web-id` and `broken` at hand."""
    phone = deployed(tmp_path, appVersion=f"{APP}/versions/v1")
    root = phone.parent.parent
    more = {
        "web-id": {
            "name": f"{APP}/deployments/0aa5",
            "displayName": "Web",
            "appVersion": f"{APP}/versions/v2",
        },
        "broken": {"appVersion": f"{APP}/versions/v9"},
    }
    for name, data in more.items():
        (root / "deployments" / name).mkdir()
        (root / "deployments" / name / f"{name}.json").write_text(json.dumps(data))
    path = phone if getattr(request, "param", "") == "phone" else root
    model = scripted(*[{"text": "Yes."}] * 8)
    project = load_cx_app(path, model, ProcessPool(cx_runtime(path)))
    app = web.Application(middlewares=[guard(frozenset(), access_of())])
    SessionRoutes(lambda: [project]).register(app)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with ClientSession(headers=HEADERS) as client:
        yield Served(f"http://127.0.0.1:{runner.addresses[0][1]}", client, model)
    await runner.cleanup()
    await project.close()


@pytest.mark.parametrize(
    ("served", "deployment", "version"),
    [
        ("app", "phone", FIRST),
        ("app", "web-id", SECOND),
        ("app", "0aa5", SECOND),
        ("app", "Web", SECOND),
        ("phone", "phone", FIRST),
        ("phone", "web-id", SECOND),
        ("phone", None, FIRST),
        ("app", None, DRAFT),
    ],
    indirect=["served"],
)
async def test_a_session_runs_the_version_of_its_deployment(
    served: Served, deployment: str | None, version: str
) -> None:
    config = {"deployment": f"{PLACE}/deployments/{deployment}"} if deployment else {}
    status, answer = await served.ask("session-1", **config)
    assert (status, answer["outputs"][-1]["turnCompleted"]) == (200, True)
    assert version in served.instruction()


async def test_all_three_ways_in_read_it_and_sessions_of_several_run_side_by_side(served: Served) -> None:
    phone, site = (f"{PLACE}/deployments/{name}" for name in ("phone", "web-id"))
    assert (await served.ask("session-1", deployment=phone))[0] == 200
    assert FIRST in served.instruction()
    assert (await served.ask("session-2", "streamRunSession", deployment=site))[0] == 200
    assert SECOND in served.instruction()
    assert "sessionOutput" in await served.first_of_socket("session-3", deployment=phone)
    assert FIRST in served.instruction()
    assert (await served.ask("session-4"))[0] == 200
    assert DRAFT in served.instruction()


async def test_a_session_keeps_the_deployment_that_it_began_with(served: Served) -> None:
    phone, site = (f"{PLACE}/deployments/{name}" for name in ("phone", "web-id"))
    assert (await served.ask("session-1", deployment=phone))[0] == 200
    assert (await served.ask("session-1"))[0] == 200
    assert FIRST in served.instruction()
    status, answer = await served.ask("session-1", deployment=site)
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert (
        answer["error"]["message"] == f"the session began without the deployment '{site}'; begin a new session for it"
    )


@pytest.mark.parametrize(
    ("deployment", "code", "status", "message"),
    [
        (
            f"{PLACE}/deployments/mobile",
            404,
            "NOT_FOUND",
            "the app 'Little App' has no deployment 'mobile'; it has: broken, phone, web-id",
        ),
        ("mobile", 400, "INVALID_ARGUMENT", "'deployment' should end in apps/APP/deployments/ID"),
        (f"{PLACE}/deployments/../..", 400, "INVALID_ARGUMENT", "'deployment' should end in apps/APP/deployments/ID"),
        (7, 400, "INVALID_ARGUMENT", "'deployment' should end in apps/APP/deployments/ID"),
        (
            f"{PLACE}/deployments/broken",
            400,
            "INVALID_ARGUMENT",
            "the deployment 'broken' has errors; the server's log names them",
        ),
    ],
)
async def test_one_that_cannot_be_run_is_an_error_of_the_api(
    served: Served, deployment: Any, code: int, status: str, message: str
) -> None:
    for method in ("runSession", "streamRunSession"):
        answered, answer = await served.ask("session-1", method, deployment=deployment)
        assert answered == answer["error"]["code"] == code
        assert answer["error"]["status"] == status
        assert answer["error"]["message"] == message
    told = await served.first_of_socket("session-1", deployment=deployment)
    assert (told["error"]["code"], told["error"]["status"]) == (code, status)
    assert told["error"]["message"] == message
    assert (await served.ask("session-1"))[0] == 200
