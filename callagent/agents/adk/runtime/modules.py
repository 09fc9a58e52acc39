"""Imports a project's package so that two projects in one process share nothing, whatever their folders are called."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from callagent.agents.adk.names import absolute
from callagent.agents.kernel.runtime import ModuleSpace


class PackageSpace(ModuleSpace):
    """The modules of one project: its folder is a package, as if the folder above were on the path."""

    def __init__(self, project: Path) -> None:
        super().__init__(project.parent)
        self._package = project.name

    def find(self, path: str) -> Any:
        """What a dotted path names: the longest module, then attributes. Raises what the import raises."""
        parts = absolute(path, self._package).split(".")
        for length in range(len(parts) - 1, 0, -1):
            name = ".".join(parts[:length])
            if length > 1 and not self._is_module(parts[:length]):
                continue
            found: Any = self.module(name)
            for part in parts[length:]:
                found = getattr(found, part)
                if isinstance(found, ModuleType) and not found.__name__.startswith(f"{self._prefix}."):
                    # What a module of the project imports is not the project's.
                    raise AttributeError(f"'{path}' leads out of the project")
            return found
        raise AttributeError(f"'{path}' names nothing")

    def _is_module(self, parts: list[str]) -> bool:
        place = self._root.joinpath(*parts)
        return place.is_dir() or place.with_name(f"{place.name}.py").is_file()

    def _resolve(self, name: str, package: str) -> str | None:
        head = name.partition(".")[0]
        return f"{self._prefix}.{name}" if head == self._package else None
