"""`real_time_configuration/`: settings that operators change while calls run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from callagent.log import get_logger

log = get_logger(__name__)
_FOLDERS = {"live": "live", "pre-release": "pre_release"}


class RealTimeConfiguration:
    """The data of each environment, read again when its file changes."""

    def __init__(self, project: Path) -> None:
        self._folder = project / "real_time_configuration"
        self._read: dict[str, tuple[float, dict[str, Any]]] = {}

    def current(self, environment: str) -> dict[str, Any]:
        """An empty map where the project has none. A file that cannot be read leaves what was read before."""
        path = self._folder / _FOLDERS.get(environment, "draft_and_sandbox") / "data.json"
        known = self._read.get(environment)
        try:
            modified = path.stat().st_mtime
            if known is None or known[0] != modified:
                data = json.loads(path.read_text(encoding="utf-8"))
                known = (modified, data if isinstance(data, dict) else {})
                self._read[environment] = known
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("real_time_configuration_unreadable", file=str(path), error=str(error))
        return known[1] if known else {}
