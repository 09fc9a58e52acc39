"""The base class of the settings' sections, and types that check and convert the settings' values."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Network = IPv4Network | IPv6Network
# A host name (RFC 1123 §2.1): labels of letters, digits and inner hyphens, 253 characters in all.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?"
_HOST_NAME = rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?"


class Section(BaseModel):
    """A table of settings. Unknown settings are refused; instances are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Address(str):
    """`HOST:PORT` or `[HOST]:PORT`."""

    @property
    def host(self) -> str:
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.rpartition(":")[2])


def _parse_address(value: object) -> Address:
    text = str(value)
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"'{text}' is not HOST:PORT, such as 127.0.0.1:5060")
    return Address(text)


def _parse_network(value: object) -> Network:
    try:
        return ip_network(str(value))
    except ValueError as error:
        raise ValueError(f"'{value}' is not an address or network, such as 192.0.2.0/24: {error}") from None


def _parse_port_range(value: object) -> tuple[int, int]:
    if isinstance(value, tuple):
        # When `override` replaces one setting, it checks all again: this one has been parsed already.
        value = "{}-{}".format(*value)
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", str(value))
    if not match or not 1024 <= int(match[1]) < int(match[2]) <= 65535:
        raise ValueError(f"'{value}' is not a range of ports from 1024 to 65535, such as 10000-20000")
    return int(match[1]), int(match[2])


def _parse_url(value: object) -> str:
    # A slash at the end is removed, because paths are appended.
    text = str(value).rstrip("/")
    if text and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise ValueError(f"'{value}' is not a URL such as https://phone.example.com")
    return text


def _parse_server_url(value: object) -> str:
    """Return a URL, or the address of a server that speaks its own protocol (`tcp://HOST:PORT`)."""
    text = str(value).rstrip("/")
    return text if re.fullmatch(r"tcp://[^\s/:]+:\d{1,5}", text) else _parse_url(value)


def plain_address(text: str) -> IPv4Address | IPv6Address:
    """Parse an IP address. An IPv4 address mapped into IPv6 (RFC 4291 §2.5.5.2) is returned as the IPv4 address."""
    address = ip_address(text)
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _split_names(value: object) -> object:
    """Return names as a tuple where they are a text with commas between them; anything else as it is."""
    if not isinstance(value, str):
        return value
    # `script:FILE` is one name: the path of the file may contain a comma.
    return (value,) if value.startswith("script:") else tuple(name.strip() for name in value.split(","))


# The headers of SIP itself (RFC 3261 §20 and the extensions that we speak): no setting may name one.
_PROTOCOL_HEADERS = frozenset(
    (
        "accept", "accept-contact", "allow", "allow-events", "authorization", "call-id", "contact",
        "content-disposition", "content-encoding", "content-length", "content-type",
        "cseq", "event", "expires", "from", "identity", "join",
        "max-forwards", "mime-version", "min-se", "path", "proxy-authenticate", "proxy-authorization", "proxy-require",
        "rack", "record-route", "refer-sub", "refer-to", "referred-by", "reject-contact", "replaces",
        "request-disposition", "require", "route", "rseq", "service-route", "session-expires", "subscription-state",
        "supported", "target-dialog", "to", "unsupported", "via", "www-authenticate",
    )
)  # fmt: skip


def _check_header_name(value: object) -> str:
    name = str(value)
    if not re.fullmatch(r"[A-Za-z0-9!%*_+`'~.-]{2,64}", name, re.ASCII) or name.lower() in _PROTOCOL_HEADERS:
        raise ValueError(
            f"'{name}' cannot be set on a transfer; write the long name of a header that SIP does not use itself"
        )
    return name


def _check_recipient(value: object) -> str:
    # Only ASCII is allowed, because letters of other alphabets look like Latin ones.
    text = str(value)
    if not re.fullmatch(r"any|\+[1-9][0-9]{6,14}|[^\s@,;:<>\"()]*@[^\s@,;:<>\"()]+", text, re.ASCII):
        raise ValueError(f"'{text}' is not a recipient; write a number in E.164, an e-mail address, @DOMAIN or any")
    return text


RecipientSetting = Annotated[str, BeforeValidator(_check_recipient)]
HeaderNameSetting = Annotated[str, BeforeValidator(_check_header_name)]


def _parse_public_address(value: object) -> str:
    """Return an IP address that peers can send to, as SDP carries it; an empty text stays empty."""
    text = str(value).strip().strip("[]")
    if not text:
        return ""
    try:
        address = plain_address(text)
    except ValueError:
        raise ValueError(
            f"'{text}' is not an IP address; write the address that media is sent to here, and a host name into "
            "'sip.public_host'"
        ) from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"'{text}' is not an address that peers can send to; write the one that reaches this server")
    return str(address)


def _parse_public_host(value: object) -> str:
    """Return a host name or IP address; an empty text stays empty."""
    # Brackets, as an IPv6 address has them in a URL, are taken off.
    text = str(value).strip().strip("[]")
    if text and not re.fullmatch(_HOST_NAME, text):
        try:
            return str(plain_address(text))
        except ValueError:
            raise ValueError(
                f"'{text}' is not a host name or IP address; write it without a scheme and without a port"
            ) from None
    return text


Port = Annotated[int, Field(ge=1, le=65535)]
AddressSetting = Annotated[Address, BeforeValidator(_parse_address)]
NamesSetting = Annotated[tuple[str, ...], BeforeValidator(_split_names), Field(min_length=1)]
UrlSetting = Annotated[str, BeforeValidator(_parse_url)]
ServerUrlSetting = Annotated[str, BeforeValidator(_parse_server_url)]
NetworkSetting = Annotated[Network, BeforeValidator(_parse_network)]
PublicAddressSetting = Annotated[str, BeforeValidator(_parse_public_address)]
PublicHostSetting = Annotated[str, BeforeValidator(_parse_public_host)]
PortRangeSetting = Annotated[tuple[int, int], BeforeValidator(_parse_port_range)]
