"""The reader of an agent-config project's YAML files, which reports every error in them with its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from callagent.agents.adk import config_keys as keys
from callagent.agents.kernel import Document, DocumentPath, Findings, InvalidYaml, compose_yaml, type_name

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

ROOT_FILE = "root_agent.yaml"
_AGENT_TOOL_KEYS = ("agent", "skip_summarization", "include_plugins")
MAX_AGENT_DEPTH = 30
"""Agents between the root and a leaf; a deeper tree is reported as a circle."""


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """One item of an agent's `tools`."""

    name: str
    args: Mapping[str, object] | None
    agent: AgentConfig | str | None
    """`AgentTool`: the agent of a file, or a dotted path to one."""
    line: int


@dataclass(frozen=True, slots=True)
class CodeReference:
    """A dotted path into the project. With arguments it names a function, and the function's result is used."""

    path: str
    arguments: tuple[tuple[str | None, object], ...] = ()
    """Names and values; a name of None means by position."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """One agent as its YAML file declares it."""

    file: str
    """Relative to the project folder."""
    kind: str
    """`llm`, `sequential`, `loop`, `parallel`, or `code`: a class of the project."""
    agent_class: str
    data: Mapping[str, object]
    """The file's keys and values, unchanged."""
    lines: Mapping[DocumentPath, int]
    """The line of each key."""
    children: tuple[AgentConfig | str, ...] = ()
    """`sub_agents`: agents of files, and dotted paths."""
    code: Mapping[str, tuple[CodeReference, ...]] = field(default_factory=dict)
    """The references to project code by key: callbacks, `model_code`, schemas."""
    tools: tuple[ToolConfig, ...] = ()

    @property
    def name(self) -> str:
        return str(self.data.get("name") or "")

    def line(self, *path: str | int) -> int:
        """Return the line of a key, or of the nearest key around it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def is_adk_project(path: Path) -> bool:
    """Return whether a folder looks like an agent-config project."""
    return (path / ROOT_FILE).is_file()


def load_config(project: Path, findings: Findings) -> AgentConfig | None:
    """Read the root agent and every agent that it refers to by file; none of the project's Python is run."""
    root = _Loader(project.resolve(), findings).load_agent(ROOT_FILE, ())
    if root is not None:
        _check_names(root, findings, {})
    return root


