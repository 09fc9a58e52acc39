"""Two user agents joined in memory by a wire that loses what its pattern says, on a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from callagent.sip import (
    Address,
    CallClosed,
    CallPath,
    Event,
    Hop,
    InviteReceived,
    Negotiation,
    Request,
    Response,
    Uri,
    UserAgent,
    UserAgentSettings,
    parse_message,
)
from callagent.sip.dialog.call import SipCall

PHONE = ("192.0.2.1", 5060)
SERVER = ("192.0.2.2", 5060)
ONE_WAY = 0.01


def settings(**changes: object) -> UserAgentSettings:
    return replace(UserAgentSettings(admit=lambda host: "trunk"), **changes)


class Side:
    def __init__(self, address: tuple[str, int], made_of: UserAgentSettings) -> None:
        self.address = address
        self.core = UserAgent(made_of, lambda peer: address)
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda event: None
        self.heard: list[Request | Response] = []

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def calls(self) -> list[SipCall]:
        return [event.call for event in self.events if isinstance(event, InviteReceived)]

    def statuses(self, method: str) -> list[int]:
        return [m.status for m in self.heard if isinstance(m, Response) and m.cseq.method == method]

    def requests(self, method: str) -> list[Request]:
        return [m for m in self.heard if isinstance(m, Request) and m.method == method]


class Pair:
    """`phone` and `server`. `lose(n, data)` says whether the nth datagram is lost."""

    def __init__(
        self,
        lose: Callable[[int, bytes], bool] = lambda number, data: False,
        *,
        server: UserAgentSettings | None = None,
        phone: UserAgentSettings | None = None,
    ) -> None:
        self.now = 100.0
        self.lose = lose
        self.phone = Side(PHONE, phone or settings(accepts_transfers=True))
        self.server = Side(SERVER, server or settings())
        self._air: list[tuple[float, int, Side, Side, bytes]] = []
        self._sent = 0

    def dial(self, body: bytes | None = None, path: CallPath | None = None, **more: object) -> SipCall:
        offer = Negotiation(PHONE[0], 4000, 1, loopback=False).offer() if body is None else body
        caller = Address.parse("<sip:+15551230000@192.0.2.1>")
        target = Uri.parse("sip:agent@192.0.2.2")
        return self.phone.core.call(target, path or Hop(*SERVER), self.now, caller=caller, body=offer, **more)

    def establish(self) -> tuple[SipCall, SipCall]:
        """An answered call, as the phone's and the server's side see it."""
        ours = self.dial()
        self.run(1.0)
        theirs = self.server.calls[-1]
        theirs.answer(self.answer_to(theirs), self.now)
        self.run(1.0)
        return ours, theirs

    @staticmethod
    def answer_to(call: SipCall) -> bytes:
        return Negotiation(SERVER[0], 5000, 2, loopback=False).answer(call.invite.body)[0]

    def send(self, data: bytes, *, to: str = "server") -> None:
        """Put raw bytes on the wire, as the other side."""
        source, target = (self.phone, self.server) if to == "server" else (self.server, self.phone)
        self._air.append((self.now, self._sent, source, target, data))

    def run(self, seconds: float = 200.0) -> None:
        """Until nothing is to be done any more, but for so many seconds at most."""
        end = self.now + seconds
        while True:
            self._collect()
            times = [entry[0] for entry in self._air]
            times += [when for side in (self.phone, self.server) if (when := side.core.next_timer()) is not None]
            if not times or min(times) > end:
                self.now = end
                return
            self.now = max(self.now, min(times))
            self._deliver()
            for side in (self.phone, self.server):
                side.core.handle_timer(self.now)

    def _collect(self) -> None:
        for side, other in ((self.phone, self.server), (self.server, self.phone)):
            while (event := side.core.next_event()) is not None:
                side.events.append(event)
                side.on_event(event)
            for data, hop in side.core.messages_to_send():
                self._sent += 1
                if (hop.host, hop.port) == other.address and not self.lose(self._sent, data):
                    self._air.append((self.now + ONE_WAY, self._sent, side, other, data))

    def _deliver(self) -> None:
        due = sorted((entry for entry in self._air if entry[0] <= self.now), key=lambda entry: entry[:2])
        self._air = [entry for entry in self._air if entry[0] > self.now]
        for _, _, source, target, data in due:
            try:
                target.heard.append(parse_message(data))
            except ValueError:
                pass
            target.core.receive_datagram(data, source.address, self.now)

    def idle(self) -> bool:
        """Whether both sides have forgotten everything."""
        return all(
            not side.core.calls and not side.core.transactions and side.core.next_timer() is None
            for side in (self.phone, self.server)
        )


def closed(side: Side) -> int:
    return len(side.of(CallClosed))
