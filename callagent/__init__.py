"""callagent: a self-hosted phone server for voice agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__version__ = "0.2.0.dev0"


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of a package that imports an exported name only when it is first used.

    Workers and `callagent --help` need little of a package and start quickly because of it.

    Args:
        package: the package's dotted name.
        modules: the module that defines each exported name, relative to the package.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        # From now on Python finds the name in the package itself and does not call this again.
        setattr(import_module(package), name, value)
        return value

    return get
