"""URIs: sip, sips and tel by their parts, every other scheme as opaque text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from callagent.sip.grammar import HOST, PORT, check_host, escape, parse_port, unescape
from callagent.sip.parameters import Parameters

_USER_MARKS = "-_.!~*'()&=+$,;?/#"
_USER = r"(?:[A-Za-z0-9\-_.!~*'()&=+$,;?/#]|%[0-9A-Fa-f]{2})"
_PARAMETER_TEXT = r"(?:[A-Za-z0-9\-_.!~*'()\[\]/:&+$=;]|%[0-9A-Fa-f]{2})"
_HEADER_TEXT = r"(?:[A-Za-z0-9\-_.!~*'()\[\]/?:+$=&]|%[0-9A-Fa-f]{2})"
_SIP = re.compile(
    rf"((?ai:sips?)):(?:({_USER}++)(?::((?:[A-Za-z0-9\-_.!~*'()&=+$,]|%[0-9A-Fa-f]{{2}})*+))?@)?"
    rf"({HOST})(?::({PORT}))?((?:;{_PARAMETER_TEXT}*+)?)(?:\?({_HEADER_TEXT}++))?"
)
_TEL = re.compile(rf"(\+?[0-9A-Fa-f*#\-.()]++)((?:;{_PARAMETER_TEXT}*+)?)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):([!#-;=?-~]+)")
"""Any URI: visible ASCII without quotes and angle brackets."""


@dataclass(frozen=True, slots=True)
class Uri:
    scheme: str
    host: str = ""
    """Empty for tel and opaque URIs; IPv6 in brackets."""
    user: str | None = None
    """As written, escapes kept; the number of a tel URI."""
    port: int | None = None
    parameters: Parameters = field(default_factory=Parameters)
    headers: str | None = None
    """What follows the question mark, as written. Never applied to a request."""
    opaque: str | None = None
    """The rest of a URI whose scheme is not ours."""
    password: str | None = None

    @classmethod
    def parse(cls, value: str) -> Uri:
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
            host=check_host(host),
            user=user,
            port=None if port is None else parse_port(port),
            parameters=Parameters.parse(parameters),
            headers=headers,
            password=password,
        )

    @classmethod
    def _parse_tel(cls, rest: str) -> Uri:
        match = _TEL.fullmatch(rest)
        if match is None:
            raise ValueError("tel URI is not valid")
        return cls("tel", user=match[1], parameters=Parameters.parse(match[2]))

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
        """The user part with its escapes resolved."""
        return None if self.user is None else unescape(self.user)

    @property
    def bare_host(self) -> str:
        """The host without the brackets of an IPv6 reference."""
        return self.host.strip("[]")

    def without_headers(self) -> Uri:
        return self if self.headers is None else replace(self, headers=None)


def escape_user(user: str) -> str:
    """The text as a URI's user part."""
    return escape(user, _USER_MARKS)


def host_reference(host: str) -> str:
    """An address as a URI writes it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
