"""Versions of an app, and the deployments that serve them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import check_cx_app, check_cx_imports, cx_runtime, is_cx_app, load_cx_app
from callagent.agents.cx.format.deployments import choose_version, read_export
from callagent.errors import ProjectError
from callagent.testing.in_process import InProcessPool
from callagent.workers import ProcessPool
from tests.agents.cx.support import GREETING, driven, write_app
from tests.agents.flows.support import call_info, scripted

APP = "projects/p/locations/eu/apps/a"
SNAPSHOT = {
    "app": {"displayName": "Little App", "rootAgent": f"{APP}/agents/desk"},
    "agents": [
        {
            "name": f"{APP}/agents/desk",
            "displayName": "Desk",
            "instruction": "The second version.",
            "tools": [f"{APP}/tools/look"],
            "beforeModelCallbacks": [{"pythonCode": GREETING.replace("    ", "", 1).replace("\n    ", "\n").strip()}],
        }
    ],
    "tools": [
        {
            "name": f"{APP}/tools/look",
            "displayName": "look",
            "pythonFunction": {"name": "look", "pythonCode": "def look() -> dict:\n    'Looks.'\n    return {}\n"},
        }
    ],
}


def split(*rows: tuple[str, int], state: str = "RUNNING") -> dict[str, Any]:
    rows_ = [
        {"id": f"to-{version}", "appVersion": f"{APP}/versions/{version}", "trafficPercentage": share}
        for version, share in rows
    ]
    return {"experimentConfig": {"versionRelease": {"state": state, "trafficAllocations": rows_}}}


def deployed(root: Path, **deployment: Any) -> Path:
    """The deployment `phone` of an app with a version that is a folder and one that is a snapshot."""
    version = write_app(root / "version", instruction="The first version.")
    more = {
        f"versions/v1/{file.relative_to(version).as_posix()}": file.read_text(encoding="utf-8")
        for file in version.rglob("*")
        if file.is_file()
    }
    more["versions/v2/v2.json"] = json.dumps({"name": f"{APP}/versions/v2", "snapshot": SNAPSHOT})
    more["deployments/phone/phone.json"] = json.dumps({"displayName": "Phone", **deployment})
    return write_app(root, instruction="As it stands.", more=more) / "deployments" / "phone"


@pytest.mark.parametrize(
    ("deployment", "shares"),
    [
        ({}, [("phone", 100)]),
        ({"appVersion": f"{APP}/versions/-"}, [("phone", 100)]),
        ({"appVersion": f"{APP}/versions/v1"}, [("v1", 100)]),
        ({"appVersion": f"{APP}/versions/v1", **split(("v2", 30))}, [("to-v2", 30), ("v1", 70)]),
        (split(("v1", 50), ("v2", 50)), [("to-v1", 50), ("to-v2", 50)]),
        ({"appVersion": f"{APP}/versions/v1", **split(("v2", 30), state="DONE")}, [("v1", 100)]),
    ],
)
def test_who_gets_what(deployment: dict[str, Any], shares: list[tuple[str, int]], tmp_path: Path) -> None:
    path = deployed(tmp_path, **deployment)
    assert is_cx_app(path)
    assert [(each.variant, each.percent) for each in read_export(path).load()] == shares
    assert check_cx_app(path).errors == check_cx_app(path.parent.parent).errors == ()


def test_a_call_always_gets_the_same_and_each_its_share(tmp_path: Path) -> None:
    served = read_export(deployed(tmp_path, appVersion=f"{APP}/versions/v1", **split(("v2", 30)))).load()
    drawn = [choose_version(served, f"call-{number}").variant for number in range(2000)]
    assert drawn == [choose_version(served, f"call-{number}").variant for number in range(2000)]
    assert 500 < drawn.count("to-v2") < 700


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        ({"appVersion": f"{APP}/versions/v9"}, "version 'v9' is not in versions/: export it, or name another one"),
        (split(("v9", 10)), "version 'v9' is not in versions/: export it, or name another one"),
        (split(("v1", 60), ("v2", 60)), "'trafficPercentage' adds up to more than 100: lower the shares"),
        (split(("v1", 101)), "'trafficPercentage' is 101; a whole number from 0 to 100 is expected"),
    ],
)
def test_what_cannot_be_served_is_an_error(deployment: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = deployed(tmp_path, **deployment)
    for checked in (path, path.parent.parent):
        (error,) = check_cx_app(checked).errors
        assert str(error) == f"deployments/phone/phone.json:1: [CX015] {message}"
    with pytest.raises(ProjectError, match="cannot be loaded"):
        read_export(path).load()


async def test_the_version_is_what_callers_get_and_what_the_record_says(tmp_path: Path) -> None:
    path = deployed(tmp_path, appVersion=f"{APP}/versions/v1")
    async with driven(path, {"text": "Yes."}) as agent:
        await agent.says("Hello.")
        assert "The first version." in agent.model.messages(0)[0]["content"]
        assert agent.agent.record().variant == "v1"


async def test_the_channel_of_a_deployment_is_heeded(tmp_path: Path) -> None:
    profile = {"disableBargeInControl": True, "personaProperty": {"persona": "CONCISE"}}
    async with driven(deployed(tmp_path, channelProfile=profile), {"text": "Yes."}) as agent:
        ending: Any = (await agent.says("Hello."))[-1]
        assert ending.settings.barge_in is False
        assert "\n\nKeep every answer short and to the point." in agent.model.messages(0)[0]["content"]


@pytest.mark.parametrize("pool", [InProcessPool, ProcessPool])
async def test_versions_side_by_side(pool: Any, tmp_path: Path) -> None:
    path = deployed(tmp_path, appVersion=f"{APP}/versions/v1", **split(("v2", 50)))
    model = scripted(*[{"text": "Yes."}] * 4)
    project = load_cx_app(path, model, pool(cx_runtime(path)))

    async def write_metric(name: str, value: Any) -> None:
        """Nobody reads it."""

    variants = set()
    try:
        await project.prepare()
        for number in range(8):
            agent = await project.open(call_info(call_id=f"call-{number}"), write_metric)
            variants.add(agent.record().variant)
            assert (agent.record().variant == "to-v2") == ("look" in agent._platform_code._tools)
            await agent.close()
    finally:
        await project.close()
    assert variants == {"v1", "to-v2"}


async def test_python_of_all_versions_is_run_by_check(tmp_path: Path) -> None:
    path = deployed(tmp_path, appVersion=f"{APP}/versions/v1", **split(("v2", 50)))
    file = path.parent.parent / "versions" / "v2" / "v2.json"
    file.write_text(file.read_text(encoding="utf-8").replace("return {}", "return {}\\n\\nraise ValueError('no')"))
    pool = ProcessPool(cx_runtime(path))
    try:
        (error,) = (await check_cx_imports(pool)).errors
    finally:
        await pool.close()
    assert (error.file, error.rule) == ("versions/v2/tools/look/look.json", "CX026")