class _Loader:
    """Reads the files of a project, following references from one to the next."""

    def __init__(self, project: Path, findings: Findings) -> None:
        self._project = project
        self._findings = findings

    def load_agent(self, file: str, ancestors: tuple[str, ...]) -> AgentConfig | None:
        """Read the agent of a file; `ancestors` are the files on the way from the root to it."""
        # A file may be used twice in a tree, but not below itself.
        if file in ancestors or len(ancestors) > MAX_AGENT_DEPTH:
            circle = " → ".join((*ancestors, file))
            self._findings.error(file, 1, f"The agents refer to each other in a circle: {circle}.")
            return None
        document = self._read(file)
        return None if document is None else _AgentReader(self, document, (*ancestors, file)).read()

    def resolve(self, file: str, reference: str) -> tuple[str, str]:
        """Return the file that a `config_path` in `file` names, and an error's text: one of the two is empty."""
        # A path may be written as on Windows; the checks below have to see its parts.
        path = reference.replace("\\", "/")
        if PurePosixPath(path).is_absolute() or PureWindowsPath(reference).is_absolute():
            return "", f"'{reference}' is an absolute path; a path relative to this file is needed"
        # `resolve` follows symbolic links, so that no link leads out of the folder either.
        folder = (self._project / file).parent.resolve()
        target = (folder / path).resolve()
        if not target.is_relative_to(folder):
            return "", f"'{reference}' leads out of the folder of this file"
        if not target.is_file():
            return "", f"there is no file '{reference}'"
        return target.relative_to(self._project).as_posix(), ""

    @property
    def findings(self) -> Findings:
        return self._findings

    @property
    def package(self) -> str:
        return self._project.name

    def _read(self, file: str) -> Document | None:
        try:
            text = (self._project / file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            self._findings.error(file, 1, f"The file cannot be read: {error}.")
            return None
        # An empty file is valid YAML, whose value is null.
        document = parse_yaml(text, file, self._findings)
        if document is not None and not isinstance(document.data, dict):
            kind = "empty" if document.data is None else type_name(document.data)
            self._findings.error(file, 1, f"A map with the keys of an agent is needed, but the file is {kind}.")
            return None
        return document


class _AgentReader:
    """Reads the agent of one file and notes every error in it."""

    def __init__(self, loader: _Loader, document: Document, files: tuple[str, ...]) -> None:
        self._loader = loader
        self._document = document
        self._files = files
        self._data: Mapping[str, object] = document.data if isinstance(document.data, dict) else {}
        self._agent_class = str(self._data.get("agent_class") or "LlmAgent")
        self._kind = keys.agent_kind(self._agent_class)

    def read(self) -> AgentConfig:
        """Return the agent and note every error; a wrong value is left out or read as its default."""
        self._check_keys()
        self._check_values()
        return AgentConfig(
            file=self._document.file,
            kind=self._kind,
            agent_class=self._agent_class,
            data=self._data,
            lines=self._document.lines,
            children=tuple(self._sub_agents()),
            code={key: tuple(self._code_references(key)) for key in keys.CODE_KEYS if self._data.get(key)},
            # The project's own class may give `tools` another meaning: items that do not look like tools are no error.
            tools=tuple(self._tools()) if self._kind == "llm" or self._has_tools() else (),
        )

    def _error(self, path: DocumentPath, message: str) -> None:
        key = ".".join(str(part) for part in path)
        place = f"'{key}': " if key else ""
        self._loader.findings.error(self._document.file, self._document.line(path), f"{place}{message}.")

    def _check_keys(self) -> None:
        if self._kind == "code":
            # The class decides which keys it takes, and it is not imported here: only the reference to it is checked.
            problem = keys.reference_problem(self._agent_class, self._loader.package)
            if problem:
                self._error(("agent_class",), problem)
            return
        known = keys.COMMON_KEYS | keys.KEYS[self._kind]
        for key in self._data:
            if key in known:
                continue
            # A key that another kind of agent has is no misspelling, and gets no suggestion.
            if key in keys.LLM_KEYS:
                self._error((key,), f"a {self._agent_class} has no such key")
            else:
                self._error((key,), f"there is no such key{keys.suggest(key, known)}")

    def _check_values(self) -> None:
        checks = keys.COMMON_KEYS | keys.KEYS[self._kind]
        for key, value in self._data.items():
            if key in checks and (problem := checks[key](value)):
                self._error((key,), problem)
        # The checks above are for keys that are present; the next two keys must be.
        if "name" not in self._data:
            self._error((), "the key 'name' is missing")
        if self._kind == "llm":
            if "instruction" not in self._data:
                self._error((), "the key 'instruction' is missing")
            if self._data.get("model") and self._data.get("model_code"):
                self._error(("model_code",), "'model' is set too; only one of the two is allowed")
            for path, problem in keys.check_generation(self._data.get("generate_content_config")):
                self._error(("generate_content_config", *path), problem)

    def _sub_agents(self) -> list[AgentConfig | str]:
        found = []
        for index, item in enumerate(_list(self._data.get("sub_agents"))):
            reference = self._agent_reference(item, ("sub_agents", index))
            if reference is not None:
                found.append(reference)
        return found

    def _agent_reference(self, item: object, path: DocumentPath) -> AgentConfig | str | None:
        if not isinstance(item, dict):
            self._error(path, f"a map with 'config_path' or 'code' is needed but got {type_name(item)}")
            return None
        for key in item:
            if key not in ("config_path", "code"):
                self._error((*path, key), "there is no such key; the keys are 'config_path' and 'code'")
        file, code = item.get("config_path"), item.get("code")
        if (file is None) == (code is None):
            self._error(path, "exactly one of 'config_path' and 'code' is needed")
            return None
        if code is not None:
            return self._dotted_path(code, (*path, "code"))
        return self._agent_of_file(file, (*path, "config_path"))

    def _agent_of_file(self, reference: object, path: DocumentPath) -> AgentConfig | None:
        if not isinstance(reference, str):
            self._error(path, f"a path is needed but got {type_name(reference)}")
            return None
        target, problem = self._loader.resolve(self._document.file, reference)
        if problem:
            self._error(path, problem)
            return None
        return self._loader.load_agent(target, self._files)

    def _code_references(self, key: str) -> list[CodeReference]:
        value = self._data.get(key)
        # Callbacks are lists of references; `model_code` and the schemas are one reference each.
        if isinstance(value, dict):
            items: list[tuple[object, DocumentPath]] = [(value, (key,))]
        else:
            items = [(item, (key, index)) for index, item in enumerate(_list(value))]
        return [found for item, path in items if (found := self._code_reference(item, path))]

    def _code_reference(self, item: object, path: DocumentPath) -> CodeReference | None:
        """Read `{name}`; older files have `args` beside it: a list of `{name, value}` whose names may be missing."""
        if not isinstance(item, dict):
            self._error(path, f"a map with 'name' is needed but got {type_name(item)}")
            return None
        for key in item:
            if key not in ("name", "args"):
                self._error((*path, key), f"there is no such key{keys.suggest(key, ['name', 'args'])}")
        args = item.get("args") or []
        if not isinstance(args, list) or not all(isinstance(each, dict) and "value" in each for each in args):
            self._error((*path, "args"), "a list of maps is needed, each with 'value' and optionally 'name'")
            return None
        name = self._dotted_path(item.get("name"), (*path, "name"))
        return None if name is None else CodeReference(name, tuple((each.get("name"), each["value"]) for each in args))

    def _dotted_path(self, name: object, path: DocumentPath) -> str | None:
        if not isinstance(name, str):
            self._error(path, f"a dotted path is needed but got {type_name(name)}")
            return None
        problem = keys.reference_problem(name, self._loader.package)
        if problem:
            self._error(path, problem)
            return None
        return name

    def _has_tools(self) -> bool:
        """Return whether all items of `tools` look like an LlmAgent's; the project's own class may derive from it."""
        tools = _list(self._data.get("tools"))
        return all(isinstance(each, dict) and {"name"} <= each.keys() <= {"name", "args"} for each in tools)

    def _tools(self) -> list[ToolConfig]:
        found = []
        for index, item in enumerate(_list(self._data.get("tools"))):
            tool = self._tool(item, ("tools", index))
            if tool is not None:
                found.append(tool)
        return found

    def _tool(self, item: object, path: DocumentPath) -> ToolConfig | None:
        if not isinstance(item, dict):
            self._error(path, f"a map with 'name' is needed but got {type_name(item)}")
            return None
        for key in item:
            if key not in ("name", "args"):
                self._error((*path, key), f"there is no such key{keys.suggest(key, ['name', 'args'])}")
        name, args = item.get("name"), self._arguments(item.get("args"), (*path, "args"))
        if not isinstance(name, str) or not name:
            self._error((*path, "name"), "the name of a tool is needed")
            return None
        # A name without a dot is a built-in tool; whether that exists is checked when the project is imported.
        problem = keys.reference_problem(name, self._loader.package) if "." in name else ""
        if problem:
            self._error((*path, "name"), problem)
            return None
        if name.startswith(f"{keys.PHONE_PACKAGE}."):
            for key, problem in keys.phone_problems(name.removeprefix(f"{keys.PHONE_PACKAGE}."), args or {}):
                self._error((*path, *key), problem)
        agent = self._tool_agent(args, path) if name.rpartition(".")[2] == "AgentTool" else None
        if name.rpartition(".")[2] == "LongRunningFunctionTool":
            self._dotted_path((args or {}).get("func"), (*path, "args", "func"))
        return ToolConfig(name, args, agent, self._document.line(path))

    def _arguments(self, args: object, path: DocumentPath) -> Mapping[str, object] | None:
        """Read `args`: a map, or in older files a list of `{name, value}`."""
        if args is None or isinstance(args, dict):
            return args
        if isinstance(args, list) and all(isinstance(each, dict) and "name" in each for each in args):
            return {str(each["name"]): each.get("value") for each in args}
        self._error(path, "a map is needed, or a list of maps with 'name' and 'value'")
        return None

    def _tool_agent(self, args: Mapping[str, object] | None, path: DocumentPath) -> AgentConfig | str | None:
        agent = (args or {}).get("agent")
        place = (*path, "args", "agent")
        for key in args or ():
            if key not in _AGENT_TOOL_KEYS:
                self._error((*path, "args", key), f"there is no such key{keys.suggest(key, _AGENT_TOOL_KEYS)}")
        # Three ways to write it: the reference itself, a map with `config_path` or `code`, and, in older files, that
        # map as a list of `{name, value}`.
        if isinstance(agent, str):
            is_file = agent.endswith((".yaml", ".yml"))
            return self._agent_of_file(agent, place) if is_file else self._dotted_path(agent, place)
        if isinstance(agent, list) and all(isinstance(each, dict) and "name" in each for each in agent):
            agent = {str(each["name"]): each.get("value") for each in agent}
        return self._agent_reference(agent, place)


def _check_names(config: AgentConfig, findings: Findings, seen: dict[str, str]) -> None:
    """Note agents of a tree that have the same name; the agent of an `AgentTool` begins a tree of its own."""
    if config.name and config.name in seen:
        findings.error(
            config.file,
            config.line("name"),
            f"'name': '{config.name}' is also the name of the agent in {seen[config.name]}; choose another.",
        )
    seen[config.name] = config.file
    for child in config.children:
        if isinstance(child, AgentConfig):
            _check_names(child, findings, seen)
    for tool in config.tools:
        if isinstance(tool.agent, AgentConfig):
            # It has a conversation of its own, so the outer tree never looks up its agents by name.
            _check_names(tool.agent, findings, {})


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def parse_yaml(text: str, file: str, findings: Findings) -> Document | None:
    """Parse YAML 1.1 and note the line of every key; None, with an error, when it is not valid.

    Texts keep every space, because they are a model's instructions.
    """
    try:
        # The ADK reads with PyYAML, which is YAML 1.1: `on`, `off`, `yes` and `no` are Boolean values there.
        data, lines = compose_yaml(text, "1.1", _keep_letters)
    except InvalidYaml as error:
        findings.error(file, error.line, str(error))
        return None
    return Document(file, data, lines, findings)


def _keep_letters(root: Node) -> None:
    """Read a bare `y` or `n` as text, as the ADK's own reader does; YAML 1.1 has them as true and false."""
    from ruamel.yaml.tag import Tag

    # Each node is visited once, because an alias is the same node as its anchor and may even stand inside it.
    waiting, seen = [root], {id(root)}
    while waiting:
        node = waiting.pop()
        if node.value in ("y", "Y", "n", "N") and getattr(node, "style", None) is None:
            # The values are constructed later, according to the tags.
            node.ctag = Tag(suffix="tag:yaml.org,2002:str")
        items = node.value if isinstance(node.value, list) else ()
        for each in (each for item in items for each in (item if isinstance(item, tuple) else (item,))):
            if id(each) not in seen:
                seen.add(id(each))
                waiting.append(each)
