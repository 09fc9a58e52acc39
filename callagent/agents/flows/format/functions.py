"""Project functions as their source describes them; the core never imports project code.

The signature, the decorators, and moves to literal names of steps and flows are read. Legal constructs whose effect the
author may not expect become remarks: they are found by following the paths through a function, to see which moves each
path queues and whether it decides anything.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from callagent.agents.actions import DelayResponse, LatencyControl
from callagent.agents.kernel import Findings, read_text
from callagent.json_values import JsonObject

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
    """Display name of its flow, or provider_id of its MCP server; None for global, start and end functions."""
    file: str
    line: int
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    latency: LatencyControl | None = None
    randomize: bool = False
    gotos: tuple[Goto, ...] = ()
    transitions: tuple[ReturnedTransition, ...] = ()
    remarks: tuple[Remark, ...] = ()
    """Warnings of effects that its author may not expect."""
    schema: JsonObject | None = None
    """JSON schema of the arguments of a remote function, in place of `parameters`."""


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
        # ValueError: the source holds a null byte.
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
    return _build_function(_Source(file, findings, definition), kind, flow)


def _build_function(source: _Source, kind: str, flow: str | None) -> ProjectFunction:
    definition = source.definition
    decorators = [d for d in definition.decorator_list if _decorator_name(d) in _DECORATORS]
    description = _read_description(source, decorators, kind)
    parameters = _read_parameters(source, decorators, kind)
    latency, randomize = _read_latency(source, decorators)
    return ProjectFunction(
        name=definition.name,
        kind=kind,
        flow=flow,
        file=source.file,
        line=definition.lineno,
        # The decorator wins. The docstring is for readers, but better than no description for the model.
        description=description or (ast.get_docstring(definition) or "").strip(),
        parameters=parameters,
        latency=latency,
        randomize=randomize,
        gotos=tuple(_find_gotos(definition)),
        transitions=tuple(_find_returned_transitions(definition)),
        remarks=(*_find_useless_decorators(decorators, kind), *find_remarks(definition, kind)),
    )


def _decorator_name(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def _read_arguments(source: _Source, node: ast.expr, names: Sequence[str]) -> dict[str, object]:
    """Return a decorator's literal arguments by name; one that is not literal is reported and left out.

    `names` are the names of its positional arguments.
    """
    if not isinstance(node, ast.Call):
        return {}
    given = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
    found: dict[str, object] = {}
    # Only literals are read, because evaluating an expression would run project code in the core.
    for name, value in given:
        try:
            found[str(name)] = ast.literal_eval(value)
        except ValueError:
            source.error(f"The argument '{name}' of @{_decorator_name(node)} should be written out as a literal.", node)
    return found


def _read_description(source: _Source, decorators: Sequence[ast.expr], kind: str) -> str:
    found = [d for d in decorators if _decorator_name(d) == "func_description"]
    if not found:
        if kind in ("global", "flow"):
            source.error('Function description cannot be empty. Add @func_description("…").')
        return ""
    text = str(_read_arguments(source, found[0], ("description",)).get("description", "")).strip()
    if not text:
        source.error("Function description cannot be empty. Tell the model what the function is for.", found[0])
    return text


def _read_parameters(source: _Source, decorators: Sequence[ast.expr], kind: str) -> tuple[Parameter, ...]:
    arguments = source.definition.args
    # Functions of a flow and function steps are given `flow` as their second argument.
    leading = 2 if kind in ("flow", "step") else 1
    names = [a.arg for a in arguments.args]
    if names[:leading] != ["conv", "flow"][:leading]:
        wanted = ", ".join(("conv: Conversation", "flow: Flow")[:leading])
        source.error(f"Function definition 'def {source.definition.name}({wanted}, …)' not found in code.")
    if arguments.vararg or arguments.kwarg or arguments.defaults or arguments.kwonlyargs:
        source.error(
            f"Function definition 'def {source.definition.name}(…)' not found in code. "
            "Parameters take no default values, *args or **kwargs."
        )
    # A global function may take `flow` in any place; the model never fills it.
    extra = [a for a in arguments.args[leading:] if a.arg != "flow"]
    if extra and kind in ("step", "start", "end"):
        label = "Function steps" if kind == "step" else "Start and end functions"
        source.error(f"{label} cannot have parameters. The model does not call them: read conv.state instead.")
        return ()
    described = _parameter_descriptions(source, decorators, {a.arg for a in extra})
    return tuple(Parameter(a.arg, _parameter_type(source, a), described.get(a.arg, "")) for a in extra)


def _parameter_descriptions(source: _Source, decorators: Sequence[ast.expr], known: set[str]) -> dict[str, str]:
    described: dict[str, str] = {}
    for decorator in decorators:
        if _decorator_name(decorator) != "func_parameter":
            continue
        given = _read_arguments(source, decorator, ("name", "description"))
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


def _read_latency(source: _Source, decorators: Sequence[ast.expr]) -> tuple[LatencyControl | None, bool]:
    node = next((d for d in decorators if _decorator_name(d) == "func_latency_control"), None)
    if node is None:
        return None, False
    names = ("delay_before_responses_start", "silence_after_each_response", "delay_responses", "randomize")
    given = _read_arguments(source, node, names)
    delay, silence = (_read_seconds(source, node, name, given.get(name, 0)) for name in names[:2])
    responses = []
    delayed = given.get("delay_responses")
    for item in delayed if isinstance(delayed, list | tuple) else ():
        message, duration = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 0)
        if not isinstance(message, str) or not message.strip():
            source.error("Delay response message cannot be empty. Write the words that are said.", node)
            continue
        responses.append(DelayResponse(message, float(duration) if isinstance(duration, int | float) else 0.0))
    if not responses:
        source.error("delay_responses cannot be empty. Give at least one (text, seconds).", node)
        return None, False
    return LatencyControl(delay, silence, tuple(responses)), bool(given.get("randomize", False))


def _read_seconds(source: _Source, node: ast.expr, name: str, value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 10:
        source.error(f"{name} must be between 0 and 10, got {value}. It is a number of seconds.", node)
        return 0.0
    return float(value)


def _find_useless_decorators(decorators: Sequence[ast.expr], kind: str) -> Iterator[Remark]:
    """Yield remarks on decorators without effect on a function of this kind."""
    useless = {
        "step": ("func_description", "func_parameter"),
        "start": ("func_latency_control",),
        "end": ("func_latency_control",),
    }.get(kind, ())
    for decorator in decorators:
        if (name := _decorator_name(decorator)) in useless:
            what = "a function step" if kind == "step" else f"the {kind} function"
            yield decorator.lineno, f"@{name} has no effect on {what}."


def _find_returned_transitions(definition: ast.AST) -> Iterator[ReturnedTransition]:
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
        # A step without a flow cannot be checked if the dict has a computed value, which may be the flow.
        if "goto_flow" in literals or len(value.keys) == len(literals):
            yield ReturnedTransition(str(flow), str(step), value.lineno)


def _find_gotos(definition: ast.AST) -> list[Goto]:
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


Remark = tuple[int, str]
"""Line, and a warning that says what will happen."""


def find_remarks(definition: ast.FunctionDef | ast.AsyncFunctionDef, kind: str) -> Iterator[Remark]:
    yield from _find_comparisons_with_false(definition)
    yield from _find_assigned_moves(definition)
    paths = find_paths(definition)
    if any("exit" in path.queued and path.queued & {"flow", "step"} for path in paths):
        message = "conv.exit_flow() and a goto on one path through the function: the goto wins, the flow is not left."
        yield definition.lineno, message
    if kind == "flow":
        yield from _find_undecided_paths(definition, paths)
    if kind == "step" and not any(path.decides for path in paths):
        yield definition.lineno, "The function step goes nowhere: the call stays on it until the caller speaks."


def _find_comparisons_with_false(definition: ast.AST) -> Iterator[Remark]:
    for node in ast.walk(definition):
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq):
            continue
        # `conv.state.x == False` is a trap: a key that was never set is None, and `None == False` is not true.
        right = node.comparators[0]
        if isinstance(right, ast.Constant) and right.value is False and _may_be_none(node.left):
            text = ast.unparse(node.left)
            yield node.lineno, f"'{text} == False' does not hold when {text} is None. Write 'not {text}'."


def _may_be_none(node: ast.expr) -> bool:
    """Return whether an expression reads the conversation: state, entities and variants are None where not set."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return "conv" in names and isinstance(node, ast.Attribute | ast.Call | ast.Subscript)


