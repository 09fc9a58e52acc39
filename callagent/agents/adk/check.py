"""Checks of an agent-config project: of its files alone, and with its Python imported in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from callagent.agents.adk.format import (
    EFFECTIVE_GENERATION_KEYS,
    IGNORED_MCP_ARGUMENTS,
    MCP_TOOLSETS,
    PROVIDER_SPECIFIC_KEYS,
    AgentConfig,
    load_config,
    snake_case,
)
from callagent.agents.kernel import CheckReport, Findings
from callagent.agents.tree import describe
from callagent.workers import WorkerPool

_GOOGLE_ONLY = (
    "google_search", "google_maps_grounding", "url_context", "enterprise_web_search", "VertexAiSearchTool",
    "load_web_page",
)  # fmt: skip


def check_adk_project(path: Path) -> CheckReport:
    """Check the project's files without running its code."""
    findings = Findings()
    config = load_config(path, findings)
    if config is not None:
        for each in _walk(config):
            _warn(each, findings)
    return findings.report()


async def check_adk_imports(pool: WorkerPool) -> CheckReport:
    """Import the project's Python in a worker and report broken references and unreachable tool servers.

    Raises `WorkerError`.
    """
    described = await describe(pool)
    return CheckReport(described.errors, described.unreachable)


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
        for key in IGNORED_MCP_ARGUMENTS if name in MCP_TOOLSETS else ():
            if (tool.args or {}).get(key) is not None:
                findings.warning(config.file, tool.line, f"The tool '{tool.name}': '{key}' has no effect here.")
        if name in _GOOGLE_ONLY:
            findings.warning(config.file, tool.line, f"The tool '{tool.name}' is not available here: its agent fails.")
    generation = config.data.get("generate_content_config")
    for key in generation if isinstance(generation, dict) else ():
        name = snake_case(str(key))
        line = config.line("generate_content_config", str(key))
        if name in PROVIDER_SPECIFIC_KEYS:
            whose = " and ".join(f"{each}/…" for each in PROVIDER_SPECIFIC_KEYS[name])
            findings.warning(config.file, line, f"'generate_content_config.{key}' is heeded by models {whose} only.")
        if name not in EFFECTIVE_GENERATION_KEYS:
            findings.warning(config.file, line, f"'generate_content_config.{key}' has no effect here.")
