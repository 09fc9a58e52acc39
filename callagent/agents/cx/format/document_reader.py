"""Single documents of an app: objects, texts and code, with the errors that `check` reports by file and line.

`environment.json` of an export has the values that differ between installations: those of the app, of its tools and
toolsets, and the servers of their OpenAPI descriptions (`url`). Where the export has `$env_var`, the value at the same
path in `environment.json` is filled in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path, PurePosixPath

from callagent.agents.cx.format.app import Code
from callagent.agents.cx.format.files import AppFiles
from callagent.agents.kernel import Findings
from callagent.errors import ProjectError
from callagent.json_values import JsonObject, JsonValue, object_at


class CheckRule(str, Enum):  # noqa: UP042 - a member has a meaning beside its value
    """A rule of `check`: an identifier that never changes, and one line that explains it.

    Identifiers in brackets are those of the same rules in the platform's published linter (cxas-scrapi).
    """

    _value_: str
    meaning: str

    def __new__(cls, number: str, meaning: str) -> CheckRule:
        member = str.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    UNREADABLE = "CX001", "A file is missing, or is not valid JSON, YAML or UTF-8."
    SHAPE = "CX002", "A field has a type that the format does not allow for it."
    NO_SUCH_FILE = "CX003", "A field names a file that the app does not have."
    NO_SUCH_OBJECT = "CX004", "A field names an agent, tool, toolset or guardrail that the app does not have."
    TWO_PARENTS = "CX005", "An agent is the child of two agents."
    TOOL_KIND = "CX006", "A tool is of no kind, or of several kinds."
    VARIABLE = "CX007", "A variable has no name or an unknown type."
    PATTERN = "CX008", "A guardrail's pattern is not a regular expression."
    OPEN_SERVER = "CX009", "An OpenAPI schema leaves its server open, and environment.json does not name one."
    LIMIT = "CX010", "The app exceeds a limit of the platform."
    NO_EFFECT = "CX011", "A setting has no effect here."
    NOT_HERE = "CX012", "An agent, tool, toolset or guardrail of this kind does not work here."
    CLIENT_FUNCTION = (
        "CX013",
        "A client function or a widget works for clients of the Session API, but not on the telephone.",
    )
    AUTHENTICATION = "CX014", "Requests are sent without this kind of authentication."
    DEPLOYMENT = "CX015", "A version or deployment has an error and cannot be served."
    RECORDING_PATH = "CX016", "The app's recordings go to a local folder: their bucket is not written to."
    AWAY = "CX017", "A tool server does not answer: calls that open after its return have its tools."
    MODEL_SAFETY = "CX018", "`modelSafety` is enforced by Gemini's own models only."
    NOT_PYTHON = "CX020", "A file is not valid Python (C010, T010)."
    IMPORT = "CX021", "Python imports a module that an app may not import."
    NO_CALLBACK = "CX022", "A callback's file has no function of the callback's name (C001)."
    CALLBACK_ARGUMENTS = "CX023", "A callback has a parameter that it is not called with (C002)."
    KEYWORDS = "CX024", "A tool takes **kwargs (T009)."
    DEFAULT = "CX025", "A tool's argument has the default None, or one of another type than its hint (T011)."
    FAILS = "CX026", "A file's Python fails when it is run, which happens before the first call."
    ENDLESS = "CX027", "A file's Python does not end, or ends its process, when it is run."
    CAMEL_CASE = "CX028", "A function of a callback is named in camelCase; the platform expects snake_case (C003)."
    RETURNS_DICT = "CX029", "A model callback returns a dictionary in place of an LlmResponse (C004)."
    BARE_EXCEPT = "CX030", "A bare `except:` hides every failure (C006)."
    CALLED_TOOL = "CX031", "Code calls a tool that the app does not have (C007)."
    TYPING = "CX032", "A name of `typing` is not imported: it is available here, but not on the platform (C008)."
    ANNOTATION = "CX033", "A callback's argument is hinted as a class that its value does not have (C009)."
    BARE_PART = "CX034", "A part is made by `Part(text=…)`; the platform's way is `Part.from_text(…)`."
    NO_RETURN = "CX035", "A tool returns nothing: the model gets no result."
    NO_DOCSTRING = (
        "CX036",
        "A tool has neither docstring nor description: the model does not know its purpose (T002).",
    )
    NO_HINT = "CX037", "A tool's argument has no type hint (T003)."
    CONDITION = "CX040", "A condition of an instruction or a transfer rule is invalid."
    OTHER_TAG = "CX041", "A `{% … %}` tag is not a condition: the model sees it as it is written."
    TASKFLOW = "CX042", "A <taskflow> has neither <subtask> nor <step> (I002)."
    NEGATIVE_TRIGGER = "CX043", "A <trigger> is negated, which models misread (I004)."
    LONG_INSTRUCTION = "CX044", "An instruction is so long that callers wait for it (I007)."
    NO_SUCH_AGENT = "CX045", "An instruction names an agent that the app does not have (I008)."
    TOOL_NOT_GIVEN = "CX046", "An instruction names a tool that the agent does not have (I009, I013)."
    REFERENCE_SYNTAX = (
        "CX047",
        "An instruction writes a reference in another way than {@AGENT: …} or {@TOOL: …} (I010, I011).",
    )
    TOOL_NOT_NAMED = "CX048", "An instruction names other tools of the agent, but not this one (I012)."
    RECORDING = "CX050", "A recording that code plays is not in the app."


class DocumentReader:
    """A reader of documents that collects all errors in its findings instead of stopping at the first."""

    def __init__(self, files: AppFiles, findings: Findings, place: str = "") -> None:
        """`place`: the folder of the files in the export, with a slash at its end; empty: its root."""
        self.files = files
        self.findings = findings
        self.place = place

    def line(self, file: str, *words: str) -> int:
        """Return the line of a file that has the last of the words, in quotes or as a key.

        Each word is searched for from the line of the previous one, so the keys of a path lead to its value. A word
        that is not found leaves the line unchanged; the first line is 1.
        """
        lines = (self.files.text(file) or "").splitlines()
        at = 1
        for word in words:
            pattern = re.compile(rf'"{re.escape(word)}"|^\s*-?\s*{re.escape(word)}\s*(:|$)')
            at = next((number for number, line in enumerate(lines[at - 1 :], at) if pattern.search(line)), at)
        return at

    def error(self, rule: CheckRule, file: str, word: str, message: str) -> None:
        self.error_at(rule, file, self.line(file, word), message)

    def warning(self, rule: CheckRule, file: str, word: str, message: str) -> None:
        self.warning_at(rule, file, self.line(file, word), message)

    def error_at(self, rule: CheckRule, file: str, line: int, message: str) -> None:
        self.findings.error(self.place + file, line, message, rule.value)

    def warning_at(self, rule: CheckRule, file: str, line: int, message: str) -> None:
        self.findings.warning(self.place + file, line, message, rule.value)

    def folders(self, kind: str) -> list[tuple[str, str]]:
        """Return name and main file of each object of a kind, such as `agents`; report objects without a main file."""
        # Folders are known from the paths of files. A file directly in `agents/` is no object.
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

    def document(self, file: str) -> JsonObject | None:
        """Return the object in a JSON or YAML file; report an error and return None if it cannot be read."""
        data: JsonValue
        try:
            text = self.files.text(file) or ""
            data = json.loads(text) if file.endswith(".json") else parse_yaml(text)
        except json.JSONDecodeError as error:
            self.error_at(CheckRule.UNREADABLE, file, error.lineno, f"this is not valid JSON: {error.msg}")
            return None
        # Deep nesting raises RecursionError in either format.
        except (ValueError, RecursionError) as error:
            self.error_at(CheckRule.UNREADABLE, file, getattr(error, "line", 1), f"not valid: {error}")
            return None
        except ProjectError as error:
            self.error_at(CheckRule.UNREADABLE, file, 1, str(error))
            return None
        if not isinstance(data, dict):
            self.error_at(CheckRule.UNREADABLE, file, 1, f"'{file}' should hold an object with keys and values")
            return None
        return data

    def object_at(self, file: str, data: JsonObject, *keys: str) -> JsonObject:
        """Return the object under a path of keys, empty if there is none; report a value of another type."""
        found = data
        for depth, key in enumerate(keys, 1):
            value = found.get(key)
            if value and not isinstance(value, Mapping):
                message = f"'{key}' should be an object with keys and values"
                self.error_at(CheckRule.SHAPE, file, self.line(file, *keys[:depth]), message)
            found = value if isinstance(value, Mapping) else {}
        return found

    def text_at(self, file: str, data: JsonObject, key: str) -> str:
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
        # The format does not tell texts from names of files, so a text that looks like a path is taken for one.
        if value.endswith(".txt") and "\n" not in value:
            self.error(CheckRule.NO_SUCH_FILE, file, key, f"'{key}' names '{value}', which does not exist")
            return ""
        return value

    def code(self, file: str, value: JsonValue) -> Code | None:
        """Return the Python that a value holds or whose file it names; report an error and return None without any."""
        if not isinstance(value, str) or not value:
            self.error(CheckRule.SHAPE, file, "pythonCode", "'pythonCode' should name a Python file")
            return None
        found = self.files.text(value)
        if found is None and ("\n" in value or "def " in value):
            # Snapshots of versions have Python in place; its lines are counted within the text.
            return Code(file, value)
        if found is None:
            self.error(CheckRule.NO_SUCH_FILE, file, value, f"'pythonCode' names '{value}', which does not exist")
            return None
        return Code(value, found)

    def objects(self, file: str, data: JsonObject, key: str) -> list[JsonObject]:
        """Return a list of objects; report any other value as an error and return an empty list."""
        value = data.get(key) or []
        found = [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
        # One wrong item makes the list empty, because an incomplete list would cause further errors.
        if not isinstance(value, list) or len(found) < len(value):
            self.error(CheckRule.SHAPE, file, key, f"'{key}' should be a list of objects")
            return []
        return found

    def names(self, file: str, data: JsonObject, key: str) -> list[str]:
        """Return a list of names; report any other value as an error and return an empty list."""
        value = data.get(key) or []
        found = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
        if not isinstance(value, list) or len(found) < len(value):
            self.error(CheckRule.SHAPE, file, key, f"'{key}' should be a list of names")
            return []
        return found


def read_documents(files: AppFiles, kind: str) -> list[tuple[str, JsonObject]]:
    """Return main file and content of each object of a kind that agents do not refer to. Raises `ProjectError`."""
    findings = Findings()
    reader = DocumentReader(files, findings)
    found = [(file, reader.document(file)) for _, file in reader.folders(kind)]
    if findings.errors:
        raise ProjectError("\n".join(str(each) for each in findings.report().errors))
    return [(file, data) for file, data in found if data is not None]


class _NotYaml(ValueError):
    """A text is not valid YAML."""

    line = 1


def parse_yaml(text: str) -> JsonValue:
    """Return the value of a YAML 1.2 text. Raises ValueError with an attribute `line` if it is not valid."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        data: JsonValue = YAML(typ="safe", pure=True).load(text)
        return data
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # The library's own message has several lines and quotes the document.
        raised = _NotYaml((error.problem or str(error)).splitlines()[0])
        raised.line = mark.line + 1 if mark else 1
        raise raised from None
    except YAMLError as error:
        raise _NotYaml(str(error)) from None


