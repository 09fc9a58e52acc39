"""The signature and decorators of project functions, parsed from their source; the core never imports project code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callagent.agents.actions import DelayResponse, LatencyControl
from callagent.agents.flows.format.function_pitfalls import Remark, remarks
from callagent.agents.kernel import Findings, read_text

SCHEMA_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_DECORATORS = ("func_description", "func_parameter", "func_latency_control")
_SUPPORTED = "Supported types: str, int, float, bool."


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str
    """`str`, `int`, `float` or `bool`."""
    description: str


@dataclass(frozen=True, slots=True)
class Goto:
    """A `flow.goto_step("X")` or `conv.goto_flow("X")` with a literal name."""

    kind: str
    """`step`, `flow`, or `exit` for `conv.exit_flow()`."""
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class ReturnedTransition:
    """A literal `"transition": {"goto_flow": "X", "goto_step": "Y"}`; empty: not named."""

    flow: str
    step: str
    line: int


@dataclass(frozen=True, slots=True)
class ProjectFunction:
    name: str
    kind: str
    """`global`, `flow`, `step`, `start` or `end`; `remote`: an MCP server's."""
    flow: str | None
    """Display name of its flow; None for the functions of the project."""
    file: str
    line: int
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    latency: LatencyControl | None = None
    randomize: bool = False
    gotos: tuple[Goto, ...] = ()
    transitions: tuple[ReturnedTransition, ...] = ()
    remarks: tuple[Remark, ...] = ()
    """Lines and warnings of what will surprise its author."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of its arguments, in place of `parameters`; None: a file of the project."""


@dataclass(slots=True)
class _Source:
    """One function file while it is read."""

    file: str
    findings: Findings
    definition: ast.FunctionDef | ast.AsyncFunctionDef

    def error(self, message: str, node: ast.AST | None = None) -> None:
        self.findings.error(self.file, getattr(node or self.definition, "lineno", 1), message)


def read_function(root: Path, file: str, kind: str, flow: str | None, findings: Findings) -> ProjectFunction | None:
    """Read the main function of one file; None, with an error, when it has none."""
    text = read_text(root, file, findings)
    if text is None:
        return None
    name = Path(file).stem
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        findings.unreadable(file, getattr(error, "lineno", None) or 1, f"Syntax error in function code: {what}")
        return None
    definition = next(
        (n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name), None
    )
    if definition is None:
        wanted = "conv: Conversation" + (", flow: Flow" if kind in ("flow", "step") else "")
        message = (
            f"Function definition 'def {name}({wanted}, …)' not found in code. The file needs a function of its name."
        )
        findings.error(file, 1, message)
        return None
    return _describe(_Source(file, findings, definition), kind, flow)


def _describe(source: _Source, kind: str, flow: str | None) -> ProjectFunction:
    definition = source.definition
    decorators = [d for d in definition.decorator_list if _decorator_name(d) in _DECORATORS]
    description = _description(source, decorators, kind)
    parameters = _parameters(source, decorators, kind)
    latency, randomize = _latency(source, decorators)
    return ProjectFunction(
        name=definition.name,
        kind=kind,
        flow=flow,
        file=source.file,
        line=definition.lineno,
        description=description or (ast.get_docstring(definition) or "").strip(),
        parameters=parameters,
        latency=latency,
        randomize=randomize,
        gotos=tuple(_gotos(definition)),
        transitions=tuple(_returned_transitions(definition)),
        remarks=(*_unexpected_decorators(decorators, kind), *remarks(definition, kind)),
    )


