"""Sessions with audio, in one process: a real call with scripted ears and voice behind the WebSocket."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, web

from callagent.agents import AgentProject
from callagent.agents.cx import CxProject, cx_runtime, load_cx_app
from callagent.call import Call, CallServices, CallSettings
from callagent.call_info import EndReason
from callagent.errors import ProviderError
from callagent.legs.leg import CallLeg
from callagent.session_api.routes import SessionRoutes
from callagent.speech.scripted import ScriptedRecognizer, ScriptedVoice, VoiceScript
from callagent.testing.in_process import InProcessPool
from callagent.turns import CallerInput, TurnEvent, TurnManager, TurnSettings
from callagent.web.access import guard
from callagent.web.app import ServerHooks
from tests.agents.flows.support import scripted
from tests.call.test_call import MemoryStore
from tests.fakes import LoudnessActivity
from tests.session_api.test_routes import SESSION, calls, write
from tests.web.entry import HEADERS, access_of

FORM = {"audioEncoding": "LINEAR16", "sampleRateHertz": 8000}
CONFIG = {"session": SESSION, "inputAudioConfig": FORM, "outputAudioConfig": FORM}
START = {"event": {"event": "session_start"}}
LOUD = base64.b64encode(b"\x40\x1f" * 1600).decode()
QUIET = base64.b64encode(bytes(3200)).decode()
"""A fifth of a second each."""


class Served:
    """The routes, and the server's part of a call."""

    def __init__(self, project: CxProject, client: ClientSession) -> None:
        self.project = project
        self.client = client
        self.url = ""
        self.heard: list[str] = []
        self.admits = True
        self.drains = False
        self.store = MemoryStore()
        self.calls: list[Call] = []
        hooks = ServerHooks(
            lambda leg: None,
            lambda: self.admits,
            lambda: self.drains,
            lambda: "",
            hold_session=self.hold,
            utterances=self,
        )
        self.routes = SessionRoutes(lambda: [project], hooks)

    def hold(self, leg: CallLeg, project: AgentProject, watcher: Callable[[TurnEvent], None]) -> asyncio.Task[None]:
        def make_turn_manager(emit: Any) -> TurnManager:
            def tell(event: TurnEvent) -> None:
                watcher(event)
                emit(event)

            ears = CallerInput(ScriptedRecognizer(list(self.heard)), LoudnessActivity())
            voice = ScriptedVoice(VoiceScript(seconds_per_character=0.01))
            return TurnManager(ears, voice, tell, TurnSettings(endpointing=0.2))

        services = CallServices(self.store, lambda handoff: pytest.fail("nobody is called"))  # type: ignore[arg-type]
        call = Call(leg, project, make_turn_manager, services, CallSettings())
        self.calls.append(call)

        async def run() -> None:
            await call.run()

        return asyncio.create_task(run())

    async def recognise(self, pcm: bytes) -> str:
        if not self.heard:
            raise ProviderError("nobody listens")
        return f"{self.heard.pop(0)} {len(pcm) / 16000:.1f}"

    async def speak(self, project: AgentProject, text: str) -> bytes:
        assert project is self.project
        return bytes(160 * len(text))

    async def ask(self, *inputs: dict[str, Any], **config: Any) -> Any:
        body = {"config": {"session": SESSION, **config}, "inputs": list(inputs)}
        async with self.client.post(f"{self.url}/v1/{SESSION}:runSession", json=body) as response:
            answer = await response.json()
            return answer["outputs"] if response.status == 200 else answer["error"]["message"]

    @asynccontextmanager
    async def socket(self, config: dict[str, Any] | None = None) -> AsyncIterator[ClientWebSocketResponse]:
        place = "google.cloud.ces.v1.SessionService/BidiRunSession/locations/us"
        async with self.client.ws_connect(f"{self.url}/ws/{place}") as socket:
            await socket.send_json({"config": config or CONFIG})
            yield socket


