"""Documents of a project with the line of every key, typed access to their values, and the findings of a check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from callagent.json_values import JsonObject

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

DocumentPath = tuple[str | int, ...]
"""Keys and list indices from the top of a document down to a value."""
TEXT = "\0text"
"""The last element of the path under which `Document.lines` has the first line of a text. It cannot be a YAML key."""
Kind = TypeVar("Kind")
_MAX_LINES = 200_000
"""Keys and texts of one document whose line numbers are noted; aliases can make more of them than a text could."""
_CONFLICT_MARKER = re.compile(r"^(<{7} |={7}$|>{7} )", re.MULTILINE)
_TYPE_NAMES = {str: "str", bool: "bool", int: "int", float: "float", list: "list", dict: "dict", type(None): "None"}

SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A secret's name is the name of its file: no separator, no leading dot."""


def clean_name(name: str) -> str:
    """Return the file or folder name of an object of a project: lower case, words joined by `_`."""
    words = re.sub(r"[^\w\s]", " ", name.lower())
    return re.sub(r"_+", "_", re.sub(r"\s+", "_", words)).strip("_")


def tool_name(prefix: str, name: str) -> str:
    """Return a name for a tool that every provider of language models takes: `[A-Za-z0-9_-]`, at most 64 characters."""
    ascii_only = re.sub(r"[^A-Za-z0-9_-]+", "_", clean_name(name)).strip("_")
    return f"{prefix}_{ascii_only}"[:64]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One fault of a project: where it is, what it is, and what to do about it."""

    file: str
    """Relative to the project folder, with forward slashes."""
    line: int
    """From 1."""
    message: str
    rule: str = ""
    """Stable identifier of the kind of finding; empty: this project format has none."""

    def __str__(self) -> str:
        rule = f"[{self.rule}] " if self.rule else ""
        return f"{self.file}:{self.line}: {rule}{self.message}"

    def as_json(self) -> JsonObject:
        rule = {"rule": self.rule} if self.rule else {}
        return {"file": self.file, "line": self.line, **rule, "message": self.message}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `callagent check`."""

    errors: Sequence[Finding]
    warnings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        return not self.errors

    def as_json(self) -> JsonObject:
        return {
            "errors": [each.as_json() for each in self.errors],
            "warnings": [each.as_json() for each in self.warnings],
        }


@dataclass(slots=True)
class Findings:
    """The findings collected while a project is read. Nothing is raised, so that one run reports everything."""

    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    _unreadable: set[str] = field(default_factory=set)

    def unreadable(self, file: str, line: int, message: str) -> None:
        """Report that a file cannot be read; its other errors are consequences and are dropped."""
        self._unreadable.add(file)
        self.errors = [each for each in self.errors if each.file != file]
        self.errors.append(Finding(file, line, message))

    def error(self, file: str, line: int, message: str, rule: str = "") -> None:
        if file in self._unreadable:
            return
        self.errors.append(Finding(file, line, message, rule))

    def warning(self, file: str, line: int, message: str, rule: str = "") -> None:
        self.warnings.append(Finding(file, line, message, rule))

    def report(self) -> CheckReport:
        """Return all findings, sorted by place; a finding that was added twice stands in the report once."""
        return CheckReport(tuple(sorted(set(self.errors))), tuple(sorted(set(self.warnings))))


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file with the lines of its keys and texts."""

    file: str
    data: object
    """The file's value as the YAML reader made it: JSON data, and dates where the file has some."""
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
        if isinstance(self.data, dict):
            return Reader(self, (), self.data)
        if self.data is not None:
            self.findings.error(self.file, 1, f"'{self.file}' should be dict but got {type_name(self.data)}.")
        return Reader(Document(self.file, {}, {}, self.findings), (), {})


