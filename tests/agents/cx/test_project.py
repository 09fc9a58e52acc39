"""A whole app: its agents, rules, guardrails and toolsets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from callagent.agents import Handoff, StepEntered
from tests.agents.cx.support import DESK, driven
from tests.agents.driving import results, words

TRANSFER = "transfer_to_agent"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


async def test_the_caller_is_greeted_by_the_app() -> None:
    async with driven(DESK) as agent:
        actions = await agent.start()
        assert words(actions) == ["City utilities, hello."]
        assert StepEntered("front_desk", "front_desk") in actions


async def test_the_model_is_offered_tools_operations_and_agents() -> None:
    async with driven(DESK, {"text": "Yes?"}) as agent:
        await agent.says("Hello.")
        assert agent.model.tools() == [TRANSFER, "read_meter", "end_session", "weather_forecast", "weather_report"]
        offered = {tool["function"]["name"]: tool["function"] for tool in agent.model.requests[0][1]}
        assert offered["read_meter"]["description"] == "Read a meter."
        assert offered["read_meter"]["parameters"] == {
            "type": "object",
            "properties": {
                "number": {"type": "string", "description": "What stands on the meter."},
                "kind": {
                    "type": "string",
                    "enum": ["water", "power"],
                    "description": "What it counts, water or power.",
                },
                "_note": {"type": "string"},
            },
            "required": ["number"],
        }
        assert offered["weather_forecast"]["parameters"]["properties"] == {
            "town": {"type": "string"},
            "days": {"type": "integer", "description": "How many."},
        }
        assert list(offered["weather_report"]["parameters"]["properties"]) == ["text"]
        assert agent.model.system().startswith(
            "You speak for the city's utilities.\n\nFind out what it is about. billing "
        )


async def test_an_agent_is_named_as_it_is_displayed_or_by_its_folder() -> None:
    async with driven(DESK, call(TRANSFER, agent_name="Billing"), {"text": "Which bill?"}) as agent:
        assert words(await agent.says("My bill.")) == ["Which bill?"]
        assert agent.state["seen_by"] == "Billing"
        assert agent.agent.record().step == "billing"


async def test_a_callback_hands_the_conversation_over() -> None:
    async with driven(DESK, {"text": "Which bill?"}) as agent:
        assert words(await agent.says("Send me to the sister.")) == ["Which bill?"]


async def test_a_sister_and_a_closed_agent_are_refused_and_the_model_is_told() -> None:
    entries: list[dict[str, Any]] = [
        call(TRANSFER, agent_name="repairs"),
        call(TRANSFER, agent_name="billing"),
        call(TRANSFER, agent_name="repairs"),
        {"text": "That is not for me."},
    ]
    async with driven(DESK, *entries) as agent:
        actions = await agent.says("Mend it.")
        assert words(actions) == ["That is not for me."]
        answers = [json.loads(each["content"]) for each in agent.model.messages() if each["role"] == "tool"]
        assert answers[-1]["error"] == "The conversation cannot go to 'repairs'. It can go to: ['front_desk']."


async def test_a_rule_that_holds_moves_the_conversation_without_the_model() -> None:
    async with driven(DESK, {"text": "You are late."}, variables={"late": True}) as agent:
        actions = await agent.says("Hello.")
        assert words(actions) == ["You are late."]
        assert len(agent.model.requests) == 1
        assert agent.agent.record().step == "billing"


async def test_the_caller_wants_a_person() -> None:
    async with driven(DESK) as agent:
        actions = await agent.says("A person, please.")
        assert words(actions) == ["I put you through."]
        headers = {"X-Topic": "bill", "User-to-User": "6b313d7631;encoding=hex;purpose=Goog-Session-Param"}
        assert actions[-1] == Handoff("live_agent", "person", "bye", None, headers)


async def test_banned_words_of_the_caller_never_reach_the_model() -> None:
    async with driven(DESK) as agent:
        assert words(await agent.says("So ein Blodsinn!")) == ["Let us stay polite."]
        assert agent.model.requests == []


async def test_banned_words_of_the_model_are_not_said() -> None:
    async with driven(DESK, {"text": "Ask our competitor."}, {"text": "Uncompetitoresque."}) as agent:
        assert words(await agent.says("Who is cheaper?")) == ["Let us stay polite."]
        assert words(await agent.says("Who is cheaper?")) == ["Uncompetitoresque."]


class _Weather(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.asked.append({"path": self.path, "session": self.headers["X-Session"], "body": body})
        found = "nowhere" not in self.path
        text = json.dumps({"sky": "blue"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the test's output."""


@pytest.fixture
def weather_app(tmp_path: Path) -> Iterator[Path]:
    """The app with its toolset's server at a port of ours."""
    import shutil

    _Weather.asked = []
    server = HTTPServer(("127.0.0.1", 0), _Weather)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    app = tmp_path / "desk"
    shutil.copytree(DESK, app)
    schema = app / "toolsets/weather/open_api_toolset/open_api_schema.yaml"
    schema.write_text(schema.read_text().replace("127.0.0.1:9", f"127.0.0.1:{server.server_address[1]}"))
    yield app
    server.shutdown()
    server.server_close()
    thread.join()


async def test_an_operation_of_a_toolset_is_a_request_with_the_calls_own_values(weather_app: Path) -> None:
    entries: list[dict[str, Any]] = [
        call("weather_forecast", town="Bad Ems", days=2),
        call("weather_report", text="wet"),
        call("weather_forecast", town="nowhere"),
        {"text": "Blue."},
    ]
    async with driven(weather_app, *entries, variables={"meter": "77"}) as agent:
        actions = await agent.says("Weather?")
        assert _Weather.asked[0] == {"path": "/towns/Bad%20Ems?days=2", "session": "call-1", "body": None}
        assert _Weather.asked[1]["body"] == {"text": "wet", "meter": "77"}
        assert results(actions)["weather_report"] == {"sky": "blue"}
        assert results(actions)["weather_forecast"]["error"].startswith("StatusError: 404")
