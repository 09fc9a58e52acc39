"""Trunks: keeps us registered, checks by OPTIONS whether they respond, and knows their addresses."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from callagent.log import get_logger
from callagent.sip.endpoint import Endpoint
from callagent.sip.message import (
    MAX_PROOFS,
    Address,
    Credentials,
    CSeq,
    Headers,
    Hop,
    Request,
    Response,
    Uri,
    authorized,
)
from callagent.sip.transport import LookupFailed
from callagent.sip.trunk.registration import Registration

log = get_logger(__name__)

_UNREGISTER_SECONDS = 2.0
"""For all trunks together, when the server ends."""
_LOOKUP_RETRY_SECONDS = 30.0
_LOOKUP_REPEAT_SECONDS = 300.0
"""Between lookups of a trunk's addresses, after a failure and after a success."""


@dataclass(frozen=True, slots=True)
class TrunkSettings:
    """One trunk of the settings."""

    name: str
    server: Uri
    """URI of its registrar and proxy."""
    credentials: Credentials | None = None
    register: bool = False
    keep_alive: float = 0.0
    """Seconds between OPTIONS; 0: none."""


@dataclass(slots=True)
class TrunkState:
    """What is known of one trunk."""

    reachable: bool | None = None
    """Whether the last request got any response; None: none was sent yet."""
    registered: bool | None = None
    """None: the settings do not ask for a registration."""


class Trunks:
    """All trunks of an endpoint, served by one task each."""

    def __init__(self, endpoint: Endpoint, trunks: Sequence[TrunkSettings]) -> None:
        self.states = {trunk.name: TrunkState(None, False if trunk.register else None) for trunk in trunks}
        self._endpoint = endpoint
        self._trunks = trunks
        self._hosts: dict[str, str] = {}
        self._registrations: dict[str, tuple[Registration, Hop]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="sip trunks")

    async def close(self) -> None:
        """Stop the tasks and unregister, in bounded time."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(_UNREGISTER_SECONDS):
                await asyncio.gather(*(self._unregister(trunk) for trunk in self._trunks))
        except TimeoutError:
            log.warning("sip_not_unregistered")

    def admit(self, host: str) -> str | None:
        """Return the name of the trunk that has a server at this IP address, or None."""
        return self._hosts.get(host)

    def of_host(self, uri: Uri) -> TrunkSettings | None:
        """Return the trunk whose host the URI names; its credentials are for no other host."""
        return next((each for each in self._trunks if each.server.host.lower() == uri.host.lower()), None)

    def of_name(self, name: str) -> TrunkSettings | None:
        return next((each for each in self._trunks if each.name == name), None)

    def service_route(self, name: str) -> tuple[Address, ...]:
        """Return the proxies through which the trunk wants our calls (RFC 3608); empty if it named none."""
        known = self._registrations.get(name)
        return () if known is None else known[0].service_route

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for trunk in self._trunks:
                if trunk.register:
                    group.create_task(self._keep_registered(trunk))
                if trunk.keep_alive:
                    group.create_task(self._keep_checking(trunk))
                if not trunk.register and not trunk.keep_alive:
                    group.create_task(self._keep_resolved(trunk))

    async def _keep_registered(self, trunk: TrunkSettings) -> None:
        user = trunk.credentials.username if trunk.credentials else trunk.name
        registration = Registration(trunk.server, user)
        while True:
            request = registration.request()
            response = await self._request(trunk, request, registration)
            seconds = registration.receive(request, response)
            self._note_registered(trunk, registration.registered, response)
            await asyncio.sleep(seconds)

    async def _keep_checking(self, trunk: TrunkSettings) -> None:
        while True:
            await self._request(trunk, _options(trunk.server), None)
            await asyncio.sleep(trunk.keep_alive)

    async def _keep_resolved(self, trunk: TrunkSettings) -> None:
        """Look up the addresses of a trunk that gets neither REGISTER nor OPTIONS."""
        while True:
            found = await self._resolve(trunk)
            await asyncio.sleep(_LOOKUP_REPEAT_SECONDS if found else _LOOKUP_RETRY_SECONDS)

    async def _request(
        self, trunk: TrunkSettings, request: Request, registration: Registration | None
    ) -> Response | None:
        """Send a request to the trunk's servers in order until one responds, other than by 503."""
        response = None
        for hop in await self._resolve(trunk):
            request, response = await self._request_with_proof(trunk, request, hop)
            if registration is not None:
                registration.note_repeated(request)
            if response is not None and response.status != 503:
                if registration is not None:
                    self._registrations[trunk.name] = (registration, hop)
                break
            request = _without_via(request)
        self._note_reachable(trunk, response is not None)
        return response

    async def _request_with_proof(
        self, trunk: TrunkSettings, request: Request, hop: Hop
    ) -> tuple[Request, Response | None]:
        """Send a request, answer up to `MAX_PROOFS` challenges, and return the last request with its response."""
        response = await self._endpoint.request(request, hop)
        for _ in range(MAX_PROOFS):
            again = self._proven(trunk, request, response)
            if again is None:
                break
            request, response = again, await self._endpoint.request(again, hop)
        return request, response

    @staticmethod
    def _proven(trunk: TrunkSettings, request: Request, response: Response | None) -> Request | None:
        if response is None or response.status not in (401, 407) or trunk.credentials is None:
            return None
        return authorized(request, response, trunk.credentials)

    async def _resolve(self, trunk: TrunkSettings) -> tuple[Hop, ...]:
        try:
            hops = await self._endpoint.resolve(trunk.server)
        except (LookupFailed, ValueError) as error:
            log.warning("sip_trunk_not_found", trunk=trunk.name, error=str(error))
            return ()
        self._hosts = {host: name for host, name in self._hosts.items() if name != trunk.name}
        self._hosts |= {hop.host: trunk.name for hop in hops}
        return hops

    async def _unregister(self, trunk: TrunkSettings) -> None:
        known = self._registrations.get(trunk.name)
        if known is None or not known[0].registered:
            return
        registration, hop = known
        await self._request_with_proof(trunk, registration.request(unregister=True), hop)

    def _note_registered(self, trunk: TrunkSettings, registered: bool, response: Response | None) -> None:
        state = self.states[trunk.name]
        if state.registered is not registered or not registered:
            status = None if response is None else response.status
            event = "sip_trunk_registered" if registered else "sip_trunk_not_registered"
            log.info(event, trunk=trunk.name, status=status)
        state.registered = registered

    def _note_reachable(self, trunk: TrunkSettings, reachable: bool) -> None:
        state = self.states[trunk.name]
        if state.reachable is not reachable:
            log.info("sip_trunk_reachable" if reachable else "sip_trunk_not_reachable", trunk=trunk.name)
        state.reachable = reachable


