"""The agents of a project as objects made from its YAML files and its Python, numbered and described to the core."""

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
from callagent.agents.adk.runtime.description import Describer, ToolsetFailed, with_mcp_tools
from callagent.agents.adk.runtime.mcp_toolset import McpToolset, is_mcp_toolset
from callagent.agents.kernel import Findings, ModuleSpace, error_message, remedy_of

_PLAIN_KEYS = (
    "instruction", "static_instruction", "model", "output_key", "include_contents", "disallow_transfer_to_parent",
    "disallow_transfer_to_peers",
)  # fmt: skip


class ReferenceFailed(Exception):
    """The error of a reference in a file that names nothing usable there."""

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
        self._mcp_toolsets: list[McpToolset] = []
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
        """Return an agent's tool. Raises `LookupError`, and `McpFailed` when a server has to be asked but cannot be."""
        # The project's own tools come first, because they are known without asking a server.
        own = getattr(self.agents[number], "tools", ())
        for each in own:
            if not is_mcp_toolset(each) and (tool := tools.as_tool(each)).name == name:
                return tool
        candidates = [each for each in own if is_mcp_toolset(each) and each.may_have(name)]
        for each in candidates:
            if (remote := each.tool(name, is_only_candidate=len(candidates) == 1)) is not None:
                return remote
        raise LookupError(f"agent '{self.agents[number].name}' has no tool '{name}'")

    def describe(self) -> dict[str, object]:
        """Return `{"root", "errors", "unreachable"}`, with the tools that servers have now."""
        if self.described is None:
            return {"root": None, "errors": self.errors, "unreachable": []}
        root, unreachable = with_mcp_tools(self.described, self._mcp_toolsets)
        return {"root": root, "errors": self.errors, "unreachable": unreachable}

    def _load(self) -> None:
        findings = Findings()
        config = load_config(self._project, findings)
        if config is None or findings.errors:
            self._note(ROOT_FILE, 1, "the project's files have errors")
            return
        # An error is noted instead of raised, so that the worker lives on and `describe` reports it to the core.
        try:
            root = self._make_agent(config)
            describer = Describer(self.agents)
            self.described = describer.agent(root)
            self._mcp_toolsets = describer.mcp_toolsets
        except (ReferenceFailed, ToolsetFailed) as error:
            self._note(*error.place, str(error))
        except (ValueError, TypeError, LookupError) as error:
            self._note(ROOT_FILE, 1, f"{type(error).__name__}: {error_message(error)}")

    def _note(self, file: str, line: int, message: str) -> None:
        self.errors.append({"file": file, "line": line, "message": message})

    def _make_agent(self, config: AgentConfig) -> google.BaseAgent:
        data = config.data
        arguments: dict[str, object] = {
            "name": config.name,
            "description": str(data.get("description") or ""),
            "sub_agents": [self._child(config, index, child) for index, child in enumerate(config.children)],
        }
        for key in config.code:
            # YAML has `before_agent_callbacks`, the classes of the ADK have `before_agent_callback`.
            if key.endswith("_callbacks"):
                arguments[key.removesuffix("s")] = self._find_code(config, key)
        try:
            return self._make_of_kind(config, arguments)
        except (ValueError, TypeError) as error:
            raise ReferenceFailed(config.file, 1, error_message(error)) from error

    def _make_of_kind(self, config: AgentConfig, arguments: dict[str, object]) -> google.BaseAgent:
        data = config.data
        match config.kind:
            case "sequential":
                return google.SequentialAgent(**arguments)
            case "parallel":
                return google.ParallelAgent(**arguments)
            case "loop":
                limit = data.get("max_iterations")
                return google.LoopAgent(**arguments, max_iterations=keys.read_whole_number(limit))
            case "code":
                return self._make_of_own_class(config, arguments)
        return google.LlmAgent(**arguments, **self._llm_arguments(config))

    def _llm_arguments(self, config: AgentConfig) -> dict[str, object]:
        """Return the arguments that only agents with a model take."""
        data = config.data
        arguments: dict[str, object] = {key: data[key] for key in _PLAIN_KEYS if data.get(key) is not None}
        for key in ("input_schema", "output_schema"):
            if key in config.code:
                arguments[key] = self._find_schema(config, key)
        if "model_code" in config.code:
            (model,) = self._find_code(config, "model_code")
            if not isinstance(getattr(model, "model", model), str):
                text = "'model_code' names neither a model's name nor an object with one in its 'model'"
                raise ReferenceFailed(config.file, config.line("model_code"), text)
            arguments["model"] = model
        arguments["generate_content_config"] = _generation(data.get("generate_content_config"))
        arguments["tools"] = [self._make_tool(config, tool) for tool in config.tools]
        return arguments

    def _find_schema(self, config: AgentConfig, key: str) -> object:
        (found,) = self._find_code(config, key)
        try:
            tools.schema_of(found)
        except PydanticUserError:
            text = (
                f"'{key}': '{config.code[key][0].path}' is neither a pydantic class nor another type with a JSON schema"
            )
            raise ReferenceFailed(config.file, config.line(key), text) from None
        return found

    def _find_code(self, config: AgentConfig, key: str) -> list[object]:
        """Return the objects that the references under a key name."""
        found = []
        for index, reference in enumerate(config.code[key]):
            value = self._find(config, reference.path, (key, index))
            if key.endswith("_callbacks") and not callable(value):
                text = f"'{key}': '{reference.path}' is not a function"
                raise ReferenceFailed(config.file, config.line(key, index), text)
            # With arguments, the reference names a function that makes the callback.
            if reference.arguments:
                positional = [argument for name, argument in reference.arguments if name is None]
                keywords = {name: argument for name, argument in reference.arguments if name is not None}
                value = value(*positional, **keywords)
            found.append(value)
        return found

    def _make_of_own_class(self, config: AgentConfig, arguments: dict[str, object]) -> google.BaseAgent:
        cls = self._find(config, config.agent_class, ("agent_class",))
        if not (inspect.isclass(cls) and issubclass(cls, google.BaseAgent)):
            text = f"'agent_class': '{config.agent_class}' is not a class of agents"
            raise ReferenceFailed(config.file, config.line("agent_class"), text)
        if issubclass(cls, google.LlmAgent):
            arguments = {**arguments, **self._llm_arguments(config)}
        # As in the ADK, the class's own `config_type` reads the file, and its `_parse_config` makes the arguments.
        parsed = cls.config_type.model_validate(dict(config.data))
        return cls(**cls._parse_config(parsed, str(self._project / config.file), arguments))

    def _child(self, config: AgentConfig, index: int, child: AgentConfig | str) -> google.BaseAgent:
        if isinstance(child, AgentConfig):
            return self._make_agent(child)
        return self._agent_instance(config, child, ("sub_agents", index, "code"))

    def _agent_instance(self, config: AgentConfig, path: str, place: tuple[str | int, ...]) -> google.BaseAgent:
        found = self._find(config, path, place)
        if isinstance(found, google.BaseAgent):
            return found
        kind = "a class" if inspect.isclass(found) else "a function" if callable(found) else "no agent"
        raise ReferenceFailed(config.file, config.line(*place), f"'{path}' is {kind}; an agent object is needed")

    def _make_tool(self, config: AgentConfig, tool: ToolConfig) -> object:
        """Make a tool, or a toolset that knows the file and line of its reference."""
        found = self._make_tool_of_kind(config, tool)
        # Messages about a toolset come later, when its server is asked, and name this place.
        if isinstance(found, tools.BaseToolset):
            found.place = (config.file, tool.line)
        return found

    def _make_tool_of_kind(self, config: AgentConfig, tool: ToolConfig) -> object:
        head, _, name = tool.name.rpartition(".")
        if head == keys.PHONE_PACKAGE:
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
        # The project's own tools come first, then the built-in ones, then those of Google's services, which fail when
        # their agent asks its model, as with an ADK agent whose model is another provider's.
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
        """Return the tool that a reference means, given the object that it names.

        The object may be a tool, a class of tools, a function that makes a tool from `args`, or, without `args`, a
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
            agent = self._make_agent(tool.agent)
        elif isinstance(tool.agent, str):
            agent = self._agent_instance(config, tool.agent, ("tools",))
        else:
            raise ReferenceFailed(config.file, tool.line, "AgentTool: 'args.agent' is missing")
        return tools.AgentTool(agent, bool(keys.read_flag((tool.args or {}).get("skip_summarization"))))

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

    The project's folder is a package, as if its parent folder were on Python's path.
    """

    def __init__(self, project: Path) -> None:
        # Names are looked up below the parent folder, so that the project's folder is their first part.
        super().__init__(project.parent)
        self._package = project.name

    def find(self, path: str) -> object:
        """Return the object that a dotted path names: an attribute of the longest part that is a module.

        Raises whatever the import raises, and `AttributeError`.
        """
        parts = keys.absolute_reference(path, self._package).split(".")
        # The longest module comes first, because `pkg.tools.find` may be a function of `pkg.tools` or a module.
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
