"""A project's agents as objects: its YAML files and its Python brought together, numbered and described to the core."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic.errors import PydanticUserError

from callagent.agents.adk import config_keys as keys
from callagent.agents.adk.agent_config import ROOT_FILE, AgentConfig, ToolConfig, load_config
from callagent.agents.adk.runtime import google_classes as google
from callagent.agents.adk.runtime import google_modules, tools
from callagent.agents.adk.runtime.description import Describer, ToolsetFailed, with_sets
from callagent.agents.adk.runtime.mcp_toolset import McpToolset, is_mcp_set
from callagent.agents.kernel import Findings, ModuleSpace, error_message, remedy_of

_PLAIN_KEYS = (
    "instruction", "static_instruction", "model", "output_key", "include_contents", "disallow_transfer_to_parent",
    "disallow_transfer_to_peers",
)  # fmt: skip


class ReferenceFailed(Exception):
    """A reference in a file leads to nothing that can be used there."""

    def __init__(self, file: str, line: int, text: str) -> None:
        super().__init__(text)
        self.place = (file, line)


class Catalog:
    """The agents of one project, which is imported once in each process."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._space = PackageSpace(project)
        self.errors: list[dict[str, object]] = []
        self.described: dict[str, object] | None = None
        self._sets: list[McpToolset] = []
        self.agents: list[google.BaseAgent] = []
        """The agents; requests name them by their index."""
        self._load()

    def number(self, agent: google.BaseAgent) -> int:
        """Return an agent's number. Raises `LookupError` for an agent that is not in the tree."""
        for number, each in enumerate(self.agents):
            if each is agent:
                return number
        raise LookupError(f"agent '{agent.name}' is not in the tree; it must be one of the sub_agents")

    def functions(self, number: int, point: str) -> Sequence[Callable[..., object]]:
        """Return an agent's callbacks of a point, in order."""
        callbacks = getattr(self.agents[number], f"{point}_callback", None)
        if callbacks is None:
            return ()
        return callbacks if isinstance(callbacks, list) else (callbacks,)

    def tool(self, number: int, name: str) -> tools.BaseTool:
        """Return an agent's tool. Raises `LookupError`, and `McpFailed` when a server has to be asked and is away."""
        # Tools of the project first: they are known without asking a server.
        own = getattr(self.agents[number], "tools", ())
        for each in own:
            if not is_mcp_set(each) and (tool := tools.as_tool(each)).name == name:
                return tool
        sets = [each for each in own if is_mcp_set(each) and each.may_have(name)]
        for each in sets:
            if (remote := each.tool(name, surely=len(sets) == 1)) is not None:
                return remote
        raise LookupError(f"agent '{self.agents[number].name}' has no tool '{name}'")

    def describe(self) -> dict[str, object]:
        """Return `{"root", "errors", "unreachable"}`, with the tools that servers have now."""
        if self.described is None:
            return {"root": None, "errors": self.errors, "unreachable": []}
        root, unreachable = with_sets(self.described, self._sets)
        return {"root": root, "errors": self.errors, "unreachable": unreachable}

    def _load(self) -> None:
        findings = Findings()
        config = load_config(self._project, findings)
        if config is None or findings.errors:
            self._note(ROOT_FILE, 1, "the project's files have errors")
            return
        # An error is noted and not raised: the worker lives on, and `describe` tells the core.
        try:
            root = self._agent(config)
            describer = Describer(self.agents)
            self.described = describer.agent(root)
            self._sets = describer.sets
        except (ReferenceFailed, ToolsetFailed) as error:
            self._note(*error.place, str(error))
        except (ValueError, TypeError, LookupError) as error:
            self._note(ROOT_FILE, 1, f"{type(error).__name__}: {error_message(error)}")

    def _note(self, file: str, line: int, message: str) -> None:
        self.errors.append({"file": file, "line": line, "message": message})

    def _agent(self, config: AgentConfig) -> google.BaseAgent:
        data = config.data
        known: dict[str, object] = {
            "name": config.name,
            "description": str(data.get("description") or ""),
            "sub_agents": [self._child(config, index, child) for index, child in enumerate(config.children)],
        }
        for key in config.code:
            # YAML has `before_agent_callbacks`, the classes of the ADK have `before_agent_callback`.
            if key.endswith("_callbacks"):
                known[key.removesuffix("s")] = self._codes(config, key)
        try:
            return self._made(config, known)
        except (ValueError, TypeError) as error:
            raise ReferenceFailed(config.file, 1, error_message(error)) from error

    def _made(self, config: AgentConfig, known: dict[str, object]) -> google.BaseAgent:
        data = config.data
        match config.kind:
            case "sequential":
                return google.SequentialAgent(**known)
            case "parallel":
                return google.ParallelAgent(**known)
            case "loop":
                limit = data.get("max_iterations")
                return google.LoopAgent(**known, max_iterations=keys.whole_number(limit))
            case "code":
                return self._own_class(config, known)
        return google.LlmAgent(**known, **self._of_llm(config))

    def _of_llm(self, config: AgentConfig) -> dict[str, object]:
        """Return the arguments that only agents with a model take."""
        data = config.data
        known: dict[str, object] = {key: data[key] for key in _PLAIN_KEYS if data.get(key) is not None}
        for key in ("input_schema", "output_schema"):
            if key in config.code:
                known[key] = self._schema(config, key)
        if "model_code" in config.code:
            (known["model"],) = self._codes(config, "model_code")
            if not isinstance(getattr(known["model"], "model", known["model"]), str):
                text = "'model_code': neither a model's name nor an object with one in its 'model'"
                raise ReferenceFailed(config.file, config.line("model_code"), text)
        known["generate_content_config"] = _generation(data.get("generate_content_config"))
        known["tools"] = [self._placed(config, tool) for tool in config.tools]
        return known

    def _schema(self, config: AgentConfig, key: str) -> object:
        (found,) = self._codes(config, key)
        try:
            tools.schema_of(found)
        except PydanticUserError:
            text = (
                f"'{key}': '{config.code[key][0].path}' is neither a pydantic class nor another type with a JSON schema"
            )
            raise ReferenceFailed(config.file, config.line(key), text) from None
        return found

    def _codes(self, config: AgentConfig, key: str) -> list[object]:
        found = []
        for index, reference in enumerate(config.code[key]):
            value = self._find(config, reference.path, (key, index))
            if key.endswith("_callbacks") and not callable(value):
                text = f"'{key}': '{reference.path}' is not a function"
                raise ReferenceFailed(config.file, config.line(key, index), text)
            # With arguments, the reference names a function that makes the callback.
            if reference.arguments:
                by_place = [argument for name, argument in reference.arguments if name is None]
                by_name = {name: argument for name, argument in reference.arguments if name is not None}
                value = value(*by_place, **by_name)
            found.append(value)
        return found

    def _own_class(self, config: AgentConfig, known: dict[str, object]) -> google.BaseAgent:
        cls = self._find(config, config.agent_class, ("agent_class",))
        if not (inspect.isclass(cls) and issubclass(cls, google.BaseAgent)):
            text = f"'agent_class': '{config.agent_class}' is not a class of agents"
            raise ReferenceFailed(config.file, config.line("agent_class"), text)
        if issubclass(cls, google.LlmAgent):
            known = {**known, **self._of_llm(config)}
        # As in the ADK: the class's own `config_type` reads the file, its `_parse_config` makes the arguments of it.
        parsed = cls.config_type.model_validate(dict(config.data))
        return cls(**cls._parse_config(parsed, str(self._project / config.file), known))

    def _child(self, config: AgentConfig, index: int, child: AgentConfig | str) -> google.BaseAgent:
        if isinstance(child, AgentConfig):
            return self._agent(child)
        return self._agent_instance(config, child, ("sub_agents", index, "code"))

    def _agent_instance(self, config: AgentConfig, path: str, place: tuple[str | int, ...]) -> google.BaseAgent:
        found = self._find(config, path, place)
        if isinstance(found, google.BaseAgent):
            return found
        kind = "a class" if inspect.isclass(found) else "a function" if callable(found) else "no agent"
        raise ReferenceFailed(config.file, config.line(*place), f"'{path}' is {kind}; an agent object is needed")

    def _placed(self, config: AgentConfig, tool: ToolConfig) -> object:
        """Make a tool, or a toolset that knows the file and line that name it."""
        found = self._tool(config, tool)
        # Messages about a toolset come later, when its server is asked; they name this place.
        if isinstance(found, tools.BaseToolset):
            found.place = (config.file, tool.line)
        return found

    def _tool(self, config: AgentConfig, tool: ToolConfig) -> object:
        head, _, name = tool.name.rpartition(".")
        if head == keys.PHONE:
            return tools.PhoneTool(name, tool.args or {})
        try:
            if name == "AgentTool":
                return self._agent_tool(config, tool)
            if name == "LongRunningFunctionTool":
                return tools.LongRunningFunctionTool(self._function(config, tool))
            if name == "FunctionTool" and head in ("", "google.adk.tools", "google.adk.tools.function_tool"):
                return tools.FunctionTool(self._function(config, tool))
            return self._from_reference(self._tool_object(config, tool), config, tool)
        except ReferenceFailed:
            raise
        except Exception as error:  # making a tool runs the project's own classes and functions
            raise ReferenceFailed(config.file, tool.line, f"tool '{tool.name}': {error_message(error)}") from error

    def _function(self, config: AgentConfig, tool: ToolConfig) -> Callable[..., object]:
        path = (tool.args or {}).get("func")
        if not isinstance(path, str):
            raise ReferenceFailed(config.file, tool.line, f"tool '{tool.name}': 'args.func', a dotted path, is missing")
        found: object = self._find(config, path, tool.line)
        if not callable(found):
            raise ReferenceFailed(config.file, tool.line, f"tool '{tool.name}': '{path}' is not a function")
        return found

    def _tool_object(self, config: AgentConfig, tool: ToolConfig) -> object:
        # First the project's own; then the built-in ones that we have; then those that only Google has, which fail
        # when their agent asks its model, as an ADK agent with another provider's model does.
        if "." in tool.name and not tool.name.startswith("google.adk."):
            return self._find(config, tool.name, tool.line)
        if tool.name.rpartition(".")[2] in keys.MCP_TOOLSETS:
            return McpToolset
        path = tool.name if "." in tool.name else f"google.adk.tools.{tool.name}"
        found = google_modules.find_stand_in(path)
        if found is None:
            found = tools.UNAVAILABLE.get(tool.name.rpartition(".")[2])
        if found is None:
            raise ReferenceFailed(config.file, tool.line, f"there is no built-in tool '{tool.name}' here")
        return found

    def _from_reference(self, found: object, config: AgentConfig, tool: ToolConfig) -> object:
        """Make the tool that a reference means.

        The reference may name a tool, a class of tools, a function that makes one from `args`, or, without `args`, a
        function that is the tool itself.
        """
        if isinstance(found, tools.BaseTool):
            return found
        if isinstance(found, tools.BaseToolset):
            return found
        if inspect.isclass(found) and issubclass(found, tools.BaseTool | tools.BaseToolset):
            arguments = dict(tool.args or {})
            if found is tools.ExampleTool and isinstance(examples := arguments.get("examples"), str):
                arguments["examples"] = self._find(config, examples, tool.line)
            return found.from_config(tools.ToolArgsConfig(**arguments), str(self._project / config.file))
        if not callable(found):
            raise ReferenceFailed(config.file, tool.line, f"tool '{tool.name}' is neither a tool nor a function")
        if tool.args is None:
            return found
        made = found(tools.ToolArgsConfig(**tool.args))
        if not isinstance(made, tools.BaseTool | tools.BaseToolset) and not callable(made):
            raise ReferenceFailed(config.file, tool.line, f"tool '{tool.name}': the function did not return a tool")
        return made

    def _agent_tool(self, config: AgentConfig, tool: ToolConfig) -> tools.AgentTool:
        if isinstance(tool.agent, AgentConfig):
            agent = self._agent(tool.agent)
        elif isinstance(tool.agent, str):
            agent = self._agent_instance(config, tool.agent, ("tools",))
        else:
            raise ReferenceFailed(config.file, tool.line, "AgentTool: 'args.agent' is missing")
        return tools.AgentTool(agent, bool(keys.flag((tool.args or {}).get("skip_summarization"))))

    def _find(self, config: AgentConfig, path: str, place: tuple[str | int, ...] | int) -> Any:
        line = place if isinstance(place, int) else config.line(*place)
        try:
            return self._space.find(path)
        except BaseException as error:  # importing runs the project's modules, which may even call sys.exit()
            text = f"'{path}' cannot be imported: {type(error).__name__}: {error_message(error)}{remedy_of(error)}"
            raise ReferenceFailed(config.file, line, text) from None


