"""Our registration at a trunk (RFC 3261 §10.2): what to send next, and when."""

from __future__ import annotations

import random
import secrets

from callagent.sip.message import Address, CSeq, Headers, Request, Response, Uri, parse_integer

_EXPIRES = 3600
_MAX_EXPIRES = 86_400
_SHORTEST_REFRESH = 5.0
_FIRST_RETRY = 30.0
_LONGEST_RETRY = 600.0
_MAX_ROUTE = 8


class Registration:
    """`request()` goes out, what came back goes to `hear()`, which says when the next is due."""

    def __init__(self, server: Uri, user: str) -> None:
        self.registered = False
        self.service_route: tuple[Address, ...] = ()
        """The way of our calls through the trunk, as long as we are registered (RFC 3608 §6.1)."""
        self._server = Uri(server.scheme, server.host, port=server.port, parameters=server.parameters)
        self._address = Uri(server.scheme, server.host, user=user)
        self._call_id = secrets.token_hex(16)
        self._tag = secrets.token_hex(6)
        self._cseq = 0
        self._expires = _EXPIRES
        self._failures = 0

    def request(self, *, leave: bool = False) -> Request:
        """The next REGISTER; one that takes the registration back when we leave."""
        self._cseq += 1
        headers = Headers([("Max-Forwards", "70")])
        headers.add("From", str(Address(self._address).with_tag(self._tag)))
        headers.add("To", str(Address(self._address)))
        headers.add("Call-ID", self._call_id)
        headers.add("CSeq", str(CSeq(self._cseq, "REGISTER")))
        headers.add("Expires", "0" if leave else str(self._expires))
        # A proxy on the way may put itself on the way of calls to us (RFC 3327 §5.1).
        headers.add("Supported", "path")
        return Request(headers, method="REGISTER", uri=self._server)

    def repeat(self, request: Request) -> None:
        """Note a request that was sent once more, with a proof and a number of its own."""
        self._cseq = request.cseq.number

    def hear(self, request: Request, response: Response | None) -> float:
        """Seconds until the next request; a failure waits longer each time (RFC 5626 §4.5)."""
        if response is not None and 200 <= response.status < 300:
            self.registered = True
            self.service_route = _service_route(response)
            self._failures = 0
            return max(_SHORTEST_REFRESH, 0.9 * _granted(request, response, self._expires))
        self.registered = False
        self.service_route = ()
        if response is not None and response.status == 423 and self._accept_longer(response):
            return 0.0
        self._failures += 1
        longest = min(_LONGEST_RETRY, _FIRST_RETRY * 2 ** (self._failures - 1))
        return random.uniform(longest / 2, longest)

    def _accept_longer(self, response: Response) -> bool:
        """Whether the shortest time that the registrar takes is new to us."""
        seconds = _seconds(response.headers.get("Min-Expires"))
        longer = seconds is not None and seconds > self._expires
        if longer and seconds is not None:
            self._expires = seconds
        return longer


def _service_route(response: Response) -> tuple[Address, ...]:
    """Nothing where it cannot be followed: each of its proxies has to route loosely."""
    try:
        route = [each for value in response.headers.values("Service-Route") for each in Address.parse_list(value)]
    except ValueError:
        return ()
    loose = all(each.uri.scheme in ("sip", "sips") and "lr" in each.uri.parameters for each in route)
    return tuple(route) if loose and len(route) <= _MAX_ROUTE else ()


def _granted(request: Request, response: Response, asked: int) -> int:
    """Of our own Contact, else of the whole response."""
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
