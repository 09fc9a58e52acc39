"""The flow runtime with a short limit for imports, because one of the zoo's modules never ends."""

from __future__ import annotations

from pathlib import Path

from callagent.agents.flows.runtime import FlowRuntime


class ZooRuntime(FlowRuntime):
    def __init__(self, project: Path) -> None:
        super().__init__(project, import_limit=0.05)
