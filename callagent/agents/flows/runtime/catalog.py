"""The function files of a project: what each one needs, and which cannot be imported."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from callagent.agents.flows.runtime.function_calls import JSON_TYPES, model_parameters, notes_of, type_name
from callagent.agents.flows.runtime.importer import FlowModules
from callagent.agents.kernel import clean_name
from callagent.agents.kernel.runtime import import_report

_LIFECYCLE = {"start_function": "start", "end_function": "end"}


class FunctionNotImported(ImportError):
    """The function's file cannot be imported; the text says why and where."""


class ImportTookTooLong(BaseException):
    """An import exceeded its limit. No `Exception`, so that the module that hangs cannot catch it by accident."""


@dataclass(frozen=True, slots=True)
class FunctionFile:
    kind: str
    flow: str | None
    """The flow's folder."""
    name: str
    path: Path
    function: Callable[..., Any] | None
    error: dict[str, Any] | None

    def main(self) -> Callable[..., Any]:
        """Return the function that is named like the file. Raises `FunctionNotImported`."""
        if self.function is None:
            error = self.error or {}
            place = f"{error.get('file')}:{error.get('line')}" if error.get("line") else error.get("file")
            raise FunctionNotImported(
                f"function '{self.name}' cannot be imported: {error.get('type')}: {error.get('message')} ({place})"
            )
        return self.function

    def describe(self, root: Path) -> dict[str, Any]:
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
    """Imports every function file once; one that fails does not affect the others."""

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

    def describe(self) -> list[dict[str, Any]]:
        return [file.describe(self._root) for file in self._files.values()]

    def find(self, kind: str, flow: str | None, name: str) -> FunctionFile:
        """Find a function file; `flow` is a folder or a display name. Raises `LookupError`."""
        if kind not in ("flow", "step"):
            found = self._files.get(("global", None, name))
        else:
            found = self._files.get((kind, flow, name)) or self._files.get((kind, clean_name(flow or ""), name))
        if found is None:
            where = f" in flow '{flow}'" if kind in ("flow", "step") else ""
            raise LookupError(f"the project has no {kind} function '{name}'{where}")
        return found

    def global_function(self, name: str) -> Callable[..., Any]:
        """Return the function behind `conv.functions.<name>`."""
        return self._attribute("global", None, name)

    def flow_function(self, flow: str | None) -> Callable[[str], Callable[..., Any]]:
        """Return what finds the function behind `flow.functions.<name>`."""
        return lambda name: self._attribute("flow", flow, name)

    def _attribute(self, kind: str, flow: str | None, name: str) -> Callable[..., Any]:
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
                function = getattr(self._space.module(module_name), name, None)
            if not callable(function):
                raise LookupError(f"the file has no function '{name}'")
            inspect.signature(function)
        except BaseException as error:  # the edge of an import: even sys.exit() stays with this file
            return FunctionFile(kind, flow, name, path, None, import_report(error, self._root, path))
        return FunctionFile(kind, flow, name, path, function, None)


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if path.stem.isidentifier() and path.stem != "__init__")


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `ImportTookTooLong` after `seconds`. Without the main thread or a free SIGALRM there is no limit."""
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
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
