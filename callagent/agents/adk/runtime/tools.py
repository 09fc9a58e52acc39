"""Stand-ins for `google.adk.tools`: Python functions as tools, and the tools that the engine carries out itself."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from callagent.agents.adk.runtime import google_classes as google
from callagent.workers import Plain

_CONTEXT = "tool_context"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def context_parameter(function: Callable[..., object]) -> str:
    """Return the name of the parameter that takes the context: the one annotated as such, else `tool_context`."""
    for name, hint in _hints(function).items():
        if inspect.isclass(hint) and issubclass(hint, google.ReadonlyContext):
            return name
    return _CONTEXT


def parameters_schema(function: Callable[..., object], name: str) -> dict[str, object] | None:
    """Return the JSON schema of a function's parameters; None when it takes none from a model."""
    hints = _hints(function)
    context = context_parameter(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        # A model fills in neither the context nor `*args` and `**kwargs`.
        if parameter.name == context or parameter.kind not in _NAMED:
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, object), default)
    if not fields:
        return None
    try:
        return _schema(name, fields)
    except PydanticUserError:
        # An annotation has no JSON schema, so the model is shown the names without types.
        return _schema(name, {key: (object, default) for key, (_, default) in fields.items()})


def _schema(name: str, fields: dict[str, Any]) -> dict[str, object]:
    made: type[BaseModel] = create_model(f"{name}Params", **fields)
    return made.model_json_schema()


def schema_of(value: Any) -> dict[str, object] | None:
    """Return the JSON schema of a pydantic class or of any other type; a schema is returned as it is."""
    if value is None or isinstance(value, dict):
        return value
    if inspect.isclass(value) and issubclass(value, BaseModel):
        return value.model_json_schema()
    return TypeAdapter(value).json_schema()


def prepare_arguments(
    function: Callable[..., object], name: str, arguments: dict[str, object], context: object
) -> tuple[dict[str, object], dict[str, str] | None]:
    """Return the arguments for a function, and the error for the model when mandatory ones are missing."""
    signature, hints = inspect.signature(function), _hints(function)
    # Models invent arguments; those for which the function has no parameter are left out.
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
    prepared = {
        key: _as_declared(value, hints.get(key))
        for key, value in arguments.items()
        if takes_all or key in signature.parameters
    }
    context_name = context_parameter(function)
    if context_name in signature.parameters:
        prepared[context_name] = context
    missing = [
        each.name
        for each in signature.parameters.values()
        if each.kind in _NAMED and each.default is inspect.Parameter.empty and each.name not in prepared
    ]
    if not missing:
        return prepared, None
    return prepared, {
        "error": f"Invoking `{name}()` failed as the following mandatory input parameters are not present:\n"
        + "\n".join(missing)
        + "\nYou could retry calling this tool, but it is IMPORTANT for you to provide all the mandatory parameters."
    }


def _as_declared(value: object, hint: Any) -> object:
    """Return an argument as an object if its parameter is annotated with a pydantic class, else unchanged."""
    # The class may stand inside another type, as in `Order | None` and `list[Order]`.
    options = [hint, *typing.get_args(hint)]
    if not any(inspect.isclass(each) and issubclass(each, BaseModel) for each in options):
        return value
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError:
        # The function gets what the model wrote, and may return its own error.
        return value


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        # A string annotation names something that is not imported at run time, such as under TYPE_CHECKING.
        return dict(getattr(function, "__annotations__", {}))


_LONG_RUNNING = (
    "NOTE: This is a long-running operation. Do not call this tool again if it has already returned some intermediate "
    "or pending status."
)


class ToolArgsConfig(BaseModel):
    """`args` of a tool in YAML."""

    model_config = ConfigDict(extra="allow")


class BaseTool:
    """The base of all tools, built-in ones and those of the project's own classes."""

    def __init__(self, *, name: str, description: str, is_long_running: bool = False, **options: object) -> None:
        self.name = name
        self.description = description
        self.is_long_running = is_long_running

    def _get_declaration(self) -> google.FunctionDeclaration | None:
        return None

    async def run_async(self, *, args: Plain, tool_context: google.ToolContext) -> object:
        raise NotImplementedError(f"{type(self).__name__} has no run_async")

    @classmethod
    def from_config(cls, config: ToolArgsConfig, config_abs_path: str) -> BaseTool:
        """Make the tool from `args` in YAML; tool classes override it."""
        return cls(**config.model_dump())


