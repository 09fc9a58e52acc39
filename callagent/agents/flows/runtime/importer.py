"""Imports a project's Python so that two projects in one process share nothing, whatever their modules are called.

Every project's modules live in `sys.modules` under a prefix of their own. Project code gets an `__import__` that knows
the import forms of the format (`functions.x`, bare `x`, `flows.<folder>.functions.x`, `functions.<flow id>.x`, `_gen`,
`imports`, `plog`, `polyai`) and leads them there; all other names are imported as usual.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from callagent.agents.flows.runtime.pinned import pinned_datetime, replace_in

_HERE = __name__.rpartition(".")[0]
_PROVIDED = {"_gen": f"{_HERE}.gen", "imports": f"{_HERE}.gen", "polyai": f"{_HERE}.gen", "plog": f"{_HERE}.plog"}
_FLOW_ID = re.compile(r"flow_[0-9a-f]+", re.IGNORECASE)
_numbers = itertools.count(1)


class _ProjectLoader(SourceFileLoader):
    """Leaves no bytecode in the project and gives its modules the project's `__import__`."""

    def __init__(self, name: str, path: str, names: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._names = names

    def get_code(self, fullname: str) -> CodeType:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._names
        super().exec_module(module)


class ModuleSpace(MetaPathFinder):
    """The modules of one project."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # The number makes the prefix the same in every worker of a project: pickles name their classes by it.
        self._prefix = f"flow_project_{next(_numbers)}"
        self._builtins = {**vars(builtins), "__import__": self._import}
        self._pinned: ModuleType | None = None
        # First: the usual finder would find the same files and load them with the usual `__import__`.
        sys.meta_path.insert(0, self)

    def module(self, name: str) -> ModuleType:
        """The module `functions.x` or `flows.<folder>.functions.x`, imported once."""
        return importlib.import_module(f"{self._prefix}.{name}")

    def pin(self, instant: datetime) -> None:
        """From now on the project's code gets this instant for `datetime.now()` and the like."""
        self._pinned = pinned_datetime(instant)
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{self._prefix}."):
                replace_in(vars(module), self._pinned)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        head, *parts = fullname.split(".")
        if head != self._prefix:
            return None
        place = self._root.joinpath(*parts)
        source = place / "__init__.py" if place.is_dir() else place.with_name(f"{place.name}.py")
        if source.is_file():
            loader = _ProjectLoader(fullname, str(source), self._builtins)
            inside = [str(place)] if place.is_dir() else None
            return importlib.util.spec_from_file_location(
                fullname, source, loader=loader, submodule_search_locations=inside
            )
        if place.is_dir():
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if name == "datetime" and self._pinned is not None:
            return self._pinned
        package = str((globals or {}).get("__package__") or "")
        if level:
            absolute = importlib.util.resolve_name("." * level + name, package)
            name = absolute.removeprefix(self._prefix).lstrip(".")
            if not name:
                return builtins.__import__(absolute, globals, locals, fromlist or (), 0)
        target = self._resolve(name, package)
        if target is None:
            return builtins.__import__(name, globals, locals, fromlist or (), 0)
        if fromlist:
            return builtins.__import__(target, globals, locals, fromlist, 0)
        module = importlib.import_module(target)
        # `import functions.x` binds the package, `import x` the module.
        if target == f"{self._prefix}.{name}":
            return self.module(name.partition(".")[0])
        return module

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
