"""One media stream's messages: to nobody until it has proved whose it is, then to its leg."""

from __future__ import annotations

from callagent.carriers.dialect import StreamStarted
from callagent.carriers.media_socket import MediaSocket
from callagent.carriers.twilio.calls import CarrierCalls
from callagent.carriers.twilio.dialect import TwilioDialect
from callagent.carriers.twilio.leg import CarrierLeg


class Stream:
    def __init__(self, socket: MediaSocket, calls: CarrierCalls) -> None:
        self._socket = socket
        self._calls = calls
        self._messages = socket.messages()
        self._dialect = TwilioDialect()
        self._leg: CarrierLeg | None = None

    async def introduce(self) -> None:
        """Until the stream has started with a valid token. Raises `Refused`, `DialectError`."""
        async for text in self._messages:
            event = self._dialect.receive(text) if text is not None else None
            if isinstance(event, StreamStarted):
                self._leg = self._calls.begin(event, self._socket, self._dialect)
                return

    async def go_on(self) -> None:
        """Until the socket ends. Raises `DialectError`."""
        leg = self._leg
        if leg is None:
            return
        async for text in self._messages:
            leg.heard_from()
            event = self._dialect.receive(text) if text is not None else None
            if event is not None:
                leg.receive(event, self._socket)
            if not leg.listens_to(self._socket):
                return

    def cut(self) -> None:
        if self._leg:
            self._leg.cut(self._socket)

    def fail(self, detail: str) -> None:
        if self._leg:
            self._leg.fail(detail)