class BaseToolset:
    """A set of tools. It is asked for its tools once, when the project is imported."""

    place: tuple[str, int] = ("root_agent.yaml", 1)
    """The file and line of YAML that name the toolset."""

    async def get_tools(self, readonly_context: object = None) -> Sequence[object]:
        raise NotImplementedError(f"{type(self).__name__} has no get_tools")

    async def close(self) -> None:
        """Release resources; toolsets override it. Built-in ones end with their process."""

    @classmethod
    def from_config(cls, config: ToolArgsConfig, config_abs_path: str) -> BaseToolset:
        return cls(**config.model_dump())


class FunctionTool(BaseTool):
    """A Python function as a tool; the model is shown its signature and docstring."""

    def __init__(self, func: Callable[..., object], **options: object) -> None:
        name = getattr(func, "__name__", None) or type(func).__name__
        super().__init__(name=name, description=inspect.cleandoc(func.__doc__ or ""))
        self.func = func

    def _get_declaration(self) -> google.FunctionDeclaration:
        return google.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=parameters_schema(self.func, self.name)
        )

    async def run_async(self, *, args: Plain, tool_context: google.ToolContext) -> object:
        # A refusal goes to the model as the result, so that it can call again with what was missing.
        arguments, refusal = prepare_arguments(self.func, self.name, args, tool_context)
        if refusal is not None:
            return refusal
        returned = self.func(**arguments)
        return await returned if inspect.isawaitable(returned) else returned


class LongRunningFunctionTool(FunctionTool):
    """A function whose result is preliminary; the true one comes in a later turn."""

    def __init__(self, func: Callable[..., object], **options: object) -> None:
        super().__init__(func)
        self.is_long_running = True
        self.description = f"{self.description}\n\n{_LONG_RUNNING}" if self.description else _LONG_RUNNING


class AgentTool(BaseTool):
    """An agent that another agent calls as a tool."""

    def __init__(self, agent: google.BaseAgent, skip_summarization: bool = False, **options: object) -> None:
        super().__init__(name=agent.name, description=agent.description)
        self.agent = agent
        self.skip_summarization = skip_summarization


class Example(BaseModel):
    """One exchange that shows the model how to answer."""

    input: google.Content
    output: list[google.Content]


class ExampleTool(BaseTool):
    """Examples that are added to the agent's instruction; the model cannot call it."""

    def __init__(self, examples: list[object]) -> None:
        super().__init__(name="example_tool", description="example tool")
        self.examples = [each if isinstance(each, Example) else Example.model_validate(each) for each in examples]

    @classmethod
    def from_config(cls, config: ToolArgsConfig, config_abs_path: str) -> ExampleTool:
        examples = config.model_dump().get("examples")
        if not isinstance(examples, list | tuple):
            raise ValueError("'examples' must be a list of examples, or the dotted path of such a list")
        return cls(list(examples))

    @property
    def text(self) -> str:
        """The examples as a part of the instruction, in the ADK's own form."""
        shown = "".join(_example_text(number, example) for number, example in enumerate(self.examples, 1))
        return (
            "<EXAMPLES>\nBegin few-shot\nThe following are examples of user queries and model responses using the "
            f"available tools.\n\n{shown}End few-shot\n<EXAMPLES>"
        )


class BuiltInTool(BaseTool):
    """A tool that the engine carries out, or one that needs a service which is not available here."""

    def __init__(self, name: str, kind: str, description: str = "", is_long_running: bool = False) -> None:
        super().__init__(name=name, description=description, is_long_running=is_long_running)
        self.kind = kind


class PhoneTool(BaseTool):
    """A tool of the telephone: `callagent.hang_up`, `callagent.hand_off` or `callagent.collect_digits`."""

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        super().__init__(name=name, description="")
        self.options = dict(options)


def _transfer_to_agent(agent_name: str) -> None:
    """Transfers the conversation to another agent."""


def _get_user_choice(options: list[str]) -> None:
    """Provides the options to the user and asks them to choose one."""


# The core carries out these tools; the worker only describes them. Names and texts are the ADK's.
exit_loop = BuiltInTool(
    "exit_loop", "exit_loop", "Exits the loop.\n\nCall this function only when you are instructed to do so."
)
_choice_description = LongRunningFunctionTool(_get_user_choice).description
get_user_choice = BuiltInTool("get_user_choice", "user_choice", _choice_description, is_long_running=True)
transfer_to_agent = BuiltInTool("transfer_to_agent", "transfer", _transfer_to_agent.__doc__ or "")
BUILT_IN_SCHEMAS = {
    "transfer": parameters_schema(_transfer_to_agent, "transfer_to_agent"),
    "user_choice": parameters_schema(_get_user_choice, "get_user_choice"),
}
"""The parameters of built-in tools by kind; the others take none."""

