"""What is wrong with an agent-config project: by its files alone, and with its Python imported in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from callagent.agents.adk.config import AgentConfig, load_config
from callagent.agents.adk.fields import EFFECTIVE, snake_case
from callagent.agents.adk.names import MCP_TOOLSETS, is_program
from callagent.agents.finding import CheckReport, Finding, Findings
from callagent.agents.tree.describe import describe
from callagent.workers.protocol import WorkerPool

_GOOGLE_ONLY = (
    "google_search", "google_maps_grounding", "url_context", "enterprise_web_search", "VertexAiSearchTool",
    "load_artifacts", "load_memory", "preload_memory", "load_web_page",
)  # fmt: skip


def check_adk_project(path: Path) -> CheckReport:
    """Everything that the files show; no code of the project is run."""
    findings = Findings()
    config = load_config(path, findings)
    if config is not None:
        for each in _walk(config):
            _warn(each, findings)
    return findings.report()


async def check_adk_imports(pool: WorkerPool) -> list[Finding]:
    """Errors that show when the project's Python is imported: references that lead nowhere."""
    return (await read_description(pool))[1]


async def read_description(pool: WorkerPool) -> tuple[Mapping[str, Any] | None, list[Finding]]:
    """The project's agents as a worker sees them, or what is wrong with them. Raises `WorkerError`."""
    answer, errors = await describe(pool)
    return answer["root"], errors


def _walk(config: AgentConfig) -> Iterator[AgentConfig]:
    yield config
    for child in config.children:
        if isinstance(child, AgentConfig):
            yield from _walk(child)
    for tool in config.tools:
        if isinstance(tool.agent, AgentConfig):
            yield from _walk(tool.agent)


def _warn(config: AgentConfig, findings: Findings) -> None:
    for tool in config.tools:
        name = tool.name.rpartition(".")[2]
        if name in _GOOGLE_ONLY or (name in MCP_TOOLSETS and is_program(tool.args)):
            findings.warning(config.file, tool.line, f"The tool '{tool.name}' is not available here: its agent fails.")
    generation = config.data.get("generate_content_config")
    for key in generation if isinstance(generation, dict) else ():
        name = snake_case(str(key))
        if name not in EFFECTIVE:
            line = config.line("generate_content_config", str(key))
            findings.warning(config.file, line, f"'generate_content_config.{key}' has no effect here.")