def _decorator_name(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def _arguments(source: _Source, node: ast.expr, names: Sequence[str]) -> dict[str, Any]:
    """Return a decorator's literal arguments by name; one that is not literal is reported and left out."""
    if not isinstance(node, ast.Call):
        return {}
    given = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
    found: dict[str, Any] = {}
    for name, value in given:
        try:
            found[str(name)] = ast.literal_eval(value)
        except ValueError:
            source.error(f"The argument '{name}' of @{_decorator_name(node)} should be written out as a literal.", node)
    return found


def _description(source: _Source, decorators: Sequence[ast.expr], kind: str) -> str:
    found = [d for d in decorators if _decorator_name(d) == "func_description"]
    if not found:
        if kind in ("global", "flow"):
            source.error('Function description cannot be empty. Add @func_description("…").')
        return ""
    text = str(_arguments(source, found[0], ("description",)).get("description", "")).strip()
    if not text:
        source.error("Function description cannot be empty.", found[0])
    return text


def _parameters(source: _Source, decorators: Sequence[ast.expr], kind: str) -> tuple[Parameter, ...]:
    arguments = source.definition.args
    own = 2 if kind in ("flow", "step") else 1
    names = [a.arg for a in arguments.args]
    if names[:own] != ["conv", "flow"][:own]:
        wanted = ", ".join(("conv: Conversation", "flow: Flow")[:own])
        source.error(f"Function definition 'def {source.definition.name}({wanted}, …)' not found in code.")
    if arguments.vararg or arguments.kwarg or arguments.defaults or arguments.kwonlyargs:
        source.error(
            f"Function definition 'def {source.definition.name}(…)' not found in code. "
            "Parameters take no default values, *args or **kwargs."
        )
    extra = [a for a in arguments.args[own:] if a.arg != "flow"]
    if extra and kind in ("step", "start", "end"):
        label = "Function steps" if kind == "step" else "Start and end functions"
        source.error(f"{label} cannot have parameters.")
        return ()
    described = _parameter_descriptions(source, decorators, {a.arg for a in extra})
    return tuple(Parameter(a.arg, _parameter_type(source, a), described.get(a.arg, "")) for a in extra)


def _parameter_descriptions(source: _Source, decorators: Sequence[ast.expr], known: set[str]) -> dict[str, str]:
    described: dict[str, str] = {}
    for decorator in decorators:
        if _decorator_name(decorator) != "func_parameter":
            continue
        given = _arguments(source, decorator, ("name", "description"))
        name = str(given.get("name", ""))
        if name not in known:
            source.error(
                "ADK decorators found in raw code. This might be because of a parameter mismatch. "
                f"@func_parameter names '{name}', which is not a parameter of the function.",
                decorator,
            )
        described[name] = str(given.get("description", "")).strip()
    return described


def _parameter_type(source: _Source, argument: ast.arg) -> str:
    if argument.annotation is None:
        source.error(f"Parameter '{argument.arg}' has no type annotation. {_SUPPORTED}", argument)
        return "str"
    name = ast.unparse(argument.annotation).strip("'\"")
    if name not in SCHEMA_TYPES:
        source.error(f"Parameter '{argument.arg}' has an unsupported type annotation. {_SUPPORTED}", argument)
        return "str"
    return name


def _latency(source: _Source, decorators: Sequence[ast.expr]) -> tuple[LatencyControl | None, bool]:
    node = next((d for d in decorators if _decorator_name(d) == "func_latency_control"), None)
    if node is None:
        return None, False
    names = ("delay_before_responses_start", "silence_after_each_response", "delay_responses", "randomize")
    given = _arguments(source, node, names)
    delay, silence = (_seconds(source, node, name, given.get(name, 0)) for name in names[:2])
    responses = []
    for item in given.get("delay_responses") or ():
        message, duration = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 0)
        if not isinstance(message, str) or not message.strip():
            source.error("Delay response message cannot be empty.", node)
            continue
        responses.append(DelayResponse(message, float(duration) if isinstance(duration, int | float) else 0.0))
    if not responses:
        source.error("delay_responses cannot be empty.", node)
        return None, False
    return LatencyControl(delay, silence, tuple(responses)), bool(given.get("randomize", False))


def _seconds(source: _Source, node: ast.expr, name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 10:
        source.error(f"{name} must be between 0 and 10, got {value}", node)
        return 0.0
    return float(value)


def _unexpected_decorators(decorators: Sequence[ast.expr], kind: str) -> Iterator[Remark]:
    """Report decorators without effect: the model never sees the function, or the call has not begun."""
    idle = {
        "step": ("func_description", "func_parameter"),
        "start": ("func_latency_control",),
        "end": ("func_latency_control",),
    }.get(kind, ())
    for decorator in decorators:
        if (name := _decorator_name(decorator)) in idle:
            what = "a function step" if kind == "step" else f"the {kind} function"
            yield decorator.lineno, f"@{name} has no effect on {what}."


def _returned_transitions(definition: ast.AST) -> Iterator[ReturnedTransition]:
    maps = (node for node in ast.walk(definition) if isinstance(node, ast.Dict))
    items = (item for each in maps for item in zip(each.keys, each.values, strict=True))
    for key, value in items:
        if not isinstance(key, ast.Constant) or key.value != "transition" or not isinstance(value, ast.Dict):
            continue
        literals = {
            str(k.value): v.value
            for k, v in zip(value.keys, value.values, strict=True)
            if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)
        }
        flow, step = (literals.get(name) or "" for name in ("goto_flow", "goto_step"))
        # A step without its flow can only be checked where no computed value stands beside it.
        if "goto_flow" in literals or len(value.keys) == len(literals):
            yield ReturnedTransition(str(flow), str(step), value.lineno)


def _gotos(definition: ast.AST) -> list[Goto]:
    found = []
    methods: dict[str, Callable[[str, int], Goto]] = {
        "goto_step": lambda name, line: Goto("step", name, line),
        "goto_flow": lambda name, line: Goto("flow", name, line),
    }
    for node in ast.walk(definition):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "exit_flow":
            found.append(Goto("exit", "", node.lineno))
        if not node.args:
            continue
        make, first = methods.get(node.func.attr), node.args[0]
        if make and isinstance(first, ast.Constant) and isinstance(first.value, str):
            found.append(make(first.value, node.lineno))
    return found