def read_yaml_file(path: Path) -> JsonValue:
    """Return a YAML file's data. Raises `ProjectError` if it cannot be read or is not valid."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProjectError(f"{path.name}:{getattr(error, 'line', 1)}: the file cannot be read: {error}") from None


ENVIRONMENT_FILE = "environment.json"
ENVIRONMENT_PLACEHOLDER = "$env_var"


class Environment:
    """The values of `environment.json`."""

    def __init__(self, data: JsonObject) -> None:
        self._data = data

    def app(self, data: JsonObject) -> JsonObject:
        """Return the app's main file with the values filled in."""
        return _fill_in(data, self._data.get("app"))

    def object(self, kind: str, name: str, data: JsonObject) -> JsonObject:
        """Return a tool or toolset with its values filled in, which are under its folder's or its display name."""
        known = object_at(self._data, kind)
        return _fill_in(data, known.get(name) or known.get(str(data.get("displayName"))))


def with_server(schema: str, own: JsonObject) -> str:
    """Return the text of an OpenAPI description with the server of its tool or toolset filled in."""
    url = own.get("url")
    return (
        schema.replace(ENVIRONMENT_PLACEHOLDER, url)
        if isinstance(url, str) and url != ENVIRONMENT_PLACEHOLDER
        else schema
    )


def _fill_in(data: JsonObject, values: JsonValue) -> JsonObject:
    """Return the data with missing values and placeholders filled in; other values of the export stay."""
    if not isinstance(values, Mapping):
        return data
    filled = dict(data)
    for key, value in values.items():
        exported = filled.get(key)
        if isinstance(exported, Mapping) and isinstance(value, Mapping):
            filled[key] = _fill_in(exported, value)
        # `environment.json` completes the export and does not override it.
        elif exported is None or exported == ENVIRONMENT_PLACEHOLDER:
            filled[key] = value
    return filled
