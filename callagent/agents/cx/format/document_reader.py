"""Reads single documents of an app: objects, texts and code, with the file and line of whatever is wrong.

`environment.json` of an export holds what differs from place to place: values of the app, its tools and toolsets, and
the servers of their OpenAPI descriptions (`url`). Wherever the export has `$env_var`, the value of the same place is
filled in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from callagent.agents.cx.format.app import Code
from callagent.agents.cx.format.check_rules import CheckRule
from callagent.agents.cx.format.files import AppFiles
from callagent.agents.kernel import Findings
from callagent.errors import ProjectError


class DocumentReader:
    """Reads documents and notes what is wrong in its findings, so that one run reports everything."""

    def __init__(self, files: AppFiles, findings: Findings, place: str = "") -> None:
        """`place`: the folder in which the files lie in the export, with a slash at its end; empty: its root."""
        self.files = files
        self.findings = findings
        self.place = place

    def line(self, file: str, word: str) -> int:
        """Return the first line of a file that has the word in quotes or as a key; 1: there is none."""
        text = self.files.text(file) or ""
        pattern = re.compile(rf'"{re.escape(word)}"|^\s*-?\s*{re.escape(word)}\s*(:|$)')
        return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)), 1)

    def error(self, rule: CheckRule, file: str, word: str, message: str) -> None:
        self.error_at(rule, file, self.line(file, word), message)

    def warning(self, rule: CheckRule, file: str, word: str, message: str) -> None:
        self.warning_at(rule, file, self.line(file, word), message)

    def error_at(self, rule: CheckRule, file: str, line: int, message: str) -> None:
        self.findings.error(self.place + file, line, message, rule.value)

    def warning_at(self, rule: CheckRule, file: str, line: int, message: str) -> None:
        self.findings.warning(self.place + file, line, message, rule.value)

    def folders(self, kind: str) -> list[tuple[str, str]]:
        """Return name and main file of each object of a kind, such as `agents`; one without a main file is an error."""
        names = {parts[1] for path in self.files.contents if (parts := PurePosixPath(path).parts)[0] == kind
                 and len(parts) > 2}  # fmt: skip
        found = []
        for name in sorted(names):
            files = [f"{kind}/{name}/{name}.{ending}" for ending in ("json", "yaml", "yml")]
            file = next((each for each in files if each in self.files.contents), None)
            if file is None:
                self.error_at(
                    CheckRule.UNREADABLE,
                    f"{kind}/{name}",
                    1,
                    f"{files[0]} is missing: each folder in {kind}/ has a main file of its own name",
                )
            else:
                found.append((name, file))
        return found

    def document(self, file: str) -> dict[str, Any] | None:
        """Read a JSON or YAML object; None, with an error: it cannot be read."""
        try:
            text = self.files.text(file) or ""
            data = json.loads(text) if file.endswith(".json") else parse_yaml(text)
        except json.JSONDecodeError as error:
            self.error_at(CheckRule.UNREADABLE, file, error.lineno, f"this is not valid JSON: {error.msg}")
            return None
        except (ValueError, RecursionError) as error:
            self.error_at(CheckRule.UNREADABLE, file, getattr(error, "line", 1), f"not valid: {error}")
            return None
        except ProjectError as error:
            self.error_at(CheckRule.UNREADABLE, file, 1, str(error))
            return None
        if not isinstance(data, dict):
            self.error_at(CheckRule.UNREADABLE, file, 1, "should be an object")
            return None
        return data

    def text_at(self, file: str, data: Mapping[str, Any], key: str) -> str:
        """Return a text that is written in place or in the file that it names."""
        value = data.get(key)
        if not value:
            return ""
        if not isinstance(value, str):
            self.error(CheckRule.SHAPE, file, key, f"'{key}' should be a text or the path of a text file")
            return ""
        found = self.files.text(value)
        if found is not None:
            return found
        if value.endswith(".txt") and "\n" not in value:
            self.error(CheckRule.NO_SUCH_FILE, file, key, f"'{key}' names '{value}', which does not exist")
            return ""
        return value

    def code(self, file: str, value: Any) -> Code | None:
        """Return Python written in place or in the file that it names; None, with an error: there is none."""
        if not isinstance(value, str) or not value:
            self.error(CheckRule.SHAPE, file, "pythonCode", "'pythonCode' should name a Python file")
            return None
        found = self.files.text(value)
        if found is None and ("\n" in value or "def " in value):
            return Code(file, value)
        if found is None:
            self.error(CheckRule.NO_SUCH_FILE, file, value, f"'pythonCode' names '{value}', which does not exist")
            return None
        return Code(value, found)

    def objects(self, file: str, data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        """Return a list of objects; empty, with an error: the value is something else."""
        value = data.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.error(CheckRule.SHAPE, file, key, f"'{key}' should be a list of objects")
            return []
        return value

    def names(self, file: str, data: Mapping[str, Any], key: str) -> list[str]:
        """Return a list of names; empty, with an error: the value is something else."""
        value = data.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self.error(CheckRule.SHAPE, file, key, f"'{key}' should be a list of names")
            return []
        return value


def read_documents(files: AppFiles, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Return main file and content of each object of a kind that no agent needs. Raises `ProjectError`."""
    findings = Findings()
    reader = DocumentReader(files, findings)
    found = [(file, reader.document(file)) for _, file in reader.folders(kind)]
    if findings.errors:
        raise ProjectError("\n".join(str(each) for each in findings.report().errors))
    return [(file, data) for file, data in found if data is not None]


class _NotYaml(ValueError):
    line = 1


def parse_yaml(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raised = _NotYaml((error.problem or str(error)).splitlines()[0])
        raised.line = mark.line + 1 if mark else 1
        raise raised from None
    except YAMLError as error:
        raise _NotYaml(str(error)) from None


ENVIRONMENT_FILE = "environment.json"
PLACEHOLDER = "$env_var"


class Environment:
    """The values of `environment.json`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def app(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the app's main file with the values filled in."""
        return _filled(data, self._data.get("app"))

    def object(self, kind: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return a tool or toolset with the values filled in; they are found by its folder or display name."""
        own = self._data.get(kind)
        known = own if isinstance(own, Mapping) else {}
        return _filled(data, known.get(name) or known.get(str(data.get("displayName"))))


def with_server(schema: str, own: Mapping[str, Any]) -> str:
    """Return the text of an OpenAPI description with the server of its tool or toolset filled in."""
    url = own.get("url")
    return schema.replace(PLACEHOLDER, url) if isinstance(url, str) and url != PLACEHOLDER else schema


def _filled(data: dict[str, Any], values: Any) -> dict[str, Any]:
    """Fill in what is missing or left open; values that the export has stay."""
    if not isinstance(values, Mapping):
        return data
    filled = dict(data)
    for key, value in values.items():
        had = filled.get(key)
        if isinstance(had, dict) and isinstance(value, Mapping):
            filled[key] = _filled(had, value)
        elif had is None or had == PLACEHOLDER:
            filled[key] = value
    return filled
