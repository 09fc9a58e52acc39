"""Import a flow project's Python: the forms of `import` that it may use, and the catalog of its function files.

Import forms are `functions.x`, bare `x`, `flows.<folder>.functions.x`, `functions.<flow id>.x`, and what the format
provides: `_gen`, `imports`, `plog` and `polyai`. A function file that cannot be imported does not affect the others.
"""

from __future__ import annotations

import inspect
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from callagent.agents.flows.runtime.clock import pinned_datetime, replace_in
from callagent.agents.flows.runtime.function_calls import JSON_TYPES, model_parameters, notes_of, type_name
from callagent.agents.kernel import ModuleSpace, clean_name, import_report

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
        """Return the full name under which a project's module is imported; None when the name is not the project's."""
        head, *rest = name.split(".")
        # Provided modules come first: no file of the project replaces them.
        if head in _PROVIDED:
            return _PROVIDED[head]
        if head in ("functions", "flows"):
            return f"{self._prefix}.{self._flow_of_id([head, *rest])}"
        # `import json` is the library, also where the project has a `functions/json.py`.
        if head in sys.stdlib_module_names:
            return None
        beside = package.removeprefix(f"{self._prefix}.") if package.startswith(self._prefix) else "functions"
        for folder in ("functions", beside):
            if self._root.joinpath(*folder.split("."), f"{head}.py").is_file():
                return f"{self._prefix}.{folder}.{name}"
        return None

    def _flow_of_id(self, parts: list[str]) -> str:
        """Replace a flow's identifier: `functions.flow_2d90b044.x` is the module `x` of the only flow that has one."""
        if parts[0] == "functions" and len(parts) > 2 and _FLOW_ID.fullmatch(parts[1]):
            # No file tells which folder has this identifier, so the flow is found by the name of its module. Where
            # several flows have a module of that name, none is chosen.
            found = list(self._root.glob(f"flows/*/functions/{parts[2]}.py"))
            if len(found) == 1:
                parts = ["flows", found[0].parts[-3], "functions", *parts[2:]]
        return ".".join(parts)


_LIFECYCLE = {"start_function": "start", "end_function": "end"}


class FunctionNotImported(ImportError):
    """The function's file cannot be imported; the text says why and where."""


class ImportTookTooLong(BaseException):
    """An import exceeded its limit. Not an `Exception`, so that the hanging module cannot catch it by accident."""


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """A Python file of the project, and the function in it that is named like the file."""

    kind: str
    """`start`, `end`, `global`, `flow` or `step`."""
    flow: str | None
    """The flow's folder."""
    name: str
    path: Path
    function: Callable[..., object] | None
    error: dict[str, str | int | None] | None
    """Why the file could not be imported (`import_report`); None if it was."""

    def main(self) -> Callable[..., object]:
        """Return the function that is named like the file. Raises `FunctionNotImported`."""
        if self.function is None:
            error = self.error or {}
            place = f"{error.get('file')}:{error.get('line')}" if error.get("line") else error.get("file")
            raise FunctionNotImported(
                f"function '{self.name}' cannot be imported: {error.get('type')}: {error.get('message')} ({place})"
            )
        return self.function

    def describe(self, root: Path) -> dict[str, object]:
        notes = notes_of(self.function)
        parameters = model_parameters(self.function) if self.function is not None else []
        code = getattr(inspect.unwrap(self.function), "__code__", None) if self.function is not None else None
        return {
            "kind": self.kind,
            "flow": self.flow,
            "name": self.name,
            "file": str(self.path.relative_to(root)),
            "line": code.co_firstlineno if code is not None else 1,
            "parameters": [
                {
                    "name": parameter.name,
                    "type": JSON_TYPES.get(type_name(parameter)),
                    "description": notes.parameters.get(parameter.name, ""),
                }
                for parameter in parameters
            ],
            "description": notes.description,
            "latency": notes.latency,
            "error": self.error,
        }


class Catalog:
    """The function files of a project, each imported once, within `import_limit` seconds.

    A file that cannot be imported does not affect the others.
    """

    def __init__(self, root: Path, import_limit: float) -> None:
        self._root = root
        self._space = FlowModules(root)
        self._import_limit = import_limit
        self._files = {
            (file.kind if file.kind in ("flow", "step") else "global", file.flow, file.name): file
            for file in self._scan()
        }

    def pin(self, instant: datetime) -> None:
        """Pin the time that the project's code reads."""
        self._space.pin(instant)

    def describe(self) -> list[dict[str, object]]:
        return [file.describe(self._root) for file in self._files.values()]

    def find(self, kind: str, flow: str | None, name: str) -> FunctionFile:
        """Find a function file; `flow` is a folder or a display name. Raises `LookupError`."""
        if kind not in ("flow", "step"):
            found = self._files.get(("global", None, name))
        else:
            # The engine names a flow by its display name; the flow's folder has the cleaned name.
            found = self._files.get((kind, flow, name)) or self._files.get((kind, clean_name(flow or ""), name))
        if found is None:
            where = f" in flow '{flow}'" if kind in ("flow", "step") else ""
            raise LookupError(f"the project has no {kind} function '{name}'{where}")
        return found

    def global_function(self, name: str) -> Callable[..., object]:
        """Return the function behind `conv.functions.<name>`."""
        return self._attribute("global", None, name)

    def flow_function(self, flow: str | None) -> Callable[[str], Callable[..., object]]:
        """Return a callable that finds the function behind `flow.functions.<name>`."""
        return lambda name: self._attribute("flow", flow, name)

    def _attribute(self, kind: str, flow: str | None, name: str) -> Callable[..., object]:
        try:
            return self.find(kind, flow, name).main()
        except LookupError as error:
            raise AttributeError(str(error)) from None

    def _scan(self) -> Iterator[FunctionFile]:
        for path in _sources(self._root / "functions"):
            yield self._load(_LIFECYCLE.get(path.stem, "global"), None, path)
        for flow in sorted(folder for folder in self._root.glob("flows/*") if folder.is_dir()):
            for path in _sources(flow / "functions"):
                yield self._load("flow", flow.name, path)
            for path in _sources(flow / "function_steps"):
                yield self._load("step", flow.name, path)

    def _load(self, kind: str, flow: str | None, path: Path) -> FunctionFile:
        name = path.stem
        module_name = ".".join(path.relative_to(self._root).with_suffix("").parts)
        try:
            with _time_limit(self._import_limit):
                # A module may hang while it is imported, for example in a request without a timeout.
                function = getattr(self._space.module(module_name), name, None)
            if not callable(function):
                raise LookupError(f"the file has no function '{name}'")
            # Each call of the function reads its signature. If that is impossible, it is reported here as an error of
            # the file, and not in a call.
            inspect.signature(function)
        except BaseException as error:  # the boundary of an import: even sys.exit() fails this file only
            return FunctionFile(kind, flow, name, path, None, import_report(error, self._root, path))
        return FunctionFile(kind, flow, name, path, function, None)


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if path.stem.isidentifier() and path.stem != "__init__")


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `ImportTookTooLong` after `seconds`, except outside the main thread or where SIGALRM is already in use."""
    # Python runs signal handlers in the main thread only, and tests import projects in other threads.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return

    def interrupt(_signal: int, _frame: object) -> NoReturn:
        raise ImportTookTooLong(f"importing took more than {seconds:g} s")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        # First the timer, then the handler: SIGALRM without a handler would end the process.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
