"""One project, imported once per process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callagent.agents.flows.runtime.catalog import Catalog
from callagent.agents.flows.runtime.session import FlowSession
from callagent.workers.runtime import Channel

IMPORT_LIMIT = 10.0
"""Seconds that one function file may take to import."""


class FlowRuntime:
    def __init__(self, project: Path, *, import_limit: float = IMPORT_LIMIT) -> None:
        self._catalog = Catalog(Path(project).resolve(), import_limit)

    def open(self, context: dict[str, Any], checkpoint: Mapping[str, bytes], channel: Channel) -> FlowSession:
        """A call's session; with a checkpoint it goes on where another worker stopped."""
        return FlowSession(self._catalog, context, checkpoint, channel)
