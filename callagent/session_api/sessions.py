"""The live sessions of the Session API by app and identifier: bounded in number, closed when idle."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from callagent.agents import AgentProject
from callagent.agents.cx import CxProject, CxSession, InputRefused, NotFound, UnknownDeployment
from callagent.call_info import CallInfo
from callagent.carriers import CLOSE_SECONDS
from callagent.errors import CallagentError
from callagent.json_values import JsonObject, JsonValue
from callagent.log import get_logger

MAX_SESSIONS: Final = 200
IDLE_SECONDS: Final = 1800.0
"""A session that nobody has used for so long is closed when a new one is opened."""
TURN_SECONDS: Final = 120.0
"""Time for a turn, the wait for the turn before it included."""
_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-_]{4,62}")
_NAME = re.compile(r"(?:.*/)?apps/(?P<app>[^/]+)/sessions/(?P<id>[^/]+)")
_DEPLOYMENT = re.compile(r"(?:.*/)?apps/[^/]+/deployments/(?P<id>[^/]+)")
log = get_logger(__name__)


@dataclass(slots=True)
class LiveSession:
    """A session between its first turn and its end."""

    project: CxProject
    """The app, or the deployment of it that the session runs."""
    session: CxSession
    used: float
    """Monotonic seconds of its last turn."""
    in_call: bool = False
    """Whether a call holds the session; it is free again when the call has ended."""
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def expect_no_call(self) -> None:
        """Raise `InputRefused` while a call holds the session."""
        if self.in_call:
            raise InputRefused("the session is in a call")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[CxSession]:
        """Hold the session for one turn. Raises `TimeoutError`, also in the middle of the turn."""
        try:
            async with asyncio.timeout(TURN_SECONDS), self.one_at_a_time:
                yield self.session
        finally:
            self.used = time.monotonic()

    async def reserve_for_call(self) -> None:
        """Hold the session for a call until `release`. Raises `InputRefused` while another call holds it."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                # The call that had it may still be ending.
                await self.one_at_a_time.acquire()
        except TimeoutError:
            raise InputRefused("the session is in a call") from None
        self.in_call = True

    def release(self) -> None:
        """Free the session after a call."""
        self.in_call = False
        self.used = time.monotonic()
        self.one_at_a_time.release()


class SessionTable:
    """The sessions of all apps that the server serves."""

    def __init__(self, projects: Callable[[], Sequence[AgentProject]]) -> None:
        self._projects = projects
        self._sessions: dict[tuple[str, str], LiveSession] = {}
        self._opening = asyncio.Lock()

    async def open_session(self, config: JsonObject) -> LiveSession:
        """Return the session that a SessionConfig names, and open a new one. Raises `InputRefused`, `NotFound`."""
        named = _NAME.fullmatch(str(config.get("session") or ""))
        if named is None or not _ID.fullmatch(named["id"]):
            raise InputRefused("'session' should end in apps/APP/sessions/ID, the ID of 5 to 63 letters and digits")
        app = self._app(named["app"])
        deployment = config.get("deployment")
        project = await _open_deployment(app, deployment) if deployment else app
        key = (app.name, named["id"])
        # One at a time: two first requests of a session would open it twice.
        async with self._opening:
            await self._close_idle()
            if key not in self._sessions:
                if len(self._sessions) >= MAX_SESSIONS:
                    raise InputRefused("too many sessions")
                self._sessions[key] = LiveSession(
                    project, await _open_agent(project, named["id"], config), time.monotonic()
                )
        live = self._sessions[key]
        if deployment and live.project is not project:
            raise InputRefused(f"the session has begun without the deployment '{deployment}'")
        live.used = time.monotonic()
        return live

    async def close(self) -> None:
        # The table is empty before the first one is closed: closing takes time, in which nobody may get one of them.
        sessions, self._sessions = list(self._sessions.values()), {}
        for live in sessions:
            await live.session.close()

    def _app(self, name: str) -> CxProject:
        apps = [each for each in self._projects() if isinstance(each, CxProject)]
        found = next((each for each in apps if name in (each.name, each.name.replace(" ", "_"))), None)
        # Clients may send the identifiers that the app has on Google's platform, which are not known here: then the
        # only app is meant.
        if found is None and len(apps) == 1:
            return apps[0]
        if found is None:
            raise NotFound(f"there is no app '{name}'; there are: {', '.join(each.name for each in apps) or 'none'}")
        return found

    async def _close_idle(self) -> None:
        now = time.monotonic()
        for key, live in list(self._sessions.items()):
            if now - live.used > IDLE_SECONDS and not live.one_at_a_time.locked():
                del self._sessions[key]
                await live.session.close()


async def _open_deployment(app: CxProject, deployment: JsonValue) -> CxProject:
    """Return the app as a deployment defines it. Raises `InputRefused`, `NotFound`."""
    named = _DEPLOYMENT.fullmatch(deployment) if isinstance(deployment, str) else None
    if named is None:
        raise InputRefused("'deployment' should end in apps/APP/deployments/ID")
    try:
        return await app.deployed(named["id"])
    except UnknownDeployment as error:
        raise NotFound(str(error)) from None
    except CallagentError as error:
        # The message has paths of this machine: it goes to the log, not to the client.
        log.error("deployment_not_opened", app=app.name, deployment=named["id"], error=str(error))
        raise InputRefused(f"the deployment '{named['id']}' cannot be served as it is written") from None


async def _open_agent(project: CxProject, identifier: str, config: JsonObject) -> CxSession:
    async def write_metric(name: str, value: object) -> None:
        """Drop the metric: nothing is recorded of a session that is no call."""

    info = CallInfo(identifier, "inbound", None, None, "text", datetime.now(UTC))
    fakes = bool(config.get("useToolFakes"))
    try:
        return CxSession(await project.open_with(info, write_metric, fakes=fakes, clients=True))
    except CallagentError as error:
        raise InputRefused(f"the app cannot be opened: {error}") from None
