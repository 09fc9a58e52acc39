"""A project's Python in a worker: its imports, reports of its errors, and its values as JSON data of bounded size.

Imports: two projects in one process share no modules, whatever their modules are called. Every project's modules are in
`sys.modules` under a prefix of their own. Project code gets an `__import__` that looks up the project's own names there
(a format's subclass of `ModuleSpace` decides which these are); all other names are imported as usual.
"""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import enum
import importlib
import importlib.util
import itertools
import math
import re
import sys
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TypeVar, overload

from callagent.json_values import JsonValue, MutableJsonObject

T = TypeVar("T")
_project_numbers = itertools.count(1)


class _ProjectLoader(SourceFileLoader):
    """The loader of a project's modules: gives them the project's `__import__` and writes no bytecode."""

    def __init__(self, name: str, path: str, names: Mapping[str, object]) -> None:
        super().__init__(name, path)
        self._names = names

    def get_code(self, fullname: str) -> CodeType:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        # CPython takes the builtins of a module from here, `__import__` among them.
        module.__dict__["__builtins__"] = self._names
        super().exec_module(module)


class ModuleSpace(MetaPathFinder, ABC):
    """The modules of one project, apart from those of other projects in the same process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # A counter instead of a random number, because every worker of a project must have the same prefix: pickles
        # name their classes by it.
        self._prefix = f"flow_project_{next(_project_numbers)}"
        self._builtins = {**vars(builtins), "__import__": self._import}
        # In first place, because the usual finder would find the same files and load them with the usual `__import__`.
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
            # A folder without `__init__.py` is a namespace package, as it is to Python itself.
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        replacement = self._replacement_of(name)
        if replacement is not None:
            return replacement
        # The importing module's package, from which relative names and names beside the module are resolved.
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


_OUR_FOLDER = str(Path(__file__).parents[1])
"""The folder of the agents package; frames of its files are removed from the top of tracebacks."""
_MAX_TRACEBACK = 8 * 1024
"""Characters of a traceback that are kept: its end, where the error is."""
_MAX_CAUSES = 20
"""Errors of a chain of causes that are examined; project code may have linked them in a circle."""
_NOT_PERMITTED = "Permission denied"
_REMEDY = (
    "callagent: project code connects to the TCP ports of limits.function_network, starts the programs of "
    "limits.function_programs, reads the project's folder and Python's, and writes to tempfile.gettempdir() only"
)


def contain(run: Callable[[], T], otherwise: Callable[[Exception], T]) -> T:
    """Return `run()`, or `otherwise(error)` if it raises.

    Used where a project's values are shown or pickled, because their own `__str__` or `__reduce__` may raise anything.
    """
    try:
        return run()
    except Exception as error:
        return otherwise(error)


def error_message(error: BaseException) -> str:
    """Return the error's text, cut to 2,000 characters."""
    return contain(lambda: str(error)[:2000], lambda _: f"<{type(error).__name__} whose text cannot be shown>")


def error_report(error: BaseException) -> dict[str, str]:
    """Return `{"type", "message", "traceback"}` without this package's own frames at the top of the traceback."""
    inside = error.__traceback__
    while inside is not None and inside.tb_next is not None and _is_ours(inside):
        inside = inside.tb_next
    text = contain(
        lambda: "".join(traceback.format_exception(type(error), error, inside, limit=-30)),
        lambda _: "".join(traceback.format_tb(inside, limit=-30)),
    )
    # Lone surrogates, which decoding with `surrogateescape` leaves, have no UTF-8 form and could not be sent on.
    text = text.encode("utf-8", "replace").decode() + remedy_of(error, "{}\n")
    message = error_message(error).encode("utf-8", "replace").decode()
    return {"type": type(error).__name__, "message": message, "traceback": text[-_MAX_TRACEBACK:]}


