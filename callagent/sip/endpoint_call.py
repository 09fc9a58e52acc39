"""A call as its owner on the event loop holds it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from callagent.sip.call import NO_HEADERS, SipCall
from callagent.sip.events import Event
from callagent.sip.in_dialog import send_digit
from callagent.sip.uri import Uri

_MAX_EARLY_EVENTS = 64


class CallHost(Protocol):
    """What a call needs of its endpoint."""

    def now(self) -> float: ...

    def flush(self) -> None: ...

    def local_host(self, peer: str | None = None) -> str: ...

    def handle_of(self, core: SipCall) -> EndpointCall: ...


class EndpointCall:
    """One call's verbs without `now`, and its events."""

    def __init__(self, endpoint: CallHost, core: SipCall, trunk: str) -> None:
        self.core = core
        self.trunk = trunk
        """The name that `admit` gave to the caller; empty for our own calls."""
        self.closed = asyncio.Event()
        self._endpoint = endpoint
        self._on_event: Callable[[Event], None] | None = None
        self._early: deque[Event] = deque(maxlen=_MAX_EARLY_EVENTS)

    def listen(self, on_event: Callable[[Event], None]) -> None:
        """Where events go; ones that came earlier are delivered at once."""
        self._on_event = on_event
        while self._early:
            on_event(self._early.popleft())

    def ring(self, body: bytes = b"") -> None:
        """180; or 183 with our answer in `body`, for what is to be heard before the call is taken."""
        self.core.ring(self._endpoint.now(), body)
        self._endpoint.flush()

    def answer(self, body: bytes) -> None:
        self.core.answer(body, self._endpoint.now())
        self._endpoint.flush()

    def hang_up(self, *, status: int = 480, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.core.hang_up(self._endpoint.now(), status=status, headers=headers)
        self._endpoint.flush()

    def refer(self, target: Uri, headers: Mapping[str, str] = NO_HEADERS, *, to: EndpointCall | None = None) -> None:
        """Ask the peer to call `target`, or, given `to`, to take our place in that call (RFC 5589 §7)."""
        replaced = None if to is None else to.core
        self.core.refer(target, self._endpoint.now(), headers, replaced)
        self._endpoint.flush()

    def send_digit(self, digit: str) -> None:
        """By INFO."""
        send_digit(self.core, digit, self._endpoint.now())
        self._endpoint.flush()

    def report_transfer(self, status: int) -> None:
        self.core.report_transfer(status, self._endpoint.now())
        self._endpoint.flush()

    def reoffer(self, body: bytes) -> None:
        self.core.reoffer(body, self._endpoint.now())
        self._endpoint.flush()

    def accept_offer(self, body: bytes) -> None:
        self.core.accept_offer(body, self._endpoint.now())
        self._endpoint.flush()

    def refuse_offer(self, status: int = 488) -> None:
        self.core.refuse_offer(self._endpoint.now(), status)
        self._endpoint.flush()

    def local_host(self) -> str:
        """Our address as this call's peer reaches it, for SDP."""
        dialog = self.core.dialog
        peer = dialog.peer if dialog is not None else None
        return self._endpoint.local_host(peer.host if peer is not None else None)

    def successor(self, by: SipCall) -> EndpointCall:
        """The call of a `CallReplaced` event."""
        return self._endpoint.handle_of(by)

    def deliver(self, event: Event) -> None:
        if self._on_event is None:
            self._early.append(event)
        else:
            self._on_event(event)

    def close(self) -> None:
        """After its last event: nobody hears of it again, and it keeps nobody who listened."""
        self._on_event = _ignore
        self.closed.set()


def _ignore(event: Event) -> None:
    """For a call that is over."""
