"""YAML documents of a project with the line of every key, and typed access to their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callagent.agents.kernel.findings import Findings

DocumentPath = tuple[str | int, ...]
TEXT = "\0text"
_MAX_DEPTH = 20
"""Levels of a document whose lines are noted: an alias may point at a map that contains it."""
_CONFLICT = re.compile(r"^(<{7} |={7}$|>{7} )", re.MULTILINE)
_TYPE_NAMES = {str: "str", bool: "bool", int: "int", float: "float", list: "list", dict: "dict", type(None): "None"}


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file and where its keys and texts stand."""

    file: str
    data: Any
    lines: Mapping[DocumentPath, int]
    """The line of each key; under `(*path, TEXT)` the line on which a text begins."""
    findings: Findings

    def line(self, path: DocumentPath = ()) -> int:
        """Return the line of `path`, or of its nearest ancestor that exists."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def root(self) -> Reader:
        """Return the top-level map; an empty one, with an error, when the file holds something else."""
        return Reader(self, ()) if isinstance(self.data, dict) else Reader(self._not_a_map(), ())

    def _not_a_map(self) -> Document:
        if self.data is not None:
            self.findings.error(self.file, 1, f"'{self.file}' should be dict but got {type_name(self.data)}.")
        return Document(self.file, {}, {}, self.findings)


def type_name(value: Any) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)


@dataclass(frozen=True, slots=True)
class Reader:
    """Typed access to one map of a document. A value of the wrong type is reported and read as its default."""

    document: Document
    path: DocumentPath
    _data: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        value = self.document.data
        for key in self.path:
            value = value[key]
        object.__setattr__(self, "_data", value)

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def names(self) -> Iterator[str]:
        return (str(key) for key in self._data)

    def raw(self, key: str) -> Any:
        return self._data.get(key)

    def line(self, key: str | None = None) -> int:
        return self.document.line(self.path if key is None else (*self.path, key))

    def text_line(self, key: str) -> int:
        """Return the line on which the text under `key` begins."""
        return self.document.line((*self.path, key, TEXT))

    def error(self, message: str, key: str | None = None) -> None:
        self.document.findings.error(self.document.file, self.line(key), message)

    def warning(self, message: str, key: str | None = None) -> None:
        self.document.findings.warning(self.document.file, self.line(key), message)

    def text(self, key: str, default: str = "") -> str:
        value = self._typed(key, (str,), "str", default)
        return str(value)

    def required_text(self, key: str) -> str:
        value = self.text(key)
        if not value and not isinstance(self._data.get(key), (dict, list)):
            self.error(f"'{self._name(key)}' is required and cannot be empty.", key)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._typed(key, (bool,), "bool", default))

    def number(self, key: str, default: float | None = None) -> float | None:
        value = self._typed(key, (int, float), "float", default)
        if isinstance(value, bool):
            self._wrong_type(key, "float", value)
            return default
        return None if value is None else float(value)

    def map(self, key: str) -> Reader:
        """Return the map under `key`; an empty one where there is none."""
        value = self._typed(key, (dict,), "dict", None)
        if value is None:
            return Reader(Document(self.document.file, {}, {(): self.line(key)}, self.document.findings), ())
        return Reader(self.document, (*self.path, key))

    def maps(self, key: str) -> list[Reader]:
        """Return the list of maps under `key`."""
        found = []
        for index, item in enumerate(self._list(key)):
            if isinstance(item, dict):
                found.append(Reader(self.document, (*self.path, key, index)))
            else:
                self._wrong_type(key, "list[dict]", item, index)
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the list of strings under `key`; numbers are taken as text."""
        found = []
        for index, item in enumerate(self._list(key)):
            if isinstance(item, (dict, list)) or item is None:
                self._wrong_type(key, "list[str]", item, index)
            else:
                found.append(str(item))
        return tuple(found)

    def _list(self, key: str) -> list[Any]:
        value = self._typed(key, (list,), "list", [])
        return list(value)

    def _typed(self, key: str, types: tuple[type, ...], wanted: str, default: Any) -> Any:
        value = self._data.get(key)
        if value is None:
            return default
        if isinstance(value, types):
            return value
        self._wrong_type(key, wanted, value)
        return default

    def _wrong_type(self, key: str, wanted: str, value: Any, index: int | None = None) -> None:
        name = self._name(key) + ("" if index is None else f".{index}")
        self.error(f"'{name}' should be {wanted} but got {type_name(value)}.", key)

    def _name(self, key: str) -> str:
        return ".".join(str(part) for part in (*self.path, key))


def read_text(root: Path, file: str, findings: Findings) -> str | None:
    """Return a file's text without byte order mark and with plain line ends; None where there is no such file."""
    try:
        text = (root / file).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        findings.unreadable(file, 1, f"The file cannot be read: {error}. Save it as UTF-8.")
        return None
    text = text.replace("\r\n", "\n")
    conflict = _CONFLICT.search(text)
    if conflict and "<<<<<<< " in text and ">>>>>>> " in text:
        line = text.count("\n", 0, conflict.start()) + 1
        findings.unreadable(file, line, "The file holds merge conflict markers. Resolve the conflict.")
        return None
    return text


def read_yaml(root: Path, file: str, findings: Findings) -> Document | None:
    """Read a YAML 1.2 file with the safe loader; None where it does not exist or is not valid."""
    text = read_text(root, file, findings)
    return None if text is None else parse_yaml(text, file, findings)


def parse_yaml(text: str, file: str, findings: Findings) -> Document | None:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        data = None if node is None else yaml.constructor.construct_document(node)
    except (YAMLError, ValueError) as error:
        findings.unreadable(file, *yaml_problem(error))
        return None
    lines: dict[DocumentPath, int] = {(): 1}
    if node is not None:
        _note_lines(node, (), lines)
    return Document(file, _stripped(data), lines, findings)


def yaml_problem(error: Any) -> tuple[int, str]:
    """Return the line of a YAML error, and what is wrong there."""
    if not hasattr(error, "problem_mark"):
        return 1, f"Not valid YAML: {error}."
    mark = error.problem_mark or error.context_mark
    problem = (error.problem or str(error)).splitlines()[0]
    return (mark.line + 1 if mark else 1), f"Not valid YAML: {problem}."


def _note_lines(node: Any, path: DocumentPath, lines: dict[DocumentPath, int]) -> None:
    if not isinstance(node.value, list):
        is_block = getattr(node, "style", None) in ("|", ">")
        lines[(*path, TEXT)] = node.start_mark.line + (2 if is_block else 1)
        return
    if len(path) > _MAX_DEPTH:
        return
    for index, item in enumerate(node.value):
        key, value = item if isinstance(item, tuple) else (None, item)
        place: DocumentPath = (*path, index if key is None else str(key.value))
        lines[place] = (value if key is None else key).start_mark.line + 1
        _note_lines(value, place, lines)


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict):
        return {str(key): _stripped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value
