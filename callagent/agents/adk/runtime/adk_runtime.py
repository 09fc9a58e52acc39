"""One project, imported once per process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callagent.agents.adk.runtime import stand_ins
from callagent.agents.adk.runtime.catalog import Catalog
from callagent.agents.adk.runtime.session import AdkSession
from callagent.workers.runtime import Channel


class AdkRuntime:
    def __init__(self, project: Path) -> None:
        stand_ins.install()
        self._catalog = Catalog(Path(project).resolve())

    def open(self, context: dict[str, Any], checkpoint: Mapping[str, bytes], channel: Channel) -> AdkSession:
        """A call's session; with a checkpoint it goes on where another worker stopped."""
        return AdkSession(self._catalog, context, checkpoint, channel)