def _find_assigned_moves(definition: ast.AST) -> Iterator[Remark]:
    """Yield remarks on assigned results of `conv.call_handoff(…)` and similar methods, which return None."""
    for node in ast.walk(definition):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        method = node.value.func
        if isinstance(method, ast.Attribute) and method.attr in ("call_handoff", "goto_step", "goto_flow", "exit_flow"):
            yield node.lineno, f"{ast.unparse(method)}() returns None: it queues what happens after the function."


def _find_undecided_paths(
    definition: ast.FunctionDef | ast.AsyncFunctionDef, paths: frozenset[FunctionPath]
) -> Iterator[Remark]:
    undecided = [path for path in paths if not path.decides]
    if undecided and len(undecided) == len(paths):
        yield (
            definition.lineno,
            "The function neither returns anything nor goes anywhere: the model is asked again on the same step.",
        )
    elif undecided and any(path.returned for path in paths):
        yield (
            definition.lineno,
            "A path through the function ends without `return` or a goto, while another returns a value: "
            "the model is asked again on the same step with an empty result.",
        )


_MOVES = {"goto_flow": "flow", "goto_step": "step", "exit_flow": "exit"}
_UNDECIDING = ("log", "write_metric", "state", "get")
"""Attributes of `conv` and `flow` whose calls decide nothing."""
_MAX_PATHS = 64
"""Paths after which no further statements are followed: each branch doubles their number."""