def import_report(error: BaseException, root: Path, source: Path) -> dict[str, str | int | None]:
    """Return `{"type", "message", "file", "line"}`: the last place in the project that led to the error.

    Without such a place, `file` is `source` and `line` is None.
    """
    file, line = source, None
    # The traceback of a syntax error ends at the import; the error itself knows the line.
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(root):
        file, line = Path(error.filename), error.lineno
    else:
        for frame, number in traceback.walk_tb(error.__traceback__):
            place = Path(frame.f_code.co_filename)
            if place.is_relative_to(root):
                file, line = place, number
    # The project knows its modules without the prefix that keeps projects apart.
    message = re.sub(r"\bflow_project_\d+\.", "", error_message(error)).replace(f"{root}/", "")
    message += remedy_of(error)
    return {"type": type(error).__name__, "message": message, "file": str(file.relative_to(root)), "line": line}


def remedy_of(error: BaseException, form: str = " ({})") -> str:
    """Return which settings to change if the kernel refused project code something; empty if it did not.

    The text is for readers of logs and start messages; a model is told the error alone.
    """
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            break
        # Libraries in C, and urllib3, name the kernel's refusal only in the text of their errors.
        if isinstance(cause, PermissionError) or _NOT_PERMITTED in error_message(cause):
            return form.format(_REMEDY)
        cause = cause.__cause__ or cause.__context__
    return ""


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER)


_MAX_DEPTH = 24
"""Levels of nesting of a value; a value that contains itself exceeds any limit."""


class TooLarge(ValueError):
    """The value does not fit into the limit, or is nested too deeply."""


class _JsonConverter:
    """The conversion of one value to JSON data, which stops as soon as the data exceed `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def convert(self, value: object, depth: int = 0) -> JsonValue:
        # Every value has a size, also an empty one: a list of a million None is not small.
        self._spend(8)
        if value is None or isinstance(value, bool):
            return value
        if depth > _MAX_DEPTH:
            raise TooLarge("nested too deeply or containing itself")
        if isinstance(value, enum.Enum):
            return self.convert(value.value, depth + 1)
        if isinstance(value, (str, int, float)):
            return self._scalar(value)
        members = _members(value)
        if isinstance(members, Mapping):
            return {self._text(str(key)): self.convert(item, depth + 1) for key, item in members.items()}
        if members is not None:
            return [self.convert(item, depth + 1) for item in members]
        return self._text(_described(value))

    def _scalar(self, value: str | float) -> JsonValue:
        if isinstance(value, str):
            return self._text(value)
        # Subclasses of the plain types, such as a project's own `class Euros(float)`, become the plain types.
        if isinstance(value, float):
            # JSON has no infinity and no NaN (RFC 8259, section 6).
            return float(value) if math.isfinite(value) else None
        # An integer beyond 64 bits becomes text: the store and other programs' readers would drop digits.
        if -(2**63) <= value < 2**64:
            return int(value)
        if value.bit_length() > 8 * 1024:
            raise TooLarge(f"an integer of {value.bit_length()} bits")
        return str(value)

    def _text(self, text: str) -> str:
        self._spend(len(text))
        # A lone surrogate has no UTF-8 form.
        return str.__str__(text) if text.isascii() else text.encode("utf-8", "replace").decode()

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(f"more than {self._limit} bytes")


def _members(value: object) -> Mapping[object, object] | Iterable[object] | None:
    """Return the keys and values of an object with fields or the elements of a container; None for other values."""
    if isinstance(value, (Mapping, list, tuple)):
        return value
    if isinstance(value, Set):
        # A set's order differs from process to process; the JSON data must not.
        return sorted(value, key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        found: Mapping[object, object] = dump()
        return found
    return None


def _described(value: object) -> str:
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


@overload
def to_json(value: Mapping[str, object], limit: int) -> MutableJsonObject: ...
@overload
def to_json(value: object, limit: int) -> JsonValue: ...
def to_json(value: object, limit: int) -> object:
    """Return `value` as JSON data of at most about `limit` bytes. Raises `TooLarge`, and what its `__str__` raises."""
    return _JsonConverter(limit).convert(value)


def to_json_or_note(value: object, limit: int) -> JsonValue:
    """Return `value` as `to_json` does; a value that cannot be converted becomes a note that says why."""
    return contain(
        lambda: to_json(value, limit),
        lambda error: f"<{type(value).__name__}: {type(error).__name__}: {error_message(error)[:200]}>",
    )
