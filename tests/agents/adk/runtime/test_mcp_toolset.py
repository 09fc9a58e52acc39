"""Sets of tools: MCP servers, and a project's own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import FunctionEnded
from callagent.agents.adk import adk_runtime, check_adk_imports, check_adk_project, load_adk_project
from callagent.agents.tree import TreeSettings
from callagent.testing.in_process import InProcessPool
from callagent.workers import ProcessPool, ProjectRuntime, WorkerSettings, find_programs
from callagent.workers.kernel_limits import landlock_version
from tests.agents.adk.support import driven, write_project
from tests.agents.driving import results, words
from tests.agents.flows.support import scripted
from tests.agents.mcp_server import PROGRAM, mcp_server
from tests.end_to_end.baresip import free_port

LLM = "name: a\ninstruction: x\ntools:\n"


async def test_tools_of_an_mcp_server(tmp_path: Path) -> None:
    with mcp_server() as address:
        text = f"""\
{LLM}  - name: McpToolset
    args:
      streamable_http_connection_params: {{url: "{address}"}}
      tool_filter: [describe]
      tool_name_prefix: town
"""
        project = write_project(tmp_path, {"root_agent.yaml": text})
        assert check_adk_project(project).warnings == ()
        asks = {"calls": [{"name": "town_describe", "arguments": {"town": "Bonn"}}]}
        async with driven(project, asks, {"text": "Blue."}) as agent:
            actions = await agent.says("How is Bonn?")
            assert words(actions) == ["Blue."]
            assert results(actions) == {"town_describe": {"town": "Bonn", "sky": "blue"}}
            assert agent.model.tools(0) == ["town_describe"]


SSE_SET = "  - name: McpToolset\n    args: {sse_connection_params: {url: 'ADDRESS'}, tool_name_prefix: town}\n"


async def test_a_server_that_is_away_is_a_warning_and_its_tools_come_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(socket.SOCK_STREAM)
    address = f"http://127.0.0.1:{port}/sse"
    project = write_project(tmp_path, {"root_agent.yaml": LLM + SSE_SET.replace("ADDRESS", address)})
    pool = InProcessPool(adk_runtime(project))
    (finding,) = (await check_adk_imports(pool)).warnings
    assert (finding.file, finding.line) == ("root_agent.yaml", 4)
    assert "its tools are not known" in finding.message
    monkeypatch.setattr("callagent.agents.tree.description.RETRY_SECONDS", 0.0)
    loaded = load_adk_project(project, scripted(), pool)
    try:
        assert tools_of_root(await loaded.prepare()) == []
        with mcp_server("sse", port):
            await loaded.prepare()
            async with asyncio.timeout(20):
                while "town_describe" not in tools_of_root(await loaded.prepare()):
                    await asyncio.sleep(0.1)
    finally:
        await loaded.close()


def tools_of_root(root: Any) -> list[str]:
    return [tool.name for tool in root.tools]


async def test_a_server_that_goes_is_told_to_the_model(tmp_path: Path) -> None:
    with contextlib.ExitStack() as running:
        address = running.enter_context(mcp_server())
        text = f"{LLM}  - name: McpToolset\n    args: {{streamable_http_connection_params: {{url: '{address}'}}}}\n"
        asks = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
        async with driven(write_project(tmp_path, {"root_agent.yaml": text}), asks, {"text": "Sorry."}) as agent:
            running.close()
            actions = await agent.says("One and two?")
            assert words(actions) == ["Sorry."]
            assert "cannot be reached" in results(actions)["add"]["error"]


STDIO_SET = """\
  - name: McpToolset
    args:
      stdio_connection_params:
        server_params: {command: PYTHON, args: [tools/server.py], env: {TOWN: Bonn}, cwd: FOLDER}
        timeout: 20
      tool_filter: [variable, process]
