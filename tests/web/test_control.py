"""Live control, dialling and real-time configuration, over the API."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from callagent.agents.flows import FlowProject, load_project
from callagent.server.outbound import TargetRefused
from callagent.web.control import Controls, DialRequest
from tests.web.dashboard_server import Served, live_call, serve_dashboard
from tests.web.entry import HEADERS

ROOT = Path(__file__).parents[2]


class LoadedProject(FlowProject):
    """A project as the API sees it, without workers."""

    def __init__(self, path: Path) -> None:
        self.project = load_project(path)[0]
        self.name = "parcels"


async def post(served: Served, path: str, body: Any = None, method: str = "POST", **kwargs: Any) -> tuple[int, Any]:
    if body is not None:
        kwargs["json"] = body
    async with (
        aiohttp.ClientSession(headers=HEADERS) as session,
        session.request(method, served.url + path, **kwargs) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text


# Take over ---------------------------------------------------------------------------------------------------------


async def test_a_call_is_taken_over_to_a_named_target(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1, controls=Controls(["support"])) as served:
        call = served.calls["live1"] = live_call()
        assert await post(served, "/api/targets", method="GET") == (200, {"targets": ["support"], "numbers": False})
        assert (await post(served, "/api/calls/live1/takeover", {"target": "support"}))[0] == 202
        (handoff,) = call.taken_over
        assert (handoff.destination, handoff.number, handoff.method) == ("support", None, "refer")
        assert (await post(served, "/api/calls/other/takeover", {"target": "support"}))[0] == 404


async def test_a_recording_is_paused_resumed_and_discarded(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1) as served:
        call = served.calls["live1"] = live_call()
        for wish in ("pause", "resume", "discard"):
            answer = await post(served, "/api/calls/live1/recording", {"wish": wish})
            assert answer == (202, {"recording": wish})
        assert call.wishes == ["pause", "resume", "discard"]
        assert (await post(served, "/api/calls/live1/recording", {"wish": "keep"}))[0] == 400
        assert (await post(served, "/api/calls/other/recording", {"wish": "pause"}))[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {}, {"target": "a", "number": "+441632960000"}, {"number": "sip:root@internal"}, {"number": "+1900"}, [], "x",
        {"number": "+44\r\nX: y"}, {"target": "x" * 65}, {"target": 1}, {"target": "a", "more": 1}, None,
    ],
)  # fmt: skip
async def test_a_wrong_take_over_is_refused(tmp_path: Path, body: Any) -> None:
    async with serve_dashboard(tmp_path, count=1) as served:
        call = served.calls["live1"] = live_call()
        assert (await post(served, "/api/calls/live1/takeover", body))[0] in (400, 415)
        assert call.taken_over == []


# Listening in -------------------------------------------------------------------------------------------------------


async def test_a_listener_hears_both_sides_and_leaves(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1) as served, aiohttp.ClientSession(headers=HEADERS) as session:
        call = served.calls["live1"] = live_call()
        async with session.ws_connect(served.url + "/api/live/live1/audio") as listener:
            while not call.taps:
                await asyncio.sleep(0.01)
            call.taps[0].caller.append(b"\x00\x40" * 160)
            message = await asyncio.wait_for(listener.receive_bytes(), 60)
            assert len(message) == 320
            assert set(message[160:]) == {0xFF}
            assert 0xFF not in message[:160]
        while call.taps:
            await asyncio.sleep(0.01)
        async with session.ws_connect(served.url + "/api/live/live1/audio") as listener:
            del served.calls["live1"]
            assert (await asyncio.wait_for(listener.receive(), 60)).type is aiohttp.WSMsgType.CLOSE


async def test_nobody_listens_before_the_answer_or_without_a_socket(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1) as served, aiohttp.ClientSession(headers=HEADERS) as session:
        call = served.calls["live1"] = live_call()
        assert (await post(served, "/api/live/live1/audio", method="GET"))[0] == 400
        call.answered = False
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(served.url + "/api/live/live1/audio")
        assert refused.value.status == 409
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(served.url + "/api/live/live1/audio", origin="https://evil.example")
        assert refused.value.status == 403


# Dialling -----------------------------------------------------------------------------------------------------------


async def test_a_call_is_placed(tmp_path: Path) -> None:
    asked: list[DialRequest] = []

    async def dial(one: DialRequest) -> str:
        asked.append(one)
        return "c42"

    async with serve_dashboard(tmp_path, count=1, controls=Controls(dial=dial)) as served:
        body = {"to_number": "+441632960000", "metadata": {"X-Order": "84276"}}
        assert await post(served, "/api/calls", body) == (202, {"id": "c42", "status": "calling"})
        assert asked[0].metadata == {"X-Order": "84276"}
        for wrong in (
            {"to_number": "0044"}, {"to_number": "sip:a@b"}, {"metadata": {"X\r\n": "y"}},
            {"metadata": {"X": "y\nz"}}, {"from_number": "a"}, {"metadata": {f"X{n}": "" for n in range(21)}},
        ):  # fmt: skip
            assert (await post(served, "/api/calls", {"target": "support", **wrong}))[0] == 400
        assert len(asked) == 1


async def test_what_the_settings_refuse_is_a_conflict(tmp_path: Path) -> None:
    async def dial(one: DialRequest) -> str:
        raise TargetRefused("not a configured target")

    async with serve_dashboard(tmp_path, count=1, controls=Controls(dial=dial)) as served:
        assert await post(served, "/api/calls", {"target": "x"}) == (409, "not a configured target")
    async with serve_dashboard(tmp_path / "2", count=1, controls=Controls(dial=dial, admit=lambda: False)) as served:
        assert (await post(served, "/api/calls", {"target": "x"}))[0] == 503
    async with serve_dashboard(tmp_path / "3", count=1) as served:
        assert (await post(served, "/api/calls", {"target": "x"}))[0] == 409


# Real-time configuration --------------------------------------------------------------------------------------------

CONFIG = "/api/projects/parcels/real-time-configs/sandbox"


def copied_project(folder: Path) -> LoadedProject:
    """The example agent in a folder that may be written."""
    for part in ("agent_settings", "config", "flows", "functions", "topics", "voice", "test_suite"):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part)
    shutil.copy(ROOT / "project.yaml", folder)
    return LoadedProject(folder)


@pytest.fixture
def project(tmp_path: Path) -> LoadedProject:
    return copied_project(tmp_path / "project")


async def test_configuration_is_read_replaced_and_changed(tmp_path: Path, project: LoadedProject) -> None:
    async with serve_dashboard(tmp_path, count=1, projects=[project]) as served:
        assert await post(served, CONFIG, method="GET") == (200, {})
        assert (await post(served, CONFIG, {"open": True, "note": "é"}, "PUT"))[0] == 200
        changed = {"note": "é", "hours": "9–5"}
        assert await post(served, CONFIG, {"open": None, "hours": "9–5"}, "PATCH") == (200, changed)
        folder = project.project.path / "real_time_configuration" / "draft_and_sandbox"
        assert json.loads((folder / "data.json").read_text()) == changed
        assert [one.name for one in folder.iterdir()] == ["data.json"]
        assert (await post(served, CONFIG.replace("sandbox", "moon"), method="GET"))[0] == 404
        assert (await post(served, CONFIG.replace("parcels", "other"), {}, "PUT"))[0] == 404


async def test_configuration_has_to_fit_its_schema(tmp_path: Path, project: LoadedProject) -> None:
    folder = project.project.path / "real_time_configuration" / "draft_and_sandbox"
    folder.mkdir(parents=True)
    schema = {"type": "object", "properties": {"open": {"type": "boolean"}}, "additionalProperties": False}
    (folder / "schema.json").write_text(json.dumps(schema))
    async with serve_dashboard(tmp_path, count=1, projects=[project]) as served:
        assert await post(served, CONFIG + "/schema", method="GET") == (200, schema)
        assert (await post(served, CONFIG, {"open": True}, "PUT"))[0] == 200
        for wrong in ({"open": "yes"}, {"shut": 1}, [], "x", 7):
            assert (await post(served, CONFIG, wrong, "PUT"))[0] == 400
        assert (await post(served, CONFIG, method="PUT", data="{"))[0] == 415
        headers = {"Content-Type": "application/json"}
        for broken in ("{", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 30_000):
            assert (await post(served, CONFIG, method="PUT", data=broken, headers=headers))[0] == 400
        assert await post(served, CONFIG, method="GET") == (200, {"open": True})
        (folder / "schema.json").write_text('{"$ref": "http://127.0.0.1:9/never-fetched"}')
        assert (await post(served, CONFIG, {"open": True}, "PUT"))[0] == 409
