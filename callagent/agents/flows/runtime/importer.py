"""The import forms of a flow project's Python.

These are `functions.x`, bare `x`, `flows.<folder>.functions.x`, `functions.<flow id>.x`, and what the format provides:
`_gen`, `imports`, `plog` and `polyai`.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType

from callagent.agents.flows.runtime.clock import pinned_datetime, replace_in
from callagent.agents.kernel.runtime import ModuleSpace

_HERE = __name__.rpartition(".")[0]
_PROVIDED = {"_gen": f"{_HERE}.gen", "imports": f"{_HERE}.gen", "polyai": f"{_HERE}.gen", "plog": f"{_HERE}.plog"}
_FLOW_ID = re.compile(r"flow_[0-9a-f]+", re.IGNORECASE)


class FlowModules(ModuleSpace):
    """The modules of one flow project."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._pinned: ModuleType | None = None

    def pin(self, instant: datetime) -> None:
        """Make `datetime.now()` and the like return this instant to the project's code from now on."""
        self._pinned = pinned_datetime(instant)
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{self._prefix}."):
                replace_in(vars(module), self._pinned)

    def _replacement_of(self, name: str) -> ModuleType | None:
        return self._pinned if name == "datetime" else None

    def _resolve(self, name: str, package: str) -> str | None:
        """The full name under which a project's name is imported; None when it is not the project's."""
        head, *rest = name.split(".")
        if head in _PROVIDED:
            return _PROVIDED[head]
        if head in ("functions", "flows"):
            return f"{self._prefix}.{self._flow_of_id([head, *rest])}"
        if head in sys.stdlib_module_names:
            return None
        beside = package.removeprefix(f"{self._prefix}.") if package.startswith(self._prefix) else "functions"
        for folder in ("functions", beside):
            if self._root.joinpath(*folder.split("."), f"{head}.py").is_file():
                return f"{self._prefix}.{folder}.{name}"
        return None

    def _flow_of_id(self, parts: list[str]) -> str:
        """`functions.flow_2d90b044.x` is the module `x` of the only flow that has one."""
        if parts[0] == "functions" and len(parts) > 2 and _FLOW_ID.fullmatch(parts[1]):
            found = list(self._root.glob(f"flows/*/functions/{parts[2]}.py"))
            if len(found) == 1:
                parts = ["flows", found[0].parts[-3], "functions", *parts[2:]]
        return ".".join(parts)
