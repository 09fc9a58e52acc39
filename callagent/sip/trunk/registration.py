"""Our registration at a trunk: which REGISTER is next, and when (RFC 3261 §10.2)."""

from __future__ import annotations

import random
import secrets

from callagent.sip.message import Address, CSeq, Headers, Request, Response, Uri, parse_integer

_EXPIRES = 3600
_MAX_EXPIRES = 86_400
_MIN_REFRESH_SECONDS = 5.0
_FIRST_RETRY_SECONDS = 30.0
_MAX_RETRY_SECONDS = 600.0
_MAX_SERVICE_ROUTE = 8


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
        self._expires = _EXPIRES
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

    def note_repeated(self, request: Request) -> None:
        """Continue the CSeq of a request that was repeated with a proof."""
        self._cseq = request.cseq.number

    def receive(self, request: Request, response: Response | None) -> float:
        """Return the seconds until the next request; after failures they grow (RFC 5626 §4.5)."""
        if response is not None and 200 <= response.status < 300:
            self.registered = True
            self.service_route = _service_route(response)
            self._failures = 0
            return max(_MIN_REFRESH_SECONDS, 0.9 * _granted(request, response, self._expires))
        self.registered = False
        self.service_route = ()
        if response is not None and response.status == 423 and self._accept_longer(response):
            return 0.0
        self._failures += 1
        longest = min(_MAX_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2 ** (self._failures - 1))
        return random.uniform(longest / 2, longest)

    def _accept_longer(self, response: Response) -> bool:
        """Adopt the Min-Expires of a 423; False if it is not longer than what was asked for."""
        seconds = _seconds(response.headers.get("Min-Expires"))
        longer = seconds is not None and seconds > self._expires
        if longer and seconds is not None:
            self._expires = seconds
        return longer


def _service_route(response: Response) -> tuple[Address, ...]:
    """Return the Service-Route; empty if it is invalid or has a strict router, as we cannot follow that."""
    try:
        route = [each for value in response.headers.values("Service-Route") for each in Address.parse_list(value)]
    except ValueError:
        return ()
    loose = all(each.uri.scheme in ("sip", "sips") and "lr" in each.uri.parameters for each in route)
    return tuple(route) if loose and len(route) <= _MAX_SERVICE_ROUTE else ()


def _granted(request: Request, response: Response, asked: int) -> int:
    """Return the expiry of our own Contact, or else of the whole response."""
    ours = {str(contact.uri) for contact in request.contacts}
    for contact in response.contacts:
        seconds = _seconds(contact.parameters.get("expires")) if str(contact.uri) in ours else None
        if seconds is not None:
            return seconds
    return _seconds(response.headers.get("Expires")) or asked


def _seconds(value: str | None) -> int | None:
    try:
        return None if value is None else parse_integer(value.strip(), _MAX_EXPIRES)
    except ValueError:
        return None