_GOOGLE_ONLY = {
    "google_search": "Google search tool",
    "google_maps_grounding": "Google Maps grounding tool",
    "url_context": "Url context tool",
    "enterprise_web_search": "Enterprise web search tool",
    "VertexAiSearchTool": "Vertex AI search tool",
    "load_web_page": "load_web_page",
}
UNAVAILABLE = {
    name: BuiltInTool(name, "unavailable", f"{title} is not supported for model {{model}}")
    for name, title in _GOOGLE_ONLY.items()
}
"""Tools of Google's own services, which are not available here: an agent with one fails when it asks its model."""


def as_tool(value: object) -> BaseTool:
    """Return a tool as it is and a plain function as a `FunctionTool`. Raises TypeError for anything else."""
    if isinstance(value, BaseTool):
        return value
    if callable(value):
        return FunctionTool(value)
    raise TypeError(f"{value!r} is neither a tool nor a function")


def _example_text(number: int, example: Example) -> str:
    lines = f"EXAMPLE {number}:\nBegin example\n[user]\n"
    lines += "\n".join(part.text for part in example.input.parts or () if part.text) + "\n"
    previous = ""
    for content in example.output:
        # A role is written once for consecutive contents that have it.
        role = "[model]\n" if content.role == "model" else "[user]\n"
        lines += role if role != previous else ""
        previous = role
        for part in content.parts or ():
            if part.function_call:
                arguments = ", ".join(f"{key}={value!r}" for key, value in (part.function_call.args or {}).items())
                lines += f"```tool_code\n{part.function_call.name}({arguments})\n```\n"
            elif part.function_response:
                lines += f"```tool_outputs\n{part.function_response.response}\n```\n"
            elif part.text:
                lines += f"{part.text}\n"
    return lines + "End example\n\n"


# The texts below are part of the ADK format, word for word: projects were tuned with them.
_ARTIFACTS_DESCRIPTION = """Loads artifacts into the session for this request.

NOTE: Call when you need access to artifacts (for example, uploads saved by the
web UI)."""
_ARTIFACTS_STATUS = (
    "artifact contents temporarily inserted and removed. to access these artifacts, call load_artifacts tool again."
)
_MEMORY_DESCRIPTION = """Loads the memory for the current user.

Args:
  query: The query to load the memory for.

Returns:
  A list of memory results."""
_MEMORY_INSTRUCTION = """
You have memory. You can use it to answer questions. If any questions need
you to look up the memory, you should call load_memory function with a query.
"""


class StorageTool(BaseTool):
    """A tool for artifacts or memories, which also changes the requests of its agent."""

    adds = ""
    """What is added to every request, as a value of `AddedContent`: `artifacts`, `memories`, or empty for nothing."""
    text = ""
    """A text that is added to the agent's instruction."""
    remembers = False
    """Whether the call goes into the caller's memories when it ends."""
    is_offered = True
    """Whether the model is offered the tool."""


class LoadArtifactsTool(StorageTool):
    """The tool by which the model reads artifacts by their names."""

    adds = "artifacts"

    def __init__(self, **options: object) -> None:
        super().__init__(name="load_artifacts", description=_ARTIFACTS_DESCRIPTION)

    def _get_declaration(self) -> google.FunctionDeclaration:
        names = {"type": "array", "items": {"type": "string"}}
        schema = {"type": "object", "properties": {"artifact_names": names}}
        return google.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def run_async(self, *, args: Plain, tool_context: google.ToolContext) -> object:
        """Return the names of the artifacts; the core adds their contents to the next request."""
        names = args.get("artifact_names", [])
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            return {"error": "'artifact_names' must be a list of strings.", "error_code": "INVALID_ARGUMENTS"}
        return {"artifact_names": names, "status": _ARTIFACTS_STATUS}


class LoadMemoryTool(StorageTool):
    """The tool by which the model searches the caller's earlier calls."""

    text = _MEMORY_INSTRUCTION
    remembers = True

    def __init__(self, **options: object) -> None:
        super().__init__(name="load_memory", description=_MEMORY_DESCRIPTION)

    def _get_declaration(self) -> google.FunctionDeclaration:
        schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        return google.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def run_async(self, *, args: Plain, tool_context: google.ToolContext) -> object:
        found: google.SearchMemoryResponse = await tool_context.search_memory(str(args.get("query") or ""))
        return {"result": found.model_dump(exclude_none=True)}


class PreloadMemoryTool(StorageTool):
    """A tool that adds memories matching the caller's words to every request; the model cannot call it."""

    adds = "memories"
    remembers = True
    is_offered = False

    def __init__(self, **options: object) -> None:
        super().__init__(name="preload_memory", description="preload_memory")

    def _get_declaration(self) -> google.FunctionDeclaration:
        return google.FunctionDeclaration(name=self.name, description=self.description)


load_artifacts = LoadArtifactsTool()
load_memory = LoadMemoryTool()
preload_memory = PreloadMemoryTool()