@dataclass(frozen=True, slots=True)
class FunctionPath:
    """One path through a function: the moves that it queues, and whether it decides anything."""

    queued: frozenset[str] = frozenset()
    """Which of `flow`, `step` and `exit` the path queues."""
    acted: bool = False
    """Whether the path has a call that may decide something (`_may_decide`)."""
    ended: bool = False
    """Whether the path has reached a `return` or `raise`."""
    returned: bool = False
    """The path ends with a value, or with an exception."""

    @property
    def decides(self) -> bool:
        return self.returned or self.acted or bool(self.queued)


def find_paths(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[FunctionPath]:
    return _follow_block(definition.body, frozenset({FunctionPath()}))


def _follow_block(statements: Iterable[ast.stmt], paths: frozenset[FunctionPath]) -> frozenset[FunctionPath]:
    for statement in statements:
        # Paths that have ended do not run what follows their `return` or `raise`.
        going = frozenset(path for path in paths if not path.ended)
        if not going or len(paths) > _MAX_PATHS:
            break
        paths = (paths - going) | _follow_statement(statement, going)
    return paths


def _follow_statement(node: ast.stmt, paths: frozenset[FunctionPath]) -> frozenset[FunctionPath]:
    match node:
        case ast.Return(value=value):
            paths = _follow_calls(value, paths)
            return frozenset(replace(path, ended=True, returned=value is not None) for path in paths)
        case ast.Raise():
            return frozenset(replace(path, ended=True, returned=True) for path in paths)
        case ast.If(test=test, body=body, orelse=orelse):
            paths = _follow_calls(test, paths)
            return _follow_block(body, paths) | _follow_block(orelse, paths)
        case ast.For() | ast.AsyncFor() | ast.While():
            # A loop may run its body or not; one round represents all.
            return paths | _follow_block([*node.body, *node.orelse], paths)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return _follow_block(body, paths)
        case ast.Try():
            whole = _follow_block([*node.body, *node.orelse], paths)
            # An exception may come before the body has run any call, so handlers begin with the paths before `try`.
            caught = [_follow_block(handler.body, paths) for handler in node.handlers]
            return _follow_block(node.finalbody, whole.union(*caught))
        case ast.Match(cases=cases):
            # Without a `case _`, it may be that no case matches.
            has_default = any(isinstance(each.pattern, ast.MatchAs) and each.pattern.pattern is None for each in cases)
            return frozenset().union(() if has_default else paths, *(_follow_block(each.body, paths) for each in cases))
        # A definition does not run the body of the function or class that it defines.
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return paths
        case _:
            return _follow_calls(node, paths)


def _follow_calls(node: ast.AST | None, paths: frozenset[FunctionPath]) -> frozenset[FunctionPath]:
    """Return the paths with the effects of the calls in a plain statement or an expression."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)] if node is not None else []
    queued = {kind for call in calls if (kind := _queued_move(call))}
    acted = any(_may_decide(call) for call in calls)
    return frozenset(replace(path, queued=path.queued | queued, acted=path.acted or acted) for path in paths)


def _queued_move(call: ast.Call) -> str | None:
    """Return `flow`, `step` or `exit` for a call that queues such a move; None for other calls."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    return _MOVES.get(function.attr) if function.value.id in ("conv", "flow") else None


def _may_decide(call: ast.Call) -> bool:
    """Return whether a call may decide something: a method of `conv` or `flow`, or a function that is given either."""
    text = ast.unparse(call.func)
    if text.startswith(("conv.", "flow.")):
        # `conv.log.info(…)` and the like decide nothing.
        return not any(part in _UNDECIDING for part in text.split(".")[1:])
    # A function that is given the conversation may do anything with it, so its call may decide something.
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(value, ast.Name) and value.id in ("conv", "flow") for value in given)
