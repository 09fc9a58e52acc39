"""Opens SIP as the settings say: sockets, certificates, trunks, who may call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from callagent.config import Address, SipSettings, Trunk
from callagent.errors import ConfigError, UserError
from callagent.legs.sip import MediaOfTrunk, SipLeg, SipLegFactory, TrunkMedia, any_trunk
from callagent.log import get_logger
from callagent.rtp import Pump, RtpPorts
from callagent.sip import (
    Account,
    Credentials,
    DigestSettings,
    Encryption,
    RateLimit,
    TlsSettings,
    Trunks,
    TrunkSettings,
    Uri,
    UserAgentSettings,
    certificate_end,
    trunk_metrics,
)

log = get_logger(__name__)

RETRY_SECONDS = 1
"""After which a trunk whose calls come too fast may try again."""
WARNING_DAYS = 14
"""Before a certificate ends."""


@dataclass(frozen=True, slots=True)
class SignallingLimits:
    attempts: int = 8
    """Servers, and users that these send us to, that one call of ours is tried at."""
    on_reached: Callable[[str, str], None] = lambda limit, trunk: None
    """Told of each call that a limit keeps out: the limit as the settings name it, and the trunk."""


class Signalling:
    """The SIP side of a server. Made by `open`."""

    def __init__(
        self,
        legs: SipLegFactory,
        trunks: Trunks,
        addresses: list[tuple[str, str, int]],
        certificate: Path | None,
        pump: Pump,
    ) -> None:
        self.pump = pump
        self._certificate = certificate
        self.legs = legs
        self.trunks = trunks
        self.addresses = addresses
        """Transport, host and port of each socket."""

    @classmethod
    async def open(
        cls,
        sip: SipSettings,
        take: Callable[[SipLeg], None],
        busy: Callable[[], int | None],
        stack: AsyncExitStack,
        limits: SignallingLimits = SignallingLimits(),
    ) -> Signalling:
        """Raises `UserError` naming the setting."""
        trunk_settings = [trunk_settings_of(trunk) for trunk in sip.trunks if trunk.server]
        pump = Pump()
        pump.start()
        stack.callback(pump.stop)
        legs = SipLegFactory(RtpPorts(sip.listen.host, *sip.rtp_ports), pump, take, media=media_settings_of(sip))
        admission, rates = _Admission(sip), _CallRates(sip.trunks, limits.on_reached)
        settings = UserAgentSettings(
            admit=admission.admit,
            busy=busy,
            pace=rates.incoming,
            max_attempts=limits.attempts,
            public_host=sip.public_host or None,
            public_address=sip.public_address or None,
            digest=digest_settings_of(sip),
        )
        opening = legs.open(sip.listen.host, sip.listen.port, settings, tls_settings_of(sip))
        addresses = [("udp", *await _listening("sip.listen", sip.listen, opening))]
        stack.push_async_callback(legs.close)
        for transport, address in (("tcp", sip.listen_tcp), ("tls", sip.listen_tls)):
            if address is not None:
                opening = legs.listen(transport, address.host, address.port)
                addresses.append((transport, *await _listening(f"sip.listen_{transport}", address, opening)))
        trunks = admission.trunks = legs.join(trunk_settings, rates.outgoing)
        trunks.start()
        stack.push_async_callback(trunks.close)
        certificate = _file(sip.certificate)
        warn_of_end(certificate)
        return cls(legs, trunks, addresses, certificate, pump)

    def metrics(self) -> list[str]:
        """Lines of Prometheus text."""
        return [*trunk_metrics(self.trunks.states), *certificate_metrics(self._certificate)]


class _Admission:
    """Who may call: the networks of trunks, the addresses of their servers, and who proves to be one."""

    def __init__(self, sip: SipSettings) -> None:
        self.trunks: Trunks | None = None
        self._sip = sip

    def admit(self, host: str) -> str | None:
        by_source = self._sip.admit(host)
        if by_source or self.trunks is None:
            return by_source
        return self.trunks.admit(host) or by_source


class _CallRates:
    """How fast calls of each trunk may begin; what is no trunk, as on a machine of one's own, is not counted."""

    def __init__(self, trunks: Sequence[Trunk], on_reached: Callable[[str, str], None]) -> None:
        self._on_reached = on_reached
        self._incoming = {trunk.name: _rate_of(trunk) for trunk in trunks}
        self._outgoing = {trunk.name: _rate_of(trunk) for trunk in trunks}

    def incoming(self, trunk: str) -> int | None:
        """Seconds for Retry-After where one more call comes too soon."""
        if _take(self._incoming, trunk):
            return None
        self._on_reached("calls_per_second", trunk)
        return RETRY_SECONDS

    def outgoing(self, trunk: str) -> bool:
        return _take(self._outgoing, trunk)


