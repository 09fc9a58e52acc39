"""The API of real-time configuration: what operators change while calls run."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from jsonschema import Draft7Validator, SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from callagent.agents import AgentProject
from callagent.agents.flows import FlowProject, RealTimeConfiguration
from callagent.log import get_logger
from callagent.web.access import require
from callagent.web.accounts import Right
from callagent.web.body import read_json

if TYPE_CHECKING:
    from callagent.agents.flows import Flow, FlowProject, ProjectFunction

ENVIRONMENTS: Final = ("sandbox", "pre-release", "live")
PATH: Final = "/api/projects/{name}/real-time-configs/{environment}"

log = get_logger(__name__)


class ConfigurationApi:
    def __init__(self, projects: Callable[[], Sequence[AgentProject]]) -> None:
        self._projects = projects
        self._writing = asyncio.Lock()

    def register(self, app: web.Application) -> None:
        app.router.add_get(PATH, self.read)
        app.router.add_get(PATH + "/schema", self.schema)
        app.router.add_put(PATH, self.replace)
        app.router.add_patch(PATH, self.change)

    async def read(self, request: web.Request) -> web.Response:
        require(request, Right.VIEW)
        require(request, Right.PERSONAL)
        return web.json_response(await asyncio.to_thread(_read, self._folder(request) / "data.json"))

    async def schema(self, request: web.Request) -> web.Response:
        require(request, Right.VIEW)
        return web.json_response(await asyncio.to_thread(_read, self._folder(request) / "schema.json"))

    async def replace(self, request: web.Request) -> web.Response:
        return await self._write(request, merge=False)

    async def change(self, request: web.Request) -> web.Response:
        """The keys of the body are replaced; null takes a key away."""
        return await self._write(request, merge=True)

    async def _write(self, request: web.Request, *, merge: bool) -> web.Response:
        identity = require(request, Right.CONFIGURE)
        folder, sent = self._folder(request), await read_json(request)
        if not isinstance(sent, dict):
            raise web.HTTPBadRequest(text="the configuration should be an object")
        async with self._writing:
            data = await asyncio.to_thread(_store, folder, sent, merge=merge)
        log.info("real_time_configuration_written", project=request.match_info["name"], operator=identity.name)
        return web.json_response(data)

    def _folder(self, request: web.Request) -> Path:
        name, environment = request.match_info["name"], request.match_info["environment"]
        if environment not in ENVIRONMENTS:
            raise web.HTTPNotFound(text=f"environments are {', '.join(ENVIRONMENTS)}")
        for project in self._projects():
            if project.name == name and isinstance(project, FlowProject):
                return RealTimeConfiguration(project.project.path).folder(environment)
        raise web.HTTPNotFound(text="no such project is served here")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise web.HTTPConflict(text=f"{path.name} of this environment cannot be read") from None
    return data if isinstance(data, dict) else {}


def _store(folder: Path, sent: dict[str, Any], *, merge: bool) -> dict[str, Any]:
    """Written whole or not at all: a call that reads meanwhile reads the file before."""
    path = folder / "data.json"
    data = {**_read(path), **sent} if merge else sent
    if merge:
        data = {name: value for name, value in data.items() if value is not None}
    _check(data, _read(folder / "schema.json"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=folder, prefix=".data-", encoding="utf-8", delete=False) as file:
            json.dump(data, file, ensure_ascii=False, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except OSError as error:
        raise web.HTTPConflict(text=f"the project's folder cannot be written: {error.strerror}") from None
    return data


def _check(data: dict[str, Any], schema: dict[str, Any]) -> None:
    """Raises 400. A schema's references lead to itself only; nothing is fetched for them."""
    try:
        Draft7Validator.check_schema(schema)
        error = next(Draft7Validator(schema, registry=Registry()).iter_errors(data), None)
    except (SchemaError, Unresolvable, RecursionError):
        raise web.HTTPConflict(text="schema.json of this environment is not valid") from None
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path) or "the configuration"
        raise web.HTTPBadRequest(text=f"{place}: {error.message[:300]}")


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
