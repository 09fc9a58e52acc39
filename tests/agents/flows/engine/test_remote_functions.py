"""Functions of MCP servers: offered outside of flows, run in the worker, their answers are text for the model."""

from __future__ import annotations

import json
from pathlib import Path

from callagent.agents import CallerTurn
from callagent.agents.flows import FlowSettings, load_flow_project, project_runtime
from callagent.testing.in_process import InProcessPool
from tests.agents.driving import replied, started
from tests.agents.flows.support import call_info, flow_config, function, scripted, step, write_project
from tests.agents.mcp_server import mcp_server


def files(address: str, more: str = "") -> dict[str, str]:
    return {
        "agent_settings/rules.txt": "Be brief.",
        "config/mcp.yaml": f"mcp_servers: [{{provider_id: towns, url: '{address}'{more}}}]\n",
        "functions/add.py": function("add", "return 'ours'"),
        "flows/f/flow_config.yaml": flow_config("F", "s"),
        "flows/f/steps/s.yaml": step("s", "Prompt."),
    }


async def asked(root: Path, *entries: dict[str, object], settings: FlowSettings | None = None):
    """The names offered in each request, and the results that the model was given."""
    model = scripted(*entries, {"text": "Done."})
    project = load_flow_project(root, model, InProcessPool(project_runtime(root)), settings)
    await project.prepare()

    async def write_metric(name: str, value: object) -> None:
        pass

    agent = await project.open(call_info(), write_metric)
    try:
        await started(agent)
        actions = await replied(agent, CallerTurn("Go."))
    finally:
        await agent.close()
        await project.close()
    results = [message["content"] for message in model.messages() if message["role"] == "tool"]
    return project, actions, results


async def test_functions_of_an_mcp_server_are_offered_and_run(tmp_path: Path):
    calls = [
        {"calls": [{"name": "describe", "arguments": {"town": "Bonn"}}]},
        {"calls": [{"name": "towns_add", "arguments": {"a": 1, "b": 2}}]},
        {"calls": [{"name": "fail", "arguments": {}}]},
    ]
    with mcp_server() as address:
        project, _, results = await asked(write_project(tmp_path, files(address)), *calls)
    assert {"describe", "towns_add", "fail"} <= set(project.project.remote)
    assert json.loads(results[0])["town"] == "Bonn"
    assert "3" in results[1]
    assert json.loads(results[2])["error"]


async def test_only_the_enabled_ones_with_the_secret_of_the_server(tmp_path: Path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "towns_key").write_text("hush")
    more = ", enabled_functions: [add], auth: {header: {name: X-Key, secret_name: towns_key}}"
    settings = FlowSettings(secrets_dir=str(tmp_path / "secrets"))
    with mcp_server() as address:
        root = write_project(tmp_path / "project", files(address, more))
        project, _, _ = await asked(root, settings=settings)
        assert set(project.project.remote) == {"towns_add"}
        without, _, _ = await asked(root)
    assert without.project.remote == {}


async def test_a_server_that_is_not_there_costs_nothing_else(tmp_path: Path):
    root = write_project(tmp_path, files("http://127.0.0.1:9/mcp"))
    call = {"calls": [{"name": "describe", "arguments": {"town": "Bonn"}}]}
    project, _, results = await asked(root, call)
    assert project.project.remote == {}
    assert "There is no function" in results[0]
