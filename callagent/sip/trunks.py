"""Registration at trunks (RFC 3261 §10.2), checks by OPTIONS whether they respond, and lookups of their addresses."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from callagent.log import get_logger
from callagent.sip.digest import MAX_CHALLENGES, Credentials, authorize_request
from callagent.sip.dns_lookup import LookupFailed
from callagent.sip.endpoint import Endpoint
from callagent.sip.message import Address, CSeq, Headers, Hop, Request, Response, Uri, parse_integer

log = get_logger(__name__)

_UNREGISTER_SECONDS = 2.0
"""Time limit to unregister from all trunks when the server stops."""
_LOOKUP_RETRY_SECONDS = 30.0
_LOOKUP_REPEAT_SECONDS = 300.0
"""Pauses between lookups of a trunk's addresses, after a failure and after a success."""


@dataclass(frozen=True, slots=True)
class TrunkSettings:
    """One trunk of the settings."""

    name: str
    server: Uri
    """URI of its registrar and proxy."""
    credentials: Credentials | None = None
    register: bool = False
    keep_alive: float = 0.0
    """Seconds between two OPTIONS; 0: none are sent."""


@dataclass(slots=True)
class TrunkState:
    """Whether one trunk responds and has registered us."""

    reachable: bool | None = None
    """Whether the last request got any response; None: none was sent yet."""
    registered: bool | None = None
    """None: the settings do not ask for a registration."""


class Trunks:
    """All trunks of an endpoint; tasks keep them registered, checked or resolved."""

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
        # Otherwise the trunk would send us calls until the registration expires, up to an hour later.
        try:
            async with asyncio.timeout(_UNREGISTER_SECONDS):
                await asyncio.gather(*(self._unregister(trunk) for trunk in self._trunks))
        except TimeoutError:
            log.warning("sip_not_unregistered")

    def admit(self, host: str) -> str | None:
        """Return the name of the trunk that has a server at this IP address, or None."""
        return self._hosts.get(host)

    def find_by_host(self, uri: Uri) -> TrunkSettings | None:
        """Return the trunk whose host the URI names; its credentials are for no other host."""
        return next((each for each in self._trunks if each.server.host.lower() == uri.host.lower()), None)

    def find_by_name(self, name: str) -> TrunkSettings | None:
        return next((each for each in self._trunks if each.name == name), None)

    def service_route(self, name: str) -> tuple[Address, ...]:
        """Return the proxies through which our calls to the trunk go (RFC 3608); empty if it named none."""
        entry = self._registrations.get(name)
        return () if entry is None else entry[0].service_route

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
            # Another request follows in any case: only cancelling ends the loop.
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
        """Send a request to the trunk's servers in order, until one responds with another status than 503."""
        response = None
        for hop in await self._resolve(trunk):
            request, response = await self._request_with_credentials(trunk, request, hop)
            if registration is not None:
                registration.note_last_request(request)
            if response is not None and response.status != 503:
                if registration is not None:
                    self._registrations[trunk.name] = (registration, hop)
                break
            request = _without_via(request)
        self._note_reachable(trunk, response is not None)
        return response

    async def _request_with_credentials(
        self, trunk: TrunkSettings, request: Request, hop: Hop
    ) -> tuple[Request, Response | None]:
        """Send a request, answer up to `MAX_CHALLENGES` challenges, and return the last request with its response."""
        response = await self._endpoint.request(request, hop)
        for _ in range(MAX_CHALLENGES):
            again = self._with_credentials(trunk, request, response)
            if again is None:
                break
            request, response = again, await self._endpoint.request(again, hop)
        return request, response

    @staticmethod
    def _with_credentials(trunk: TrunkSettings, request: Request, response: Response | None) -> Request | None:
        if response is None or response.status not in (401, 407) or trunk.credentials is None:
            return None
        return authorize_request(request, response, trunk.credentials)

    async def _resolve(self, trunk: TrunkSettings) -> tuple[Hop, ...]:
        try:
            hops = await self._endpoint.resolve(trunk.server)
        except (LookupFailed, ValueError) as error:
            log.warning("sip_trunk_not_found", trunk=trunk.name, error=str(error))
            return ()
        # Addresses that DNS no longer names do not belong to the trunk any more.
        self._hosts = {host: name for host, name in self._hosts.items() if name != trunk.name}
        self._hosts |= {hop.host: trunk.name for hop in hops}
        return hops

    async def _unregister(self, trunk: TrunkSettings) -> None:
        entry = self._registrations.get(trunk.name)
        if entry is None or not entry[0].registered:
            return
        registration, hop = entry
        await self._request_with_credentials(trunk, registration.request(unregister=True), hop)

    def _note_registered(self, trunk: TrunkSettings, registered: bool, response: Response | None) -> None:
        state = self.states[trunk.name]
        # Each failure is logged, but a success only when it changes the state.
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
    """Return the metrics of all trunks as lines of Prometheus text."""
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
    """Return the request without the headers of its transaction, to send it to another server in a new one."""
    headers = Headers(item for item in request.headers if item[0] not in ("Via", "Contact"))
    return Request(headers, request.body, request.method, request.uri)