@pytest.fixture
async def served(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    path = write(tmp_path)
    project = load_cx_app(path, scripted(*getattr(request, "param", [])), InProcessPool(cx_runtime(path)))
    async with ClientSession(headers=HEADERS) as client:
        served = Served(project, client)
        app = web.Application(middlewares=[guard(frozenset(), access_of())])
        served.routes.register(app)
        runner = web.AppRunner(app, shutdown_timeout=2.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield served
        await runner.cleanup()
    await project.close()


async def give(socket: ClientWebSocketResponse, **given: Any) -> None:
    await socket.send_json({"realtimeInput": given})


async def messages(socket: ClientWebSocketResponse, until: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
    """What comes, to the first of that kind, or to the end of the socket; audio by its length."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        async for message in socket:
            found.append(json.loads(message.data))
            if until(found[-1]):
                break
    return found


def turn(number: int) -> Callable[[dict[str, Any]], object]:
    def completed(message: dict[str, Any]) -> object:
        output = message.get("sessionOutput", {})
        return output.get("turnCompleted") and output["turnIndex"] == number

    return completed


def texts(found: list[dict[str, Any]]) -> list[str]:
    return [message["sessionOutput"]["text"] for message in found if "text" in message.get("sessionOutput", {})]


async def after_the_call(served: Served, given: dict[str, Any]) -> Any:
    async with asyncio.timeout(60):
        while (answer := await served.ask(given)) == "the session is in a call":
            await asyncio.sleep(0.02)
    return answer


async def error(socket: ClientWebSocketResponse) -> str:
    return str((await messages(socket, lambda message: "error" in message))[-1]["error"]["message"])


@pytest.mark.parametrize("served", [[calls("show_map", town="Bonn"), {"text": "It is on your screen."}]], indirect=True)
async def test_a_client_that_speaks_carries_its_functions_out(served: Served) -> None:
    async with served.socket() as socket:
        await give(socket, **START)
        assert texts(await messages(socket, turn(1))) == ["Hello."]
        await give(socket, text="Where is Bonn?")
        asked = await messages(socket, turn(2))
        (call,) = next(
            message["sessionOutput"]["toolCalls"]["toolCalls"]
            for message in asked
            if "toolCalls" in message.get("sessionOutput", {})
        )
        assert (call["displayName"], call["args"]) == ("show_map", {"town": "Bonn"})
        answer = {"id": call["id"], "displayName": "show_map", "response": {"shown": True}}
        await give(socket, toolResponses={"toolResponses": [answer]})
        told = await messages(socket, turn(3))
        assert texts(told) == ["It is on your screen."]
        whole = told[-1]["sessionOutput"]["diagnosticInfo"]["rootSpan"]
        assert [each["name"] for each in whole["childSpans"]][-1] == "model"
        audio = b"".join(base64.b64decode(one["sessionOutput"].get("audio", "")) for one in told)
        assert len(audio) / 16000 == pytest.approx(0.21, abs=0.06)


@pytest.mark.parametrize("served", [[{"text": "You spoke."}, {"text": "You wrote."}]], indirect=True)
async def test_a_session_goes_on_as_text_after_its_call_and_not_during_it(served: Served) -> None:
    served.heard = ["Some words."]
    async with served.socket() as socket:
        await give(socket, **START)
        await messages(socket, turn(1))
        await give(socket, variables={"before": 7})
        # All at once, and then nothing: who sends nothing is silent.
        for payload in (QUIET, *[LOUD] * 4, QUIET):
            await give(socket, audio=payload)
        found = await messages(socket, turn(2))
        assert {"recognitionResult": {"transcript": "Some words."}} in found
        assert texts(found) == ["You spoke."]
        assert await served.ask({"text": "And I write."}) == "the session is in a call"
        async with served.socket() as second:
            assert await error(second) == "the session is in a call"
    (written,) = await after_the_call(served, {"text": "And I write."})
    assert (written["text"], written["turnIndex"]) == ("You wrote.", 3)
    (record,) = served.store.records
    assert (record.wire, record.end_reason) == ("session", "caller_hangup")
    assert [entry.user_input for entry in record.turns][1:] == ["<event>session start</event>", "Some words."]


@pytest.mark.parametrize(
    "served", [[{"text": "Bye.", "calls": calls("end_session", reason="done")["calls"]}]], indirect=True
)
async def test_the_agent_ends_the_session_after_its_last_words(served: Served) -> None:
    async with served.socket() as socket:
        await give(socket, text="That ", willContinue=True)
        await give(socket, text="is all.")
        found = await messages(socket, lambda message: False)
    assert texts(found)[-1] == "Bye."
    assert found[-1] == {"endSession": {"metadata": {"reason": "done", "session_escalated": False}}}
    assert turn(found[-2]["sessionOutput"]["turnIndex"])(found[-2])
    async with served.socket() as again:
        assert await error(again) == "the session has ended"


async def test_a_client_is_told_that_the_server_goes_away(served: Served) -> None:
    async with served.socket() as socket:
        await give(socket, **START)
        await messages(socket, turn(1))
        served.calls[0].end(EndReason.DRAIN)
        assert (await messages(socket, lambda message: False))[-1] == {"goAway": {}}


@pytest.mark.parametrize(
    ("form", "part"),
    [({"audioEncoding": "OPUS", "sampleRateHertz": 8000}, "LINEAR16, MULAW, ALAW"),
     ({"audioEncoding": "MULAW", "sampleRateHertz": 44100}, "8000, 16000, 24000"), ("MULAW", "should be an object")],
)  # fmt: skip
async def test_audio_of_another_form_is_refused(served: Served, form: Any, part: str) -> None:
    async with served.socket({**CONFIG, "inputAudioConfig": form}) as socket:
        assert part in await error(socket)
    assert served.calls == []
    # The session is free again.
    async with served.socket() as socket:
        await give(socket, **START)
        await messages(socket, turn(1))


@pytest.mark.parametrize(
    ("given", "part"),
    [({"audio": "?"}, "not base64"), ({"audio": 7}, "should be base64"), ({"image": {}}, "has one of"),
     ({"text": "x" * 70_000}, "more than 65536")],
)  # fmt: skip
async def test_an_input_that_cannot_be_taken_ends_the_call_and_says_why(
    served: Served, given: dict[str, Any], part: str
) -> None:
    async with served.socket() as socket:
        await give(socket, **given)
        assert part in await error(socket)
        assert await messages(socket, lambda message: False) == []
    (greeting,) = await after_the_call(served, START)
    assert greeting["text"] == "Hello."


async def test_a_call_that_is_ended_from_outside_ends_its_session(served: Served) -> None:
    async with served.socket() as socket:
        await give(socket, **START)
        await messages(socket, turn(1))
        served.calls[0].end(EndReason.MAX_DURATION)
        *_, last = await messages(socket, lambda message: False)
    assert last == {"endSession": {"metadata": {"reason": "max_duration"}}}
    assert "the session has ended" in await after_the_call(served, {"text": "Hello?"})


async def test_audio_that_is_a_minute_early_is_not_kept(served: Served) -> None:
    async with served.socket() as socket:
        for _ in range(80):
            await give(socket, audio=base64.b64encode(b"\x40\x1f" * 8000).decode())
        assert "ahead of its time" in await error(socket)


async def test_calls_that_do_not_fit_are_not_taken(served: Served) -> None:
    served.admits = False
    async with served.socket() as socket:
        assert await error(socket) == "the server takes no more calls now; try again later"
    served.admits, served.drains = True, True
    async with served.socket() as socket:
        assert await error(socket) == "the server takes no more calls now; try again later"
    (greeting,) = await served.ask(START)
    assert greeting["text"] == "Hello."


@pytest.mark.parametrize("served", [[{"text": "You said two things. Both."}, {"text": "Written."}]], indirect=True)
async def test_a_request_with_audio_is_answered_with_audio(served: Served) -> None:
    served.heard = ["This and that."]
    form = {"audioEncoding": "MULAW", "sampleRateHertz": 16000}
    half = base64.b64encode(bytes([255]) * 8000).decode()
    outputs = await served.ask({"audio": half}, {"audio": half}, inputAudioConfig=form, outputAudioConfig=form)
    *spoken, last = outputs
    assert (last["text"], last["turnCompleted"], last["turnIndex"]) == ("You said two things. Both.", True, 1)
    whole = last["diagnosticInfo"]["rootSpan"]
    assert (whole["attributes"], "model" in [each["name"] for each in whole["childSpans"]]) == ({"turnIndex": 1}, True)
    # A sample of 8 kHz is two of 16 kHz, a byte each.
    lengths = [len(base64.b64decode(one["audio"])) for one in spoken]
    assert lengths == pytest.approx([160 * 20, 160 * 5], abs=2)
    agent = (await served.routes._table.open_session({"session": SESSION})).session.agent
    assert agent.conversation.events[0].content["parts"] == [{"text": "This and that. 1.0"}]
    # Nobody listens any more, and a text needs nobody who does.
    assert "nobody listens" in await served.ask({"audio": half}, input_audio_config=form)
    (written,) = await served.ask({"text": "In writing."})
    assert written["text"] == "Written."


@pytest.mark.parametrize(
    ("inputs", "config", "part"),
    [([{"audio": "AAAA"}], {}, "needs 'inputAudioConfig'"), ([{"audio": 1}], {"inputAudioConfig": FORM}, "base64"),
     ([], {"outputAudioConfig": {"audioEncoding": "MP3"}}, "LINEAR16")],
)  # fmt: skip
async def test_a_request_with_audio_that_cannot_be_taken(
    served: Served, inputs: list[dict[str, Any]], config: dict[str, Any], part: str
) -> None:
    assert part in await served.ask(*inputs, **config)


async def test_a_request_has_a_minute_of_audio_at_most(served: Served) -> None:
    body = io.BytesIO(b'{"config": "' + b" " * 4 * 1024 * 1024 + b'"}')
    async with served.client.post(f"{served.url}/v1/{SESSION}:runSession", data=body) as response:
        assert response.status == 413
