"""Sets of tools: MCP servers, and a project's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents.adk import check_adk_project
from callagent.errors import ProjectError
from tests.agents.adk.support import driven, write_project
from tests.agents.driving import results, words
from tests.agents.mcp_server import mcp_server

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


async def test_a_server_that_is_not_there_is_told_with_its_line(tmp_path: Path) -> None:
    text = (
        LLM + "  - name: McpToolset\n    args: {streamable_http_connection_params: {url: 'http://127.0.0.1:9/mcp'}}\n"
    )
    with pytest.raises(ProjectError, match=r"root_agent\.yaml:4: .*its tools are not known"):
        async with driven(write_project(tmp_path, {"root_agent.yaml": text})):
            pass


def test_servers_that_are_programs_are_told(tmp_path: Path) -> None:
    text = LLM + "  - name: MCPToolset\n    args: {stdio_server_params: {command: npx}}\n"
    (warning,) = check_adk_project(write_project(tmp_path, {"root_agent.yaml": text})).warnings
    assert "'MCPToolset' is not available here" in warning.message


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
