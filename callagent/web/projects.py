"""The API of real-time configuration: the settings of a project that operators change while calls run."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from aiohttp import web
from jsonschema import Draft7Validator, SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from callagent.agents import AgentProject
from callagent.log import get_logger
from callagent.web.access import require
from callagent.web.accounts import Right
from callagent.web.body import read_json

ENVIRONMENTS: Final = ("sandbox", "pre-release", "live")
PATH: Final = "/api/projects/{name}/real-time-configs/{environment}"

log = get_logger(__name__)


class ConfigurationApi:
    """The routes of the real-time configuration, a JSON file of the project for each environment."""

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
        """Replace the keys of the body; null removes a key."""
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
            folder = project.real_time_folder(environment) if project.name == name else None
            if folder is not None:
                return folder
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
    """Write the file whole or not at all: a call that reads meanwhile gets the old one. Raises 400 and 409."""
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
    """Raise 400 for data that the schema refuses. Its references lead to itself only: nothing is fetched for them."""
    try:
        Draft7Validator.check_schema(schema)
        error = next(Draft7Validator(schema, registry=Registry()).iter_errors(data), None)
    except (SchemaError, Unresolvable, RecursionError):
        raise web.HTTPConflict(text="schema.json of this environment is not valid") from None
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path) or "the configuration"
        raise web.HTTPBadRequest(text=f"{place}: {error.message[:300]}")