_EXPIRES_SECONDS = 3600
"""Requested lifetime of a registration."""
_MAX_EXPIRES_SECONDS = 86_400
_MIN_REFRESH_SECONDS = 5.0
_FIRST_RETRY_SECONDS = 30.0
_MAX_RETRY_SECONDS = 600.0
_MAX_SERVICE_ROUTE = 8
"""Proxies of a Service-Route; a longer one is ignored."""


class Registration:
    """One registration: send `request()`, and pass its response to `receive()`, which returns when the next is due."""

    def __init__(self, server: Uri, user: str) -> None:
        self.registered = False
        self.service_route: tuple[Address, ...] = ()
        """The proxies that our calls have to pass while we are registered (RFC 3608 §6.1)."""
        self._server = Uri(server.scheme, server.host, port=server.port, parameters=server.parameters)
        self._address = Uri(server.scheme, server.host, user=user)
        self._call_id = secrets.token_hex(16)
        self._tag = secrets.token_hex(6)
        self._cseq = 0
        self._expires = _EXPIRES_SECONDS
        self._failures = 0

    def request(self, *, unregister: bool = False) -> Request:
        """Return the next REGISTER, or the one that ends the registration."""
        self._cseq += 1
        headers = Headers([("Max-Forwards", "70")])
        headers.add("From", str(Address(self._address).with_tag(self._tag)))
        headers.add("To", str(Address(self._address)))
        headers.add("Call-ID", self._call_id)
        headers.add("CSeq", str(CSeq(self._cseq, "REGISTER")))
        headers.add("Expires", "0" if unregister else str(self._expires))
        # A proxy may add itself to the path of calls to us (RFC 3327 §5.1).
        headers.add("Supported", "path")
        return Request(headers, method="REGISTER", uri=self._server)

    def note_last_request(self, request: Request) -> None:
        """Continue from the CSeq of the last request that was sent; each answer to a challenge has raised it."""
        self._cseq = request.cseq.number

    def receive(self, request: Request, response: Response | None) -> float:
        """Return the seconds until the next request, which grow with each failure (RFC 5626 §4.5)."""
        if response is not None and 200 <= response.status < 300:
            self.registered = True
            self.service_route = _service_route(response)
            self._failures = 0
            # The next request follows before the registration expires, with time for a few retransmissions.
            return max(_MIN_REFRESH_SECONDS, 0.9 * _granted_seconds(request, response, self._expires))
        self.registered = False
        self.service_route = ()
        if response is not None and response.status == 423 and self._accept_longer_expiry(response):
            return 0.0
        self._failures += 1
        # The wait is random, so that clients do not reach a registrar all at once when it comes back.
        longest = min(_MAX_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2 ** (self._failures - 1))
        return random.uniform(longest / 2, longest)

    def _accept_longer_expiry(self, response: Response) -> bool:
        """Adopt the Min-Expires of a 423; False if it is not longer than the requested expiry."""
        seconds = _parse_seconds(response.headers.get("Min-Expires"))
        longer = seconds is not None and seconds > self._expires
        if longer and seconds is not None:
            self._expires = seconds
        return longer


def _service_route(response: Response) -> tuple[Address, ...]:
    """Return the Service-Route; empty if it is invalid or names a strict router, which we do not support."""
    try:
        route = [each for value in response.headers.values("Service-Route") for each in Address.parse_list(value)]
    except ValueError:
        return ()
    loose = all(each.uri.scheme in ("sip", "sips") and "lr" in each.uri.parameters for each in route)
    return tuple(route) if loose and len(route) <= _MAX_SERVICE_ROUTE else ()


def _granted_seconds(request: Request, response: Response, requested: int) -> int:
    """Return the expiry of our own Contact, or else of the whole response, or else `requested`."""
    # A 200 lists all contacts of the user, also those of other phones (§10.3).
    ours = {str(contact.uri) for contact in request.contacts}
    for contact in response.contacts:
        seconds = _parse_seconds(contact.parameters.get("expires")) if str(contact.uri) in ours else None
        if seconds is not None:
            return seconds
    return _parse_seconds(response.headers.get("Expires")) or requested


def _parse_seconds(value: str | None) -> int | None:
    try:
        return None if value is None else parse_integer(value.strip(), _MAX_EXPIRES_SECONDS)
    except ValueError:
        return None
