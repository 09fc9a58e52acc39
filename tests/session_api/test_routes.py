"""The Session API: an app's agent as text over REST and WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, web

from callagent.agents.cx import CxProject, cx_runtime, load_cx_app
from callagent.models import Delta
from callagent.session_api.routes import SessionRoutes
from callagent.testing.in_process import InProcessPool
from callagent.web.access import guard
from tests.agents.cx.support import GREETING, write_app
from tests.agents.flows.support import scripted
from tests.web.entry import HEADERS, access_of

SESSION = "projects/p/locations/us/apps/Little_App/sessions/session-1"
CLIENT_TOOL = {
    "displayName": "show_map",
    "clientFunction": {
        "name": "show_map",
        "description": "Show a map.",
        "parameters": {"type": "OBJECT", "properties": {"town": {"type": "STRING"}}},
    },
}
NOTE = """
    def note(word: str) -> dict:
        set_variable("noted", word)
        return {"noted": word, "before": get_variable("before")}
"""


def write(root: Path) -> Path:
    return write_app(
        root,
        callbacks={"before_model": GREETING},
        tools={"note": NOTE},
        agent={"tools": ["note", "show_map", "end_session"]},
        more={"tools/show_map/show_map.json": json.dumps(CLIENT_TOOL)},
    )


class Served:
    def __init__(self, project: CxProject, url: str, client: ClientSession) -> None:
        self.project = project
        self.url = url
        self.client = client

    async def ask(self, *inputs: dict[str, Any], method: str = "runSession", status: int = 200) -> Any:
        body = {"config": {"session": SESSION}, "inputs": list(inputs)}
        async with self.client.post(f"{self.url}/v1/{SESSION}:{method}", json=body) as response:
            assert response.status == status, await response.text()
            return await response.json()

    def socket(self) -> Any:
        place = "google.cloud.ces.v1.SessionService/BidiRunSession/locations/us"
        return self.client.ws_connect(f"{self.url}/ws/{place}")


@pytest.fixture
async def served(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    app_path = write(tmp_path)
    model: Any = request.param if not isinstance(request.param, list) else scripted(*request.param)
    project = load_cx_app(app_path, model, InProcessPool(cx_runtime(app_path)))
    app = web.Application(middlewares=[guard(frozenset(), access_of())])
    SessionRoutes(lambda: [project]).register(app)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with ClientSession(headers=HEADERS) as client:
        yield Served(project, f"http://127.0.0.1:{runner.addresses[0][1]}", client)
    await runner.cleanup()
    await project.close()


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


@pytest.mark.parametrize(
    "served",
    [[calls("note", word="sea"), {"text": "Noted. Anything else?"},
      {"text": "Bye.", "calls": [{"name": "end_session", "arguments": {"reason": "done", "params": {"k": "v"}}}]}]],
    indirect=True,
)  # fmt: skip
async def test_a_session_is_run_to_its_end(served: Served) -> None:
    greeting = (await served.ask({"event": {"event": "session_start"}}))["outputs"]
    assert [(each["text"], each["turnCompleted"]) for each in greeting] == [("Hello.", True)]

    outputs = await served.ask({"variables": {"before": 7}}, {"text": "No", "willContinue": True}, {"text": "te it."})
    (noted,) = outputs["outputs"]
    assert noted["text"] == "Noted. Anything else?"
    called, answered = noted["diagnosticInfo"]["messages"][0]["chunks"]
    assert called["toolCall"] == {"id": "1", "displayName": "note", "args": {"word": "sea"}}
    assert answered["toolResponse"]["response"] == {"noted": "sea", "before": 7}

    said, ended = (await served.ask({"text": "That is all."}))["outputs"]
    assert said == {"text": "Bye.", "turnIndex": 3}
    assert "text" not in ended
    assert ended["endSession"]["metadata"] == {"k": "v", "reason": "done", "session_escalated": False}
    refused = await served.ask({"text": "Hello?"}, status=400)
    assert refused["error"]["message"] == "the session has ended"


@pytest.mark.parametrize("served", [[{"text": "One. Two. Three."}]], indirect=True)
async def test_a_streamed_turn_comes_in_pieces(served: Served) -> None:
    messages = await served.ask({"text": "Count."}, method="streamRunSession")
    outputs = [output for message in messages for output in message["outputs"]]
    assert [output.get("text") for output in outputs] == ["One.", "Two.", "Three.", None]
    assert [bool(output.get("turnCompleted")) for output in outputs] == [False, False, False, True]


@pytest.mark.parametrize("served", [[calls("show_map", town="Bonn"), {"text": "It is on your screen."}]], indirect=True)
async def test_a_client_carries_its_functions_out(served: Served) -> None:
    (asked,) = (await served.ask({"text": "Where is Bonn?"}))["outputs"]
    (call,) = asked["toolCalls"]["toolCalls"]
    assert (call["displayName"], call["args"]) == ("show_map", {"town": "Bonn"})
    answer = {"id": call["id"], "displayName": "show_map", "response": {"shown": True}}
    (told,) = (await served.ask({"toolResponses": {"toolResponses": [answer]}}))["outputs"]
    assert told["text"] == "It is on your screen."


@pytest.mark.parametrize("served", [[{"text": "One moment.", **calls("show_map", town="Bonn")}]], indirect=True)
async def test_each_output_is_of_one_kind(served: Served) -> None:
    said, asked = (await served.ask({"text": "Where is Bonn?"}))["outputs"]
    assert said == {"text": "One moment.", "turnIndex": 1}
    assert asked.keys() == {"toolCalls", "turnIndex", "turnCompleted", "diagnosticInfo"}


@pytest.mark.parametrize("served", [[{"text": "Hm."}]], indirect=True)
async def test_what_is_no_input_is_refused(served: Served) -> None:
    assert "has one of text" in (await served.ask({"image": {}}, status=400))["error"]["message"]
    async with served.client.post(
        f"{served.url}/v1/{SESSION.replace('session-1', '-')}:runSession", json={}
    ) as response:
        assert response.status == 400
    async with served.client.post(
        f"{served.url}/v1/{SESSION}:runSession", json={}, headers={"Authorization": "Bearer wrong"}
    ) as response:
        assert response.status in (401, 403)


class SlowModel:
    """Says a sentence and then waits until it is interrupted."""

    def __init__(self) -> None:
        self.asked = 0

    async def stream(self, messages: Any, tools: Any, settings: Any) -> AsyncIterator[Delta]:
        self.asked += 1
        yield Delta(text="First of all. ")
        if self.asked == 1:
            await asyncio.sleep(60)
        yield Delta(text="That was it.")

    async def close(self) -> None:
        pass


async def received(socket: ClientWebSocketResponse) -> Any:
    async with asyncio.timeout(60):
        return await socket.receive_json()


@pytest.mark.parametrize("served", [SlowModel()], indirect=True)
async def test_a_socket_is_answered_and_interrupts(served: Served) -> None:
    async with served.socket() as socket:
        await socket.send_json({"config": {"session": SESSION}})
        await socket.send_json({"realtimeInput": {"event": {"event": "session_start"}}})
        assert (await received(socket))["sessionOutput"]["text"] == "Hello."
        assert (await received(socket))["sessionOutput"]["turnCompleted"]
        await socket.send_json({"realtimeInput": {"text": "Tell me all."}})
        assert (await received(socket))["sessionOutput"]["text"] == "First of all."
        await socket.send_json({"realtimeInput": {"text": "Shorter, please."}})
        assert await received(socket) == {"interruptionSignal": {"bargeIn": True}}
        texts = [(await received(socket))["sessionOutput"].get("text") for _ in range(3)]
        assert texts == ["First of all.", "That was it.", None]


@pytest.mark.parametrize(
    ("served", "method"), [(SlowModel(), "runSession"), (SlowModel(), "streamRunSession")], indirect=["served"]
)
async def test_a_turn_that_takes_too_long_is_an_error_of_the_api(
    served: Served, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callagent.session_api.sessions.TURN_SECONDS", 1.0)
    # What has begun to stream has its status already.
    streams = method == "streamRunSession"
    answer = await served.ask({"text": "Tell me all."}, method=method, status=200 if streams else 504)
    error = answer[-1]["error"] if streams else answer["error"]
    assert error == {"code": 504, "message": "the turn took too long", "status": "DEADLINE_EXCEEDED"}


@pytest.mark.parametrize("served", [[calls("end_session", reason="done", session_escalated=True)]], indirect=True)
async def test_a_socket_hears_of_the_end(served: Served) -> None:
    async with served.socket() as socket:
        await socket.send_json({"config": {"session": SESSION}})
        await socket.send_json({"realtimeInput": {"text": "A person!"}})
        assert (await received(socket))["sessionOutput"]["turnCompleted"]
        assert (await received(socket))["endSession"]["metadata"]["session_escalated"] is True


@pytest.mark.parametrize("served", [[{"text": "Hm."}]], indirect=True)
async def test_a_socket_without_a_session_is_refused(served: Served) -> None:
    async with served.socket() as socket:
        await socket.send_json({"realtimeInput": {"text": "Hello?"}})
        assert "session" in (await received(socket))["error"]["message"]
