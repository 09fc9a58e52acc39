"""The graph of a flow project: conditions and literal gotos in functions are its edges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from callagent.agents.flows.format.functions import ProjectFunction
from callagent.agents.flows.format.project import Flow, Project
from callagent.agents.kernel import GraphEdge, GraphFlow, GraphStep, ProjectGraph

_FUNCTION = re.compile(r"\{\{ft:(\w+)\}\}")


def project_graph(project: Project) -> ProjectGraph:
    """Build the graph; each edge appears once, in the order of the files."""
    starts = {flow.name: _id(flow.name, flow.start_step) for flow in project.flows.values()}
    edges: dict[GraphEdge, None] = {}
    if project.start_function:
        edges |= dict.fromkeys(_gotos(project.start_function, "", None, starts))
    for flow in project.flows.values():
        edges |= dict.fromkeys(_flow_edges(flow, project.functions, starts))
    return ProjectGraph(tuple(_flow(each) for each in project.flows.values()), tuple(edges))


def _flow(flow: Flow) -> GraphFlow:
    steps = [GraphStep(_id(flow.name, name), name, "step") for name in flow.steps]
    steps += [GraphStep(_id(flow.name, name), name, "function") for name in flow.function_steps]
    return GraphFlow(flow.name, _id(flow.name, flow.start_step), tuple(steps))


def _flow_edges(flow: Flow, functions: Mapping[str, ProjectFunction], starts: dict[str, str]) -> Iterator[GraphEdge]:
    for name, step in flow.steps.items():
        here = _id(flow.name, name)
        for condition in step.conditions:
            if condition.child_step:
                yield GraphEdge(here, _id(flow.name, condition.child_step), condition.name)
        for called in _FUNCTION.findall(step.prompt):
            if function := flow.functions.get(called) or functions.get(called):
                yield from _gotos(function, here, flow, starts)
    for name, function in flow.function_steps.items():
        yield from _gotos(function, _id(flow.name, name), flow, starts)


def _gotos(function: ProjectFunction, source: str, flow: Flow | None, starts: dict[str, str]) -> Iterator[GraphEdge]:
    for goto in function.gotos:
        if goto.kind == "step" and flow is not None:
            yield GraphEdge(source, _id(flow.name, goto.name), function.name)
        elif goto.kind == "flow" and goto.name in starts:
            yield GraphEdge(source, starts[goto.name], function.name)


def _id(flow: str, step: str) -> str:
    return f"{flow}/{step}"
