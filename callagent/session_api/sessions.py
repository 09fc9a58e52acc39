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
"""Open sessions of all apps together; each holds a worker process."""
IDLE_SECONDS: Final = 1800.0
"""Seconds without a turn after which a session is closed when another one is opened."""
TURN_SECONDS: Final = 120.0
"""Longest time for a turn, including the wait for the session's previous turn."""
_SESSION_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-_]{4,62}")
_SESSION_NAME = re.compile(r"(?:.*/)?apps/(?P<app>[^/]+)/sessions/(?P<id>[^/]+)")
_DEPLOYMENT_NAME = re.compile(r"(?:.*/)?apps/[^/]+/deployments/(?P<id>[^/]+)")
log = get_logger(__name__)


@dataclass(slots=True)
class LiveSession:
    """A session between its first turn and its end."""

    project: CxProject
    """The app, or the deployment of it that the session runs."""
    session: CxSession
    last_used: float
    """Time of its last turn, in seconds of `time.monotonic`."""
    in_call: bool = False
    """Whether a call holds the session; it is free again when the call has ended."""
    turn_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def expect_no_call(self) -> None:
        """Raise `InputRefused` while a call holds the session."""
        if self.in_call:
            raise InputRefused("the session is in a call")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[CxSession]:
        """Hold the session for one turn. Raises `TimeoutError` after `TURN_SECONDS`, also in the middle of the turn."""
        try:
            async with asyncio.timeout(TURN_SECONDS), self.turn_lock:
                yield self.session
        finally:
            self.last_used = time.monotonic()

    async def reserve_for_call(self) -> None:
        """Hold the session for a call until `release`. Raises `InputRefused` while another call holds it."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                # A previous call of the session may still be ending.
                await self.turn_lock.acquire()
        except TimeoutError:
            raise InputRefused("the session is in a call") from None
        self.in_call = True

    def release(self) -> None:
        """Free the session after a call."""
        self.in_call = False
        self.last_used = time.monotonic()
        self.turn_lock.release()


class SessionTable:
    """The sessions of all apps that the server serves."""

    def __init__(self, projects: Callable[[], Sequence[AgentProject]]) -> None:
        self._projects = projects
        self._sessions: dict[tuple[str, str], LiveSession] = {}
        self._opening = asyncio.Lock()

    async def open_session(self, config: JsonObject) -> LiveSession:
        """Return the session that a SessionConfig names; open it if it is new. Raises `InputRefused`, `NotFound`."""
        name = _SESSION_NAME.fullmatch(str(config.get("session") or ""))
        if name is None or not _SESSION_ID.fullmatch(name["id"]):
            raise InputRefused(
                "'session' should end in apps/APP/sessions/ID, an ID of 5 to 63 letters, digits, '-', '_'"
            )
        app = self._find_app(name["app"])
        deployment = config.get("deployment")
        project = await _open_deployment(app, deployment) if deployment else app
        key = (app.name, name["id"])
        # Under a lock, because two simultaneous first requests would open the session twice.
        async with self._opening:
            await self._close_idle()
            if key not in self._sessions:
                if len(self._sessions) >= MAX_SESSIONS:
                    raise InputRefused(
                        f"the server has {MAX_SESSIONS} open sessions and takes no more; try again later"
                    )
                self._sessions[key] = LiveSession(
                    project, await _open_cx_session(project, name["id"], config), time.monotonic()
                )
        live = self._sessions[key]
        if deployment and live.project is not project:
            raise InputRefused(f"the session began without the deployment '{deployment}'; begin a new session for it")
        live.last_used = time.monotonic()
        return live

    async def close(self) -> None:
        # The table is emptied first: closing takes time, and no request may get a session that is being closed.
        sessions, self._sessions = list(self._sessions.values()), {}
        for live in sessions:
            await live.session.close()

    def _find_app(self, name: str) -> CxProject:
        apps = [each for each in self._projects() if isinstance(each, CxProject)]
        found = next((each for each in apps if name in (each.name, each.name.replace(" ", "_"))), None)
        # A client may name the app by its identifier on Google's platform, which is unknown here. Where there is only
        # one app, the client means that one.
        if found is None and len(apps) == 1:
            return apps[0]
        if found is None:
            raise NotFound(f"there is no app '{name}'; there are: {', '.join(each.name for each in apps) or 'none'}")
        return found

    async def _close_idle(self) -> None:
        now = time.monotonic()
        for key, live in list(self._sessions.items()):
            if now - live.last_used > IDLE_SECONDS and not live.turn_lock.locked():
                del self._sessions[key]
                await live.session.close()


async def _open_deployment(app: CxProject, deployment: JsonValue) -> CxProject:
    """Return the app as a deployment defines it. Raises `InputRefused`, `NotFound`."""
    name = _DEPLOYMENT_NAME.fullmatch(deployment) if isinstance(deployment, str) else None
    if name is None:
        raise InputRefused("'deployment' should end in apps/APP/deployments/ID")
    try:
        return await app.deployed(name["id"])
    except UnknownDeployment as error:
        raise NotFound(str(error)) from None
    except CallagentError as error:
        # The error has paths of this machine, so it goes to the log and not to the client.
        log.error("deployment_not_opened", app=app.name, deployment=name["id"], error=str(error))
        raise InputRefused(f"the deployment '{name['id']}' has errors; the server's log names them") from None


async def _open_cx_session(project: CxProject, identifier: str, config: JsonObject) -> CxSession:
    async def write_metric(name: str, value: object) -> None:
        """Drop the metric: nothing is recorded of a session that is no call."""

    info = CallInfo(identifier, "inbound", None, None, "text", datetime.now(UTC))
    fakes = bool(config.get("useToolFakes"))
    try:
        return CxSession(await project.open_with(info, write_metric, fakes=fakes, clients=True))
    except CallagentError as error:
        raise InputRefused(f"the app cannot be opened: {error}") from None