def _generation(data: object) -> google.GenerateContentConfig | None:
    if not isinstance(data, dict):
        return None
    named = {keys.snake_case(str(key)): value for key, value in data.items()}
    return google.GenerateContentConfig(
        **{key: named[key] for key in keys.EFFECTIVE_GENERATION_KEYS if named.get(key) is not None}
    )


class PackageSpace(ModuleSpace):
    """The modules of one project, apart from those of other projects in the same process.

    The project's folder is a package, as if the folder above it were on Python's path.
    """

    def __init__(self, project: Path) -> None:
        # Names are looked up below the parent folder, so that the project's folder is their first part.
        super().__init__(project.parent)
        self._package = project.name

    def find(self, path: str) -> object:
        """Return what a dotted path names: an attribute of the longest part that is a module.

        Raises whatever the import raises, and `AttributeError`.
        """
        parts = keys.absolute_reference(path, self._package).split(".")
        # The longest module first: `pkg.tools.find` may be a function of `pkg.tools`, or a module of its own.
        for length in range(len(parts) - 1, 0, -1):
            name = ".".join(parts[:length])
            if length > 1 and not self._is_module(parts[:length]):
                continue
            found: object = self.module(name)
            for part in parts[length:]:
                found = getattr(found, part)
                if isinstance(found, ModuleType) and not found.__name__.startswith(f"{self._prefix}."):
                    # A module of the project has imported it: `agent.os` must not give YAML the module `os`.
                    raise AttributeError(f"'{path}' leads out of the project")
            return found
        raise AttributeError(f"'{path}' names nothing")

    def _is_module(self, parts: list[str]) -> bool:
        place = self._root.joinpath(*parts)
        return place.is_dir() or place.with_name(f"{place.name}.py").is_file()

    def _resolve(self, name: str, package: str) -> str | None:
        head = name.partition(".")[0]
        return f"{self._prefix}.{name}" if head == self._package else None