def type_name(value: object) -> str:
    """Return the name of a value's type for messages to project authors."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


@dataclass(frozen=True, slots=True)
class Reader:
    """Typed access to one map of a document. A value of the wrong type is reported and read as its default."""

    document: Document
    path: DocumentPath
    """Where the map stands in the document."""
    _data: Mapping[str, object]

    def __contains__(self, key: str) -> bool:
        # `key:` without a value is null in YAML; project authors mean that the key is not set.
        return self._data.get(key) is not None

    def names(self) -> Iterator[str]:
        """Yield the keys of the map, also those whose values are null."""
        return (str(key) for key in self._data)

    def raw(self, key: str) -> object:
        """Return the value under `key` as the YAML reader made it, whatever its type; None where there is none."""
        return self._data.get(key)

    def line(self, key: str | None = None) -> int:
        """Return the line of `key`, or without one the line of the map itself."""
        return self.document.line(self.path if key is None else (*self.path, key))

    def text_line(self, key: str) -> int:
        """Return the line on which the text under `key` begins."""
        return self.document.line((*self.path, key, TEXT))

    def error(self, message: str, key: str | None = None) -> None:
        """Report an error at the line of `key`, or without one at the line of the map."""
        self.document.findings.error(self.document.file, self.line(key), message)

    def warning(self, message: str, key: str | None = None) -> None:
        """Report a warning at the line of `key`, or without one at the line of the map."""
        self.document.findings.warning(self.document.file, self.line(key), message)

    def text(self, key: str, default: str = "") -> str:
        """Return the string under `key`."""
        value = self._typed(key, str, "str")
        return default if value is None else value

    def required_text(self, key: str) -> str:
        """Return the string under `key`, and report an error where it is missing or empty."""
        value = self.text(key)
        # A map or list in its place has been reported already, as being of the wrong type.
        if not value and not isinstance(self._data.get(key), (dict, list)):
            self.error(f"'{self._name(key)}' is required and cannot be empty.", key)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the truth value under `key`."""
        value = self._typed(key, bool, "bool")
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return the number under `key`."""
        value = self._data.get(key)
        if value is None:
            return default
        # In Python true and false are whole numbers; in a document they are not.
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        self._report_type(key, "float", value)
        return default

    def map(self, key: str) -> Reader:
        """Return the map under `key`; an empty one where there is none."""
        value = self._typed(key, dict, "dict")
        if value is None:
            # The empty map stands at the line of `key`, so that errors about what is missing in it are placed there.
            empty = Document(self.document.file, {}, {(): self.line(key)}, self.document.findings)
            return Reader(empty, (), {})
        return Reader(self.document, (*self.path, key), value)

    def maps(self, key: str) -> list[Reader]:
        """Return the maps of the list under `key`; each item that is no map is reported."""
        found = []
        for index, item in enumerate(self._list(key)):
            if isinstance(item, dict):
                found.append(Reader(self.document, (*self.path, key, index), item))
            else:
                self._report_type(key, "list[dict]", item, index)
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the strings of the list under `key`; numbers are taken as text."""
        found = []
        for index, item in enumerate(self._list(key)):
            if isinstance(item, (dict, list)) or item is None:
                self._report_type(key, "list[str]", item, index)
            else:
                found.append(str(item))
        return tuple(found)

    def _list(self, key: str) -> list[object]:
        return self._typed(key, list, "list") or []

    def _typed(self, key: str, kind: type[Kind], wanted: str) -> Kind | None:
        """Return the value under `key` if it is of this type; None, after reporting an error, where it is not."""
        value = self._data.get(key)
        if value is None or isinstance(value, kind):
            return value
        self._report_type(key, wanted, value)
        return None

    def _report_type(self, key: str, wanted: str, value: object, index: int | None = None) -> None:
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
    # A line of `=======` alone may underline a heading; only all three markers together are a conflict.
    conflict = _CONFLICT_MARKER.search(text)
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
    """Parse YAML 1.2 with the safe loader and note the line of every key; None, with an error, when it is not valid.

    White space around texts is removed.
    """
    try:
        data, lines = compose_yaml(text)
    except InvalidYaml as error:
        findings.unreadable(file, error.line, str(error))
        return None
    return Document(file, _stripped(data), lines, findings)


class InvalidYaml(ValueError):
    """A text is not valid YAML."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"Not valid YAML: {problem}.")
        self.line = line


def compose_yaml(
    text: str, version: str | None = None, prepare: Callable[[Node], None] | None = None
) -> tuple[object, dict[DocumentPath, int]]:
    """Return the value of a YAML text as the safe loader makes it, and the line of every key. Raises `InvalidYaml`.

    Args:
        text: the text of one document.
        version: the version of YAML; None: 1.2.
        prepare: called with the top node; may change the nodes before they are converted to values.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    if version is not None:
        yaml.version = version
    lines: dict[DocumentPath, int] = {(): 1}
    try:
        # Two steps instead of `load()`, because only the nodes have line numbers; the constructed values do not.
        node = yaml.compose(text)
        if node is None:
            return None, lines
        if prepare is not None:
            prepare(node)
        _note_lines(node, (), (), lines)
        return yaml.constructor.construct_document(node), lines
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or str(error)).splitlines()[0]
        raise InvalidYaml(mark.line + 1 if mark else 1, problem) from None
    except InvalidYaml:
        raise
    except (YAMLError, ValueError) as error:
        raise InvalidYaml(1, str(error)) from None
    except RecursionError:
        raise InvalidYaml(1, "it is nested too deep") from None


def _note_lines(node: Node, path: DocumentPath, ancestors: tuple[Node, ...], lines: dict[DocumentPath, int]) -> None:
    if not isinstance(node.value, list):
        # The text of a block (`|` or `>`) begins on the line below its marker.
        is_block = getattr(node, "style", None) in ("|", ">")
        lines[(*path, TEXT)] = node.start_mark.line + (2 if is_block else 1)
        return
    # Compared by identity: a value that contains itself would make every walk over it endless.
    if any(node is each for each in ancestors):
        raise InvalidYaml(node.start_mark.line + 1, "an alias refers to the map or list that it stands in")
    # Past this number no lines are noted; a finding then names the line of the nearest ancestor.
    if len(lines) > _MAX_LINES:
        return
    for index, item in enumerate(node.value):
        key, value = item if isinstance(item, tuple) else (None, item)
        place: DocumentPath = (*path, index if key is None else str(key.value))
        lines[place] = (value if key is None else key).start_mark.line + 1
        _note_lines(value, place, (*ancestors, node), lines)


def _stripped(value: object) -> object:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict):
        return {str(key): _stripped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value