"""


def stdio_project(tmp_path: Path) -> Path:
    project = write_project(tmp_path, {"tools/server.py": ""})
    (project / "tools/server.py").write_text(PROGRAM)
    text = LLM + STDIO_SET.replace("PYTHON", sys.executable).replace("FOLDER", str(project))
    (project / "root_agent.yaml").write_text(text)
    return project


def allowing(environment: dict[str, str], *programs: str) -> WorkerSettings:
    return WorkerSettings(
        environment={"ADK_ALLOW_CONFIG_STDIO_MCP_SERVERS": "1", **environment},
        programs=find_programs((sys.executable, *programs), "limits.function_programs"),
    )


@pytest.mark.skipif(landlock_version() < 1, reason="the kernel has no Landlock")
async def test_a_program_that_the_settings_do_not_list_is_not_started(tmp_path: Path) -> None:
    settings = WorkerSettings(environment={"ADK_ALLOW_CONFIG_STDIO_MCP_SERVERS": "1"})
    pool = ProcessPool(adk_runtime(stdio_project(tmp_path)), settings)
    try:
        (finding,) = (await check_adk_imports(pool)).warnings
    finally:
        await pool.close()
    assert "limits.function_programs" in finding.message


async def test_a_program_runs_in_the_calls_worker_and_ends_with_it(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    project = stdio_project(tmp_path)
    assert check_adk_project(project).warnings == ()
    settings = allowing({"KEY": "secret"})
    asks = [
        {"calls": [{"name": "variable", "arguments": {"name": name}}, {"name": "process", "arguments": {}}]}
        for name in ("KEY", "TOWN")
    ]

    def make_pool(runtime: ProjectRuntime) -> ProcessPool:
        return ProcessPool(runtime, settings)

    patient = TreeSettings(function_timeout=20)
    async with driven(project, asks[0], asks[1], {"text": "So."}, settings=patient, make_pool=make_pool) as agent:
        actions = await agent.says("Where?")
        answers = [action.result["result"] for action in actions if isinstance(action, FunctionEnded)]
        assert agent.model.tools(0) == ["variable", "process"]
        assert answers == ["none", answers[1], "Bonn", answers[1]]
        number = answers[1]
        assert Path(f"/proc/{number}").exists()
    async with asyncio.timeout(60):
        while Path(f"/proc/{number}").exists():
            await asyncio.sleep(0.05)


LEAVES_A_CHILD = """\
import os
import subprocess

child = subprocess.Popen(["sleep", "60"], start_new_session=True)
with open(os.environ["TMPDIR"] + "/child", "w") as file:
    file.write(str(child.pid))