def trunk_metrics(states: Mapping[str, TrunkState]) -> list[str]:
    """Return lines of Prometheus text."""
    lines = []
    for name, values in (
        ("reachable", {trunk: state.reachable for trunk, state in states.items()}),
        ("registered", {trunk: state.registered for trunk, state in states.items()}),
    ):
        known = {trunk: value for trunk, value in values.items() if value is not None}
        if known:
            lines.append(f"# TYPE callagent_sip_trunk_{name} gauge")
            lines += [f'callagent_sip_trunk_{name}{{trunk="{trunk}"}} {int(value)}' for trunk, value in known.items()]
    return lines


def _options(server: Uri) -> Request:
    address = Address(Uri(server.scheme, server.host))
    headers = Headers([("Max-Forwards", "70"), ("From", str(address.with_tag(secrets.token_hex(6))))])
    headers.add("To", str(address))
    headers.add("Call-ID", secrets.token_hex(16))
    headers.add("CSeq", str(CSeq(1, "OPTIONS")))
    headers.add("Accept", "application/sdp")
    return Request(headers, method="OPTIONS", uri=Uri(server.scheme, server.host, port=server.port))


def _without_via(request: Request) -> Request:
    """Return the request for another server, where it is a new transaction."""
    headers = Headers(item for item in request.headers if item[0] not in ("Via", "Contact"))
    return Request(headers, request.body, request.method, request.uri)
