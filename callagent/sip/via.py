"""Via: the way a request came and its responses go back (RFC 3261 §20.42, RFC 3581)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from callagent.sip.grammar import HOST, PORT, TOKEN, check_host, parse_port, split_list
from callagent.sip.parameters import Parameters

BRANCH_COOKIE = "z9hG4bK"
_VIA = re.compile(
    rf"SIP\s*/\s*2\.0\s*/\s*({TOKEN})\s+({HOST})(?:\s*:\s*({PORT}))?\s*((?:;.*+)?)", re.DOTALL | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Via:
    transport: str
    host: str
    port: int | None = None
    parameters: Parameters = field(default_factory=Parameters)

    @classmethod
    def parse(cls, value: str) -> Via:
        match = _VIA.fullmatch(value.strip())
        if match is None:
            raise ValueError("Via is not valid")
        transport, host, port, parameters = match.groups()
        return cls(
            transport.upper(),
            check_host(host),
            None if port is None else parse_port(port),
            Parameters.parse(parameters),
        )

    @classmethod
    def parse_list(cls, value: str) -> list[Via]:
        return [cls.parse(item) for item in split_list(value)]

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"SIP/2.0/{self.transport} {self.host}{port}{self.parameters}"

    @property
    def branch(self) -> str | None:
        return self.parameters.get("branch")

    @property
    def has_unique_branch(self) -> bool:
        """Whether the branch alone identifies the transaction; an RFC 2543 peer's does not."""
        branch = self.branch
        return branch is not None and branch.startswith(BRANCH_COOKIE) and len(branch) > len(BRANCH_COOKIE)

    @property
    def sent_by(self) -> str:
        return f"{self.host.lower()}:{self.port or (5061 if self.transport == 'TLS' else 5060)}"

    def received_from(self, host: str, port: int) -> Via:
        """As the next hop writes it down before it goes on: `received`, and `rport` where asked for."""
        parameters = self.parameters
        symmetric = "rport" in parameters
        if symmetric or self.host.strip("[]") != host:
            parameters = parameters.replace("received", host)
        if symmetric:
            parameters = parameters.replace("rport", str(port))
        return Via(self.transport, self.host, self.port, parameters)

    def response_port(self, source_port: int) -> int:
        """The port responses go to, at the address the request came from (§18.2.2, RFC 3581 §4)."""
        return source_port if "rport" in self.parameters else self.port or 5060
