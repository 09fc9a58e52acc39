"""URIs; the addresses of From, To, Contact and Route; Via; and the hops that these lead to (RFC 3261 §18 to §20)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace

from callagent.sip.message import headers as header_fields

_USER_MARKS = "-_.!~*'()&=+$,;?/#"
_USER = r"(?:[A-Za-z0-9\-_.!~*'()&=+$,;?/#]|%[0-9A-Fa-f]{2})"
_PARAMETER_TEXT = r"(?:[A-Za-z0-9\-_.!~*'()\[\]/:&+$=;]|%[0-9A-Fa-f]{2})"
_HEADER_TEXT = r"(?:[A-Za-z0-9\-_.!~*'()\[\]/?:+$=&]|%[0-9A-Fa-f]{2})"
_SIP = re.compile(
    rf"((?ai:sips?)):(?:({_USER}++)(?::((?:[A-Za-z0-9\-_.!~*'()&=+$,]|%[0-9A-Fa-f]{{2}})*+))?@)?"
    rf"({header_fields.HOST})(?::({header_fields.PORT}))?((?:;{_PARAMETER_TEXT}*+)?)(?:\?({_HEADER_TEXT}++))?"
)
_TEL = re.compile(rf"(\+?[0-9A-Fa-f*#\-.()]++)((?:;{_PARAMETER_TEXT}*+)?)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):([!#-;=?-~]+)")
"""A URI of any scheme: visible ASCII characters without quotes and angle brackets."""


@dataclass(frozen=True, slots=True)
class Uri:
    """A sip, sips or tel URI by its parts, or a URI of another scheme as opaque text."""

    scheme: str
    host: str = ""
    """Empty for tel and opaque URIs; IPv6 in brackets."""
    user: str | None = None
    """The user as written, with its escapes; the number of a tel URI."""
    port: int | None = None
    parameters: header_fields.Parameters = field(default_factory=header_fields.Parameters)
    headers: str | None = None
    """The text after the question mark, as written. It is never applied to a request (§19.1.5)."""
    opaque: str | None = None
    """The text after the scheme of a URI that is not sip, sips or tel."""
    password: str | None = None

    @classmethod
    def parse(cls, value: str) -> Uri:
        """Parse a URI of any scheme. Raises `ValueError`."""
        sip = _SIP.fullmatch(value)
        if sip is not None:
            return cls._of_sip(sip)
        match = _SCHEME.fullmatch(value)
        if match is None:
            raise ValueError("URI is not valid")
        scheme, rest = match[1].lower(), match[2]
        if scheme in ("sip", "sips"):
            raise ValueError("SIP URI is not valid")
        if scheme == "tel":
            return cls._parse_tel(rest)
        return cls(scheme, opaque=rest)

    @classmethod
    def _of_sip(cls, match: re.Match[str]) -> Uri:
        scheme, user, password, host, port, parameters, headers = match.groups()
        return cls(
            scheme.lower(),
            host=header_fields.check_host(host),
            user=user,
            port=None if port is None else header_fields.parse_port(port),
            parameters=header_fields.Parameters.parse(parameters),
            headers=headers,
            password=password,
        )

    @classmethod
    def _parse_tel(cls, rest: str) -> Uri:
        match = _TEL.fullmatch(rest)
        if match is None:
            raise ValueError("tel URI is not valid")
        return cls("tel", user=match[1], parameters=header_fields.Parameters.parse(match[2]))

    def __str__(self) -> str:
        if self.opaque is not None:
            return f"{self.scheme}:{self.opaque}"
        if self.scheme == "tel":
            return f"tel:{self.user}{self.parameters}"
        password = "" if self.password is None else f":{self.password}"
        userinfo = "" if self.user is None else f"{self.user}{password}@"
        port = "" if self.port is None else f":{self.port}"
        headers = "" if self.headers is None else f"?{self.headers}"
        return f"{self.scheme}:{userinfo}{self.host}{port}{self.parameters}{headers}"

    @property
    def user_text(self) -> str | None:
        """The user part without escapes."""
        return None if self.user is None else header_fields.unescape(self.user)

    @property
    def bare_host(self) -> str:
        """The host without the brackets of an IPv6 reference."""
        return self.host.strip("[]")

    def without_headers(self) -> Uri:
        return self if self.headers is None else replace(self, headers=None)


def escape_user(user: str) -> str:
    """Return a text with the escapes that the user part of a URI needs."""
    return header_fields.escape(user, _USER_MARKS)


def host_reference(host: str) -> str:
    """Return an address as a URI contains it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