def _rate_of(trunk: Trunk) -> RateLimit:
    return RateLimit(trunk.calls_per_second, max(1.0, trunk.calls_per_second))


def _take(rates: Mapping[str, RateLimit], trunk: str) -> bool:
    rate = rates.get(trunk)
    return rate is None or rate.take(trunk, asyncio.get_running_loop().time())


def media_settings_of(sip: SipSettings) -> MediaOfTrunk:
    """What each trunk's media may be; a peer that is no trunk has the defaults."""
    known = {
        trunk.name: TrunkMedia(
            trunk.codecs, Encryption(trunk.encryption), trunk.media_sources, trunk.in_band_digits, trunk.believed
        )
        for trunk in sip.trunks
    }
    return lambda name: known.get(name) or any_trunk(name)


def digest_settings_of(sip: SipSettings) -> DigestSettings | None:
    accounts = {
        trunk.inbound_username: Account(
            trunk.name,
            trunk.inbound_password.get_secret_value(),
            trunk.comes_from if trunk.sources else _from_anywhere,
        )
        for trunk in sip.trunks
        if trunk.inbound_username
    }
    return DigestSettings(sip.realm, accounts, sip.digest_algorithms) if accounts else None


def tls_settings_of(sip: SipSettings) -> TlsSettings:
    """Raises `ConfigError`."""
    if sip.listen_tls is not None and not sip.certificate:
        raise ConfigError("setting 'sip.listen_tls' needs 'sip.certificate' and 'sip.key': PEM files")
    return TlsSettings(_file(sip.certificate), _file(sip.key), _file(sip.trusted), _file(sip.clients))


def trunk_settings_of(trunk: Trunk) -> TrunkSettings:
    """Raises `ConfigError`."""
    try:
        server = Uri.parse(trunk.server)
    except ValueError:
        server = Uri("")
    if server.scheme not in ("sip", "sips"):
        raise ConfigError(f"trunk '{trunk.name}': '{trunk.server}' is not a SIP URI such as sip:sip.example.com")
    password = trunk.password.get_secret_value()
    credentials = Credentials(trunk.username, password, trunk.realm or server.bare_host) if trunk.username else None
    return TrunkSettings(trunk.name, server, credentials, trunk.registration, trunk.keep_alive)


def warn_of_end(certificate: Path | None) -> None:
    """Say so when a certificate will soon, or does already, keep peers away."""
    if certificate is None:
        return
    try:
        days = (certificate_end(certificate) - datetime.now(UTC)).days
    except (OSError, ValueError) as error:
        log.warning("certificate_not_read", certificate=str(certificate), error=str(error))
        return
    if days < WARNING_DAYS:
        log.warning("certificate_expires", certificate=str(certificate), days=days)


def certificate_metrics(certificate: Path | None) -> list[str]:
    """The end of the certificate, as seconds since 1970; read from the file, which may have been renewed."""
    try:
        end = None if certificate is None else certificate_end(certificate)
    except (OSError, ValueError):
        end = None
    name = "callagent_sip_certificate_end_seconds"
    return [] if end is None else [f"# TYPE {name} gauge", f"{name} {end.timestamp():.0f}"]


async def _listening(setting: str, address: Address, opened: Awaitable[tuple[str, int]]) -> tuple[str, int]:
    try:
        return await opened
    except OSError as error:
        why = error.strerror or error
        raise UserError(f'{setting} = "{address}": cannot listen: {why}; choose another address') from None


def _file(name: str) -> Path | None:
    return Path(name) if name else None


def _from_anywhere(host: str) -> bool:
    return True
