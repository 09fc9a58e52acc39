"""The sessions of the Session API that are held: by app and identifier, bounded in number, closed when idle."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from callagent.agents import AgentProject
from callagent.agents.cx import CxProject, CxSession, InputRefused, NotFound, UnknownDeployment
from callagent.call_info import CallInfo
from callagent.carriers import CLOSE_SECONDS
from callagent.errors import CallagentError
from callagent.log import get_logger

MAX_SESSIONS: Final = 200
IDLE_SECONDS: Final = 1800.0
"""After which a session that nobody uses makes place."""
TURN_SECONDS: Final = 120.0
_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-_]{4,62}")
_NAME = re.compile(r"(?:.*/)?apps/(?P<app>[^/]+)/sessions/(?P<id>[^/]+)")
_DEPLOYMENT = re.compile(r"(?:.*/)?apps/[^/]+/deployments/(?P<id>[^/]+)")
log = get_logger(__name__)


@dataclass(slots=True)
class Held:
    project: CxProject
    """The app, or the deployment of it that the session runs."""
    session: CxSession
    used: float
    in_call: bool = False
    """A call has it, from which it comes back."""
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def free(self) -> Held:
        """Raises `InputRefused` while a call has it."""
        if self.in_call:
            raise InputRefused("the session is in a call")
        return self

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[CxSession]:
        """Raises `TimeoutError`."""
        try:
            async with asyncio.timeout(TURN_SECONDS), self.one_at_a_time:
                yield self.session
        finally:
            self.used = time.monotonic()

    async def take_over(self) -> None:
        """For a call, until `give_back`. Raises `InputRefused` where another call keeps it."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                # The call that had it may still be ending.
                await self.one_at_a_time.acquire()
        except TimeoutError:
            raise InputRefused("the session is in a call") from None
        self.in_call = True

    def give_back(self) -> None:
        self.in_call = False
        self.used = time.monotonic()
        self.one_at_a_time.release()


class SessionTable:
    def __init__(self, projects: Callable[[], Sequence[AgentProject]]) -> None:
        self._projects = projects
        self._sessions: dict[tuple[str, str], Held] = {}
        self._opening = asyncio.Lock()

    async def held(self, config: Mapping[str, Any]) -> Held:
        """The session that a SessionConfig names, made where it is new. Raises `InputRefused`."""
        named = _NAME.fullmatch(str(config.get("session") or ""))
        if named is None or not _ID.fullmatch(named["id"]):
            raise InputRefused("'session' should end in apps/APP/sessions/ID, the ID of 5 to 63 letters and digits")
        app = self._app(named["app"])
        deployment = config.get("deployment")
        project = await _deployed(app, deployment) if deployment else app
        key = (app.name, named["id"])
        async with self._opening:
            await self._make_place()
            if key not in self._sessions:
                if len(self._sessions) >= MAX_SESSIONS:
                    raise InputRefused("too many sessions")
                self._sessions[key] = Held(project, await _open(project, named["id"], config), time.monotonic())
        held = self._sessions[key]
        if deployment and held.project is not project:
            raise InputRefused(f"the session has begun without the deployment '{deployment}'")
        held.used = time.monotonic()
        return held

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for held in sessions:
            await held.session.close()

    def _app(self, name: str) -> CxProject:
        apps = [each for each in self._projects() if isinstance(each, CxProject)]
        found = next((each for each in apps if name in (each.name, each.name.replace(" ", "_"))), None)
        # Identifiers of the platform are not ours: with one app it is meant.
        if found is None and len(apps) == 1:
            return apps[0]
        if found is None:
            raise NotFound(f"there is no app '{name}'; there are: {', '.join(each.name for each in apps) or 'none'}")
        return found

    async def _make_place(self) -> None:
        now = time.monotonic()
        for key, held in list(self._sessions.items()):
            if now - held.used > IDLE_SECONDS and not held.one_at_a_time.locked():
                del self._sessions[key]
                await held.session.close()


async def _deployed(app: CxProject, deployment: Any) -> CxProject:
    """Raises `InputRefused`."""
    named = _DEPLOYMENT.fullmatch(deployment) if isinstance(deployment, str) else None
    if named is None:
        raise InputRefused("'deployment' should end in apps/APP/deployments/ID")
    try:
        return await app.deployed(named["id"])
    except UnknownDeployment as error:
        raise NotFound(str(error)) from None
    except CallagentError as error:
        # Where the app's files lie is not the client's to know.
        log.error("deployment_not_opened", app=app.name, deployment=named["id"], error=str(error))
        raise InputRefused(f"the deployment '{named['id']}' cannot be served as it is written") from None


async def _open(project: CxProject, identifier: str, config: Mapping[str, Any]) -> CxSession:
    async def write_metric(name: str, value: Any) -> None:
        """A session is no call: nothing of it is kept."""

    info = CallInfo(identifier, "inbound", None, None, "text", datetime.now(UTC))
    fakes = bool(config.get("useToolFakes"))
    try:
        return CxSession(await project.open_with(info, write_metric, fakes=fakes, clients=True))
    except CallagentError as error:
        raise InputRefused(f"the app cannot be opened: {error}") from None