_NAME_ADDRESS = re.compile(
    rf"({header_fields.QUOTED_STRING}|[^\x00-\x08\x0a-\x1f\"<>,;@\\]*+)\s*<([^<>]*+)>\s*((?:;.*+)?)", re.DOTALL
)
_BARE_ADDRESS = re.compile(r"([^\s<>\";,?]++)\s*((?:;.*+)?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Address:
    """The value of From, To, Contact, Route and similar header fields: name, URI and parameters (§20.10)."""

    uri: Uri
    display_name: str = ""
    parameters: header_fields.Parameters = field(default_factory=header_fields.Parameters)

    @classmethod
    def parse(cls, value: str) -> Address:
        return _parse_cached(value)

    @classmethod
    def _parse_uncached(cls, value: str) -> Address:
        value = value.strip()
        match = _NAME_ADDRESS.fullmatch(value)
        if match is not None:
            name = header_fields.unquote(match[1].strip())
            return cls(Uri.parse(match[2]), name, header_fields.Parameters.parse(match[3]))
        # Without angle brackets all parameters belong to the header field, none to the URI (§20.10).
        match = _BARE_ADDRESS.fullmatch(value)
        if match is None:
            raise ValueError("Address is not valid")
        return cls(Uri.parse(match[1]), "", header_fields.Parameters.parse(match[2]))

    @classmethod
    def parse_list(cls, value: str) -> list[Address]:
        return [cls.parse(item) for item in header_fields.split_list(value)]

    def __str__(self) -> str:
        if not self.display_name:
            return f"<{self.uri}>{self.parameters}"
        plain = all(header_fields.is_token(word) for word in self.display_name.split(" "))
        return f"{self.display_name if plain else header_fields.quote(self.display_name)} <{self.uri}>{self.parameters}"

    @property
    def tag(self) -> str | None:
        return self.parameters.get("tag")

    def with_tag(self, tag: str) -> Address:
        return Address(self.uri, self.display_name, self.parameters.replace("tag", tag))


_parse_cached = header_fields.with_cache(Address._parse_uncached)


BRANCH_COOKIE = "z9hG4bK"
_VIA = re.compile(
    rf"SIP\s*/\s*2\.0\s*/\s*({header_fields.TOKEN})\s+({header_fields.HOST})(?:\s*:\s*({header_fields.PORT}))?\s*((?:;.*+)?)",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Via:
    """One Via value: a hop that the request passed, to which its responses return (§20.42, RFC 3581)."""

    transport: str
    host: str
    port: int | None = None
    parameters: header_fields.Parameters = field(default_factory=header_fields.Parameters)

    @classmethod
    def parse(cls, value: str) -> Via:
        match = _VIA.fullmatch(value.strip())
        if match is None:
            raise ValueError("Via is not valid")
        transport, host, port, parameters = match.groups()
        return cls(
            transport.upper(),
            header_fields.check_host(host),
            None if port is None else header_fields.parse_port(port),
            header_fields.Parameters.parse(parameters),
        )

    @classmethod
    def parse_list(cls, value: str) -> list[Via]:
        return [cls.parse(item) for item in header_fields.split_list(value)]

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"SIP/2.0/{self.transport} {self.host}{port}{self.parameters}"

    @property
    def branch(self) -> str | None:
        return self.parameters.get("branch")

    @property
    def has_unique_branch(self) -> bool:
        """Whether the branch alone identifies the transaction (§8.1.1.7); the branch of an RFC 2543 peer does not."""
        branch = self.branch
        return branch is not None and branch.startswith(BRANCH_COOKIE) and len(branch) > len(BRANCH_COOKIE)

    @property
    def sent_by(self) -> str:
        """Host and port in one form, for comparison (§17.2.3)."""
        return f"{self.host.lower()}:{self.port or (5061 if self.transport == 'TLS' else 5060)}"

    def received_from(self, host: str, port: int) -> Via:
        """Return this Via with `received`, and with `rport` if the sender asked for it (§18.2.1, RFC 3581 §4)."""
        parameters = self.parameters
        has_rport = "rport" in parameters
        # With `rport` the address is written even if it is the one in the Via (RFC 3581 §4).
        if has_rport or self.host.strip("[]") != host:
            parameters = parameters.replace("received", host)
        if has_rport:
            parameters = parameters.replace("rport", str(port))
        return Via(self.transport, self.host, self.port, parameters)

    def response_port(self, source_port: int) -> int:
        """Return the port of the address that responses go to (§18.2.2, RFC 3581 §4)."""
        return source_port if "rport" in self.parameters else self.port or 5060


@dataclass(frozen=True, slots=True)
class Hop:
    """An address and transport that a message is sent to, or came from."""

    host: str
    """An IP address, without brackets."""
    port: int
    transport: str = "udp"
    """`udp`, `tcp` or `tls`."""
    connection: int | None = None
    """The peer's port of an open connection; while it is open, messages to this hop use it (RFC 5923)."""
    name: str = ""
    """The host name that led to the address; the peer's TLS certificate must contain it."""
    tentative: bool = False
    """Whether TCP is only tried because of the size: if it fails, the message goes by UDP (§18.1.1)."""

    @property
    def reliable(self) -> bool:
        return self.transport != "udp"


def response_hop(via: Via, source: Hop) -> Hop:
    """Return where responses go: over the connection of the request, or to the address it came from (§18.2.2)."""
    if source.reliable:
        return Hop(source.host, via.port or default_port(source.transport), source.transport, source.connection)
    return Hop(source.host, via.response_port(source.port))


def default_port(transport: str) -> int:
    return 5061 if transport == "tls" else 5060


def hop_of(uri: Uri) -> Hop | None:
    """Return the hop of a URI with an IP address; None if it names a host, which DNS has to resolve (RFC 3263)."""
    parameter = uri.parameters.get("maddr")
    host = parameter.strip("[]") if parameter else uri.bare_host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    transport = transport_of(uri)
    return Hop(host, uri.port or default_port(transport), transport)


def transport_of(uri: Uri) -> str:
    """Return the transport that a URI asks for: `udp` if none, `tls` for sips (RFC 3261 §26.2.2)."""
    if uri.scheme == "sips":
        return "tls"
    return (uri.parameters.get("transport") or "udp").lower()
