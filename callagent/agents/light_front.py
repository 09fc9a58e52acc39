"""Front doors that import what they name when it is asked for: a worker, or `--help`, needs little of a package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def light_front(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`; `modules`: name -> module that has it, below `callagent.agents`."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"callagent.agents.{modules[name]}"), name)

    return get
