from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from callagent.call_info import EndReason
from callagent.records import CallRecord
from callagent.web.api import make_description
from tests.web.dashboard_server import Served, live_call, serve_dashboard
from tests.web.entry import HEADERS

HOSTILE = "<script>alert(1)</script>\x1b[31m'; DROP TABLE calls; --=cmd|' /C calc'!A0"


async def ask(served: Served, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(headers=HEADERS) as session,
        session.request(method, served.url + path, headers=headers) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text


async def test_calls_are_listed_a_page_at_a_time(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path) as served:
        status, page = await ask(served, "/api/calls?limit=20")
        assert status == 200
        assert page["total"] == 30
        assert len(page["calls"]) == 20
        _, rest = await ask(served, f"/api/calls?limit=20&cursor={page['next_cursor']}")
        assert [call["id"] for call in page["calls"] + rest["calls"]] == [one.id for one in reversed(served.records)]
        assert rest["next_cursor"] == ""


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=501", "handoff=maybe", "cursor=%21", "limit=²"])
async def test_a_wrong_parameter_is_refused(tmp_path: Path, query: str) -> None:
    async with serve_dashboard(tmp_path, count=1) as served:
        assert (await ask(served, f"/api/calls?{query}"))[0] == 400


async def test_a_call_comes_with_turns_and_metrics(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=3) as served:
        status, call = await ask(served, f"/api/calls/{served.records[0].id}")
        assert status == 200
        assert call["turns"][1]["user_input"] == served.records[0].turns[1].user_input
        assert [(one["name"], one["value"]) for one in call["metrics"]] == [("PARCEL_FOUND", True)]
        assert (await ask(served, "/api/calls/nobody"))[0] == 404


async def test_a_recording_is_served_in_parts_and_as_a_waveform(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=2) as served:
        call_id = served.records[-1].id
        async with aiohttp.ClientSession(headers=HEADERS) as session:
            part = await session.get(f"{served.url}/api/calls/{call_id}/recording", headers={"Range": "bytes=0-43"})
            assert part.status == 206
            assert (await part.read())[:4] == b"RIFF"
        _, shape = await ask(served, f"/api/calls/{call_id}/waveform?points=10")
        assert shape["seconds"] == pytest.approx(2.0)
        assert shape["caller"] == [0.5] * 5 + [0.0] * 5
        assert shape["agent"] == [0.0] * 5 + [0.25] * 5
        assert (await ask(served, f"/api/calls/{served.records[0].id}/recording"))[0] == 404


async def test_a_record_cannot_make_another_file_be_served(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("SECRET")

    def change(records: list[CallRecord]) -> None:
        records[-1].recording = str(tmp_path / "recordings" / ".." / "secret.txt")

    async with serve_dashboard(tmp_path, count=1, change=change) as served:
        assert (await ask(served, f"/api/calls/{served.records[-1].id}/recording"))[0] == 404


async def test_live_calls_are_seen_grow_and_hung_up(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1) as served:
        assert (await ask(served, "/api/live"))[1] == {"calls": []}
        call = live_call()
        served.calls["live1"] = call
        _, found = await ask(served, "/api/live")
        assert found["calls"][0]["step"] == "welcome"
        assert found["calls"][0]["floor"] == "listening"
        async with (
            aiohttp.ClientSession(headers=HEADERS) as session,
            session.get(served.url + "/api/live/live1/events") as stream,
        ):
            first = json.loads((await stream.content.readline()).removeprefix(b"data: "))
            assert first["turns"][1]["user_input"] == "where is my parcel"
            await stream.content.readline()
            call.record.turns[1].user_input = "where is my parcel please"
            second = json.loads((await asyncio.wait_for(stream.content.readline(), 60)).removeprefix(b"data: "))
            assert second["turns"][1]["user_input"] == "where is my parcel please"
            await stream.content.readline()
            assert (await ask(served, "/api/calls/live1/hangup", "POST"))[0] == 202
            assert call.ended == [EndReason.OPERATOR]
            del served.calls["live1"]
            assert await asyncio.wait_for(stream.content.readline(), 60) == b"data: null\n"
        assert (await ask(served, "/api/calls/live1/hangup", "POST"))[0] == 404


async def test_a_watcher_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        async with asyncio.timeout(20), serve_dashboard(tmp_path, count=1) as served:
            stream = await session.get(served.url + "/api/live/events")
            await stream.content.readline()
        stream.close()


async def test_deleting_a_caller_takes_calls_words_and_recording(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=5) as served:
        record = served.records[-1]
        number = (record.from_number or "").replace("+", "%2B")
        assert await ask(served, f"/api/callers/{number}", "DELETE") == (200, {"deleted": 1})
        assert (await ask(served, f"/api/calls/{record.id}"))[0] == 404
        assert (await ask(served, f"/api/calls?search={record.id}"))[1]["total"] == 0
        assert not list((tmp_path / "recordings").glob("*.wav"))
        assert (await ask(served, "/api/calls"))[1]["total"] == 4


async def test_hostile_words_come_back_as_they_were(tmp_path: Path) -> None:
    def change(records: list[CallRecord]) -> None:
        records[0].from_number = HOSTILE
        records[0].turns[1].user_input = HOSTILE

    async with serve_dashboard(tmp_path, count=2, change=change) as served:
        _, page = await ask(served, "/api/calls")
        assert page["calls"][1]["from_number"] == HOSTILE
        assert page["total"] == 2
        assert (await ask(served, f"/api/calls/{served.records[0].id}"))[1]["turns"][1]["user_input"] == HOSTILE


@pytest.mark.parametrize(
    "path",
    [
        "/api/calls/%00", "/api/calls/%ff", "/api/calls?search=%00%22", "/api/calls?search=%ed%a0%80",
        "/api/calls/..%2f..%2fetc%2fpasswd/recording", "/api/calls?cursor=AAAA", "/api/overview?project_id=%27",
        "/api/calls?start_time=%00", "/api/live/%00", "/api/projects/%00/graph", "/static/../app.py",
        "/static/%2e%2e/app.py", "/api/calls?limit=99999999999999999999", "/api/overview?days=-1",
    ],
)  # fmt: skip
async def test_no_request_makes_the_server_fail(tmp_path: Path, path: str) -> None:
    async with serve_dashboard(tmp_path, count=1) as served:
        assert (await ask(served, path))[0] < 500


async def test_a_page_of_another_site_changes_nothing(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1) as served:
        served.calls["live1"] = live_call()
        assert (await ask(served, "/api/calls/live1/hangup", "POST", Origin="https://evil.example"))[0] == 403
        assert (await ask(served, "/api/calls/live1/hangup", "POST", **{"Sec-Fetch-Site": "cross-site"}))[0] == 403
        assert served.calls["live1"].ended == []


async def test_every_path_of_the_description_is_there_and_the_other_way_round(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path, count=1) as served:
        _, described = await ask(served, "/api/openapi.json")
        assert described == json.loads(json.dumps(make_description()))
        for path, operations in described["paths"].items():
            for method in operations:
                # Event streams of calls that are not on answer 404 as well.
                if path.endswith("live/events"):
                    continue
                filled = re.sub(r"\{\w+\}", "nothing", path)
                status, text = await ask(served, filled, method.upper())
                assert status in (200, 400, 404, 415), path
                assert status != 400 or "needed" in text, path
                assert text != "404: Not Found", path


async def test_figures_and_projects_are_there(tmp_path: Path) -> None:
    async with serve_dashboard(tmp_path) as served:
        _, figures = await ask(served, "/api/overview?days=31")
        assert sum(day["calls"] for day in figures["days"]) == 30
        assert (await ask(served, "/api/projects"))[1] == {"served": [], "recorded": ["parcels"]}