"""


async def test_what_a_program_starts_ends_with_the_call_too(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    project = stdio_project(tmp_path)
    (project / "tools/server.py").write_text(LEAVES_A_CHILD + PROGRAM)
    settings = allowing({}, "sleep")
    asks = {"calls": [{"name": "variable", "arguments": {"name": "TMPDIR"}}]}

    def make_pool(runtime: ProjectRuntime) -> ProcessPool:
        return ProcessPool(runtime, settings)

    patient = TreeSettings(function_timeout=20)
    async with driven(project, asks, {"text": "So."}, settings=patient, make_pool=make_pool) as agent:
        actions = await agent.says("Where?")
        (folder,) = (action.result["result"] for action in actions if isinstance(action, FunctionEnded))
        number = Path(folder, "child").read_text()
        assert Path(f"/proc/{number}").exists()
    async with asyncio.timeout(60):
        while Path(f"/proc/{number}").exists():
            await asyncio.sleep(0.05)


async def test_a_program_of_yaml_needs_leave(tmp_path: Path) -> None:
    (finding,) = (await check_adk_imports(InProcessPool(adk_runtime(stdio_project(tmp_path))))).warnings
    assert finding.line == 4
    assert "ADK_ALLOW_CONFIG_STDIO_MCP_SERVERS" in finding.message


async def test_two_sets_without_prefixes_and_headers_of_a_function(tmp_path: Path) -> None:
    with mcp_server() as one, mcp_server("sse") as other:
        files = {
            "__init__.py": "",
            "agents.py": f"""
                from google.adk.agents import LlmAgent
                from google.adk.tools.mcp_tool import McpToolset, SseConnectionParams, StreamableHTTPConnectionParams

                asked = []

                def headers(context):
                    asked.append(context.state.get("customer"))
                    return {{"X-Customer": "1"}}

                helper = LlmAgent(
                    name="helper",
                    instruction="Help.",
                    tools=[
                        McpToolset(
                            connection_params=StreamableHTTPConnectionParams(url="{one}"),
                            tool_filter=lambda tool, context=None: tool.name == "add",
                            header_provider=headers,
                        ),
                        McpToolset(connection_params=SseConnectionParams(url="{other}"), tool_filter=["describe"]),
                    ],
                )
            """,
            "root_agent.yaml": "agent_class: SequentialAgent\nname: a\nsub_agents: [{code: agency.agents.helper}]\n",
        }
        asks = [
            {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]},
            {"calls": [{"name": "describe", "arguments": {"town": "Bonn"}}]},
        ]
        project = write_project(tmp_path, files)
        async with driven(project, *asks, {"text": "So."}, make_pool=ProcessPool) as agent:
            actions = await agent.says("One and two?")
            assert results(actions) == {"add": {"result": 3}, "describe": {"town": "Bonn", "sky": "blue"}}
            assert agent.model.tools(0) == ["add", "describe"]


async def test_a_projects_own_set(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "tools.py": """
            from google.adk.tools import BaseToolset

            def hour(town: str) -> str:
                return f"noon in {town}"

            class Clocks(BaseToolset):
                def __init__(self, towns=()):
                    self.towns = towns

                async def get_tools(self, readonly_context=None):
                    return [hour]
        """,
        "root_agent.yaml": LLM + "  - name: agency.tools.Clocks\n    args: {towns: [Bonn]}\n",
    }
    asks = {"calls": [{"name": "hour", "arguments": {"town": "Bonn"}}]}
    async with driven(write_project(tmp_path, files), asks, {"text": "Noon."}) as agent:
        assert results(await agent.says("Hour?")) == {"hour": "noon in Bonn"}


@pytest.mark.parametrize(("file", "line"), [("root_agent.yaml", 5), ("inner.yaml", 4)])
async def test_a_set_that_fails_is_an_error_at_its_place(tmp_path: Path, file: str, line: int) -> None:
    tool = "tools:\n  - name: agency.tools.Broken\n"
    files = {
        "__init__.py": "",
        "tools.py": """
            import sys
            from google.adk.tools import BaseToolset

            class Broken(BaseToolset):
                async def get_tools(self, readonly_context=None):
                    sys.exit("no clocks")
        """,
        "root_agent.yaml": "name: a\ninstruction: x\nsub_agents: [{config_path: inner.yaml}]\n",
        "inner.yaml": "name: inner\ninstruction: x\n",
    }
    project = write_project(tmp_path, {**files, file: files[file] + tool})
    (finding,) = (await check_adk_imports(InProcessPool(adk_runtime(project)))).errors
    assert (finding.file, finding.line) == (file, line)
    assert finding.message == "'Broken': its tools are not known: SystemExit: no clocks"


async def test_python_may_name_a_server(tmp_path: Path) -> None:
    with mcp_server() as address:
        files = {
            "__init__.py": "",
            "agents.py": f"""
                from google.adk.agents import LlmAgent
                from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams

                helper = LlmAgent(
                    name="helper",
                    instruction="Help.",
                    tools=[McpToolset(connection_params=StreamableHTTPConnectionParams(url="{address}"))],
                )
            """,
            "root_agent.yaml": "agent_class: SequentialAgent\nname: a\nsub_agents: [{code: agency.agents.helper}]\n",
        }
        asks = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
        async with driven(write_project(tmp_path, files), asks, {"text": "Three."}) as agent:
            assert results(await agent.says("One and two?")) == {"add": {"result": 3}}
