"""Imports a project's Python so that two projects in one process share nothing, whatever their modules are called.

Every project's modules live in `sys.modules` under a prefix of their own. Project code gets an `__import__` that leads
the project's own names there (a format's subclass of `ModuleSpace` tells which these are); all other names are imported
as usual.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_numbers = itertools.count(1)


class _ProjectLoader(SourceFileLoader):
    """Loads a module of the project with the project's `__import__` and leaves no bytecode in its folder."""

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


class ModuleSpace(MetaPathFinder, ABC):
    """The modules of one project."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # The number makes the prefix the same in every worker of a project: pickles name their classes by it.
        self._prefix = f"flow_project_{next(_numbers)}"
        self._builtins = {**vars(builtins), "__import__": self._import}
        # First: the usual finder would find the same files and load them with the usual `__import__`.
        sys.meta_path.insert(0, self)

    def module(self, name: str) -> ModuleType:
        """Import a module of the project by its name below the project folder; later calls return the same module."""
        return importlib.import_module(f"{self._prefix}.{name}")

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
        replacement = self._replacement_of(name)
        if replacement is not None:
            return replacement
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

    @abstractmethod
    def _resolve(self, name: str, package: str) -> str | None:
        """Return the full name under which a project's name is imported, or None when it is not the project's."""

    def _replacement_of(self, name: str) -> ModuleType | None:
        """Return the module that project code gets in place of the one called `name`, or None to import that one."""
        return None
