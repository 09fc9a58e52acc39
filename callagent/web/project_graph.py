"""A flow project as nodes and edges: what its files say can follow what. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callagent.agents.flows import Flow, FlowProject, ProjectFunction

_FUNCTION = re.compile(r"\{\{ft:(\w+)\}\}")

Edge = tuple[str, str, str]


def project_graph(loaded: FlowProject) -> dict[str, Any]:
    """`flows`: `{"name", "start", "steps": [{"id", "name", "kind"}]}`; `edges`: `{"source", "target", "by"}`."""
    project = loaded.project
    flows = [
        {
            "name": flow.name,
            "start": _id(flow.name, flow.start_step),
            "steps": [
                *({"id": _id(flow.name, name), "name": name, "kind": "step"} for name in flow.steps),
                *({"id": _id(flow.name, name), "name": name, "kind": "function"} for name in flow.function_steps),
            ],
        }
        for flow in project.flows.values()
    ]
    starts = {flow.name: _id(flow.name, flow.start_step) for flow in project.flows.values()}
    edges: dict[Edge, None] = {}
    if project.start_function:
        edges |= dict.fromkeys(_gotos(project.start_function, "", None, starts))
    for flow in project.flows.values():
        edges |= dict.fromkeys(_flow_edges(flow, project.functions, starts))
    return {
        "flows": flows,
        "edges": [{"source": source, "target": target, "by": by} for source, target, by in edges],
    }


def _flow_edges(flow: Flow, functions: Any, starts: dict[str, str]) -> Iterator[Edge]:
    for name, step in flow.steps.items():
        here = _id(flow.name, name)
        for condition in step.conditions:
            if condition.child_step:
                yield here, _id(flow.name, condition.child_step), condition.name
        for called in _FUNCTION.findall(step.prompt):
            if function := flow.functions.get(called) or functions.get(called):
                yield from _gotos(function, here, flow, starts)
    for name, function in flow.function_steps.items():
        yield from _gotos(function, _id(flow.name, name), flow, starts)


def _gotos(function: ProjectFunction, source: str, flow: Flow | None, starts: dict[str, str]) -> Iterator[Edge]:
    for goto in function.gotos:
        if goto.kind == "step" and flow is not None:
            yield source, _id(flow.name, goto.name), function.name
        elif goto.kind == "flow" and goto.name in starts:
            yield source, starts[goto.name], function.name


def _id(flow: str, step: str) -> str:
    return f"{flow}/{step}"
