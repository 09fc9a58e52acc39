"""Open SIP and HTTP as the settings say: sockets, certificates, trunks, accounts, and access to both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from time import monotonic
from typing import Final

from aiohttp.web import AppRunner

from callagent.carriers import open_carriers
from callagent.config import Address, Config, SipSettings, Trunk, plain_address
from callagent.errors import ConfigError, UserError
from callagent.legs.sip import MediaOfTrunk, SipLeg, SipLegFactory, TrunkMedia, default_media
from callagent.log import get_logger
from callagent.rtp import Pump, RtpPorts
from callagent.server.local_server import LocalServer
from callagent.session_api import SessionRoutes
from callagent.sip import (
    UNPROVEN,
    Credentials,
    DigestSettings,
    Encryption,
    RateLimit,
    TlsContexts,
    TlsSettings,
    Trunks,
    TrunkSettings,
    Uri,
    UserAgentSettings,
    certificate_end,
    trunk_metrics,
)
from callagent.sip import Account as SipAccount
from callagent.web import (
    IDLE_SECONDS,
    LINGER_SECONDS,
    LINK_SECONDS,
    Access,
    Account,
    Accounts,
    Dashboard,
    HttpListener,
    LocalLogin,
    Right,
    ServerHooks,
    counted_address,
    make_app,
)

log = get_logger(__name__)

# SIP ------------------------------------------------------------------------------------------------------------------

RETRY_SECONDS: Final = 1
"""Retry-After for a trunk whose calls come too fast."""
WARNING_DAYS: Final = 14
"""A certificate that ends in fewer days is reported in the log."""


@dataclass(frozen=True, slots=True)
class SignallingLimits:
    """Limits of calls over SIP."""

    attempts: int = 8
    """How many destinations are tried for one call that we place: servers, and users that these redirect us to."""
    on_reached: Callable[[str, str], object] = lambda limit, trunk: None
    """Called for each call that a limit keeps out, with the limit as the settings name it and the trunk."""


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
        """Open the sockets and register with the trunks; `stack` undoes it. Raises `UserError` naming the setting.

        `take` is given the leg of each call that comes in, `busy` returns a Retry-After while no call fits.
        """
        trunk_settings = [trunk_settings_of(trunk) for trunk in sip.trunks if trunk.server]
        # The clock runs before the first leg needs it, and stops after the last one is closed: `stack` goes backwards.
        pump = Pump()
        pump.start()
        stack.callback(pump.stop)
        legs = SipLegFactory(RtpPorts(sip.listen.host, *sip.rtp_ports), pump, take, media=media_settings_of(sip))
        admission, rates = SipAdmission(sip), _CallRates(sip.trunks, limits.on_reached)
        settings = UserAgentSettings(
            admit=admission.admit,
            busy=busy,
            pace=rates.incoming,
            max_attempts=limits.attempts,
            public_host=sip.public_host or None,
            public_address=sip.public_address or None,
            digest=digest_settings_of(sip),
        )
        # Calls may come in from here on. Until the trunks are added below, their servers' addresses are not admitted.
        opening = legs.open(sip.listen.host, sip.listen.port, settings, tls_settings_of(sip))
        addresses = [("udp", *await _listening("sip.listen", sip.listen, opening))]
        stack.push_async_callback(legs.close)
        for transport, address in (("tcp", sip.listen_tcp), ("tls", sip.listen_tls)):
            if address is not None:
                opening = legs.listen(transport, address.host, address.port)
                addresses.append((transport, *await _listening(f"sip.listen_{transport}", address, opening)))
        # Trunks come after the sockets, because a trunk registers with the address of one of them.
        trunks = admission.trunks = legs.add_trunks(trunk_settings, rates.outgoing)
        trunks.start()
        stack.push_async_callback(trunks.close)
        certificate = _file(sip.certificate)
        warn_of_expiry(certificate)
        return cls(legs, trunks, addresses, certificate, pump)

    def metrics(self) -> list[str]:
        """Return states of trunks and the end of the certificate as lines of Prometheus text."""
        return [*trunk_metrics(self.trunks.states), *certificate_metrics(self._certificate)]


class SipAdmission:
    """The decision who may call by SIP: the networks of trunks, the addresses of their servers, and digest accounts.

    The decision is made for each message, so the settings are converted here, once.
    """

    def __init__(self, sip: SipSettings) -> None:
        self.trunks: Trunks | None = None
        self._sources = [(network, trunk) for trunk in sip.trunks for network in trunk.sources]
        self._anybody_may_prove = any(trunk.inbound_username and not trunk.sources for trunk in sip.trunks)
        self._only_this_machine = not sip.trunks

    def admit(self, host: str) -> str | None:
        """Return the trunk of an IP address; `UNPROVEN` if it must authenticate as one; None if it is not answered."""
        address = plain_address(host)
        if self._only_this_machine and address.is_loopback:
            return "loopback"
        candidates = [trunk for network, trunk in self._sources if address in network]
        by_source = next((trunk.name for trunk in candidates if not trunk.inbound_username), None)
        if by_source is None and (candidates or self._anybody_may_prove):
            by_source = UNPROVEN
        if by_source or self.trunks is None:
            return by_source
        return self.trunks.admit(host) or by_source


class _CallRates:
    """The limits of how fast calls of each trunk may begin. Peers that are no trunk, such as loopback, have none."""

    def __init__(self, trunks: Sequence[Trunk], on_reached: Callable[[str, str], object]) -> None:
        self._on_reached = on_reached
        self._incoming = {trunk.name: _rate_of(trunk) for trunk in trunks}
        self._outgoing = {trunk.name: _rate_of(trunk) for trunk in trunks}

    def incoming(self, trunk: str) -> int | None:
        """Return the seconds of Retry-After if one more call comes too soon, else None."""
        if _may_begin(self._incoming, trunk):
            return None
        self._on_reached("calls_per_second", trunk)
        return RETRY_SECONDS

    def outgoing(self, trunk: str) -> bool:
        return _may_begin(self._outgoing, trunk)


def _rate_of(trunk: Trunk) -> RateLimit:
    return RateLimit(trunk.calls_per_second, max(1.0, trunk.calls_per_second))


def _may_begin(rates: Mapping[str, RateLimit], trunk: str) -> bool:
    rate = rates.get(trunk)
    return rate is None or rate.take(trunk, asyncio.get_running_loop().time())


def media_settings_of(sip: SipSettings) -> MediaOfTrunk:
    """Return a function that finds the media settings of a trunk by name; other peers have the defaults."""
    known = {
        trunk.name: TrunkMedia(
            trunk.codecs, Encryption(trunk.encryption), trunk.media_sources, trunk.in_band_digits, trunk.is_believed
        )
        for trunk in sip.trunks
    }
    return lambda name: known.get(name) or default_media(name)


def digest_settings_of(sip: SipSettings) -> DigestSettings | None:
    """Return the accounts by which trunks authenticate (RFC 3261 §22); None if no trunk has one."""
    accounts = {
        trunk.inbound_username: SipAccount(
            trunk.name,
            trunk.inbound_password.get_secret_value(),
            partial(_comes_from, trunk.sources) if trunk.sources else _from_anywhere,
        )
        for trunk in sip.trunks
        if trunk.inbound_username
    }
    return DigestSettings(sip.realm, accounts, sip.digest_algorithms) if accounts else None


def tls_settings_of(sip: SipSettings) -> TlsSettings:
    """Return the certificates of SIP over TLS. Raises `ConfigError`."""
    if sip.listen_tls is not None and not sip.certificate:
        raise ConfigError("setting 'sip.listen_tls' needs 'sip.certificate' and 'sip.key': PEM files")
    return TlsSettings(_file(sip.certificate), _file(sip.key), _file(sip.trusted), _file(sip.clients))


def trunk_settings_of(trunk: Trunk) -> TrunkSettings:
    """Return how a trunk's server is reached and registered with. Raises `ConfigError`."""
    try:
        server = Uri.parse(trunk.server)
    except ValueError:
        server = Uri("")
    if server.scheme not in ("sip", "sips"):
        raise ConfigError(f"trunk '{trunk.name}': '{trunk.server}' is not a SIP URI such as sip:sip.example.com")
    # A registrar may challenge with a realm of its own; without one in the settings, the server's name is expected.
    password = trunk.password.get_secret_value()
    credentials = Credentials(trunk.username, password, trunk.realm or server.bare_host) if trunk.username else None
    return TrunkSettings(trunk.name, server, credentials, trunk.registration, trunk.keep_alive)


def warn_of_expiry(certificate: Path | None) -> None:
    """Log a warning if a certificate ends soon, has ended already or cannot be read."""
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
    """Return the end of the certificate, in seconds since 1970, as lines of Prometheus text."""
    # The file is read each time: it may have been renewed, and new connections use the renewed certificate.
    try:
        end = None if certificate is None else certificate_end(certificate)
    except (OSError, ValueError):
        end = None
    name = "callagent_sip_certificate_end_seconds"
    return [] if end is None else [f"# TYPE {name} gauge", f"{name} {end.timestamp():.0f}"]


# HTTP -----------------------------------------------------------------------------------------------------------------

_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address at which this machine reaches a server that listens on every address."""


async def open_http(config: Config, hooks: ServerHooks, dashboard: Dashboard, stack: AsyncExitStack) -> list[str]:
    """Listen for HTTP; return a line about the socket and, if there are no accounts, one with a link to log in by.

    Raises `UserError`.
    """
    access = access_of(config)
    host, port = await _listen(config, hooks, dashboard, access, stack)
    lines = [f"ready http {host_and_port(host, port)}"]
    if access.local is not None:
        # Without accounts, the user who started the server gets in by a link that only their terminal shows, and their
        # command line by the token in a file that only they can read.
        scheme = "https" if config.http.certificate else "http"
        url = f"{scheme}://{host_and_port(_ANY_ADDRESS.get(host, host), port)}"
        server = LocalServer(url, access.local.token, _absolute(config.http.certificate))
        _publish(server, host_and_port(config.http.listen.host, port), stack)
        link = f"{url}/login#{access.local.make_link(monotonic())}"
        lines.append(f"login {link} (once, within {LINK_SECONDS / 60:.0f} minutes; then: callagent login-link)")
    return lines


async def _listen(
    config: Config, hooks: ServerHooks, dashboard: Dashboard, access: Access, stack: AsyncExitStack
) -> tuple[str, int]:
    http = config.http
    added = [*open_carriers(config, hooks), SessionRoutes(dashboard.projects, hooks)]
    app = make_app(hooks, added, dashboard, access)
    runner = AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS, lingering_time=LINGER_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    make_protocol = runner.server
    assert make_protocol is not None, "set up above"
    tls = TlsContexts(TlsSettings(Path(http.certificate), Path(http.key))) if http.certificate else None

    def counted(host: str) -> str | None:
        # Many users connect from the address of a proxy, so the limit for one address does not apply to it.
        return None if access.is_proxy(host) else counted_address(host)

    listener = HttpListener(make_protocol, counted, http.connections_per_address, tls)
    # `stack` closes the listener before the runner, so no connection comes in while the last requests end.
    stack.push_async_callback(listener.close)
    if tls is not None:
        # The files are loaded now and not with the first connection, so that a wrong file stops the start.
        _check_certificate(tls, http.certificate)
        warn_of_expiry(Path(http.certificate))
    return await _listening("http.listen", http.listen, listener.listen(http.listen.host, http.listen.port))


def _check_certificate(tls: TlsContexts, certificate: str) -> None:
    try:
        tls.server()
    except OSError as error:
        why = error.strerror or error
        raise UserError(f'http.certificate = "{certificate}": it cannot be used with http.key: {why}') from None


def access_of(config: Config) -> Access:
    """Return the access that the settings allow: by accounts, or if there are none, to the user who started the server.

    Raises `UserError`.
    """
    http, accounts = config.http, accounts_of(config)
    return Access(
        accounts=accounts,
        local=None if accounts else LocalLogin(),
        metrics_token=http.metrics_token.get_secret_value(),
        login_header=http.login_header,
        proxies=http.login_proxies,
        public_url=http.public_url,
        secure=bool(http.certificate) or http.public_url.startswith("https://"),
    )


def accounts_of(config: Config) -> Accounts:
    """Return the users who may log in. Raises `UserError` for a password that is not hashed."""
    made = []
    for user in config.users:
        password, token = user.password.get_secret_value(), user.token.get_secret_value()
        if password and not password.startswith("scrypt$"):
            raise UserError(f"password of user '{user.name}' is not hashed: put there what `callagent password` prints")
        made.append(Account(user.name, frozenset(Right(right) for right in user.rights), password, token))
    return Accounts(made)


def _publish(server: LocalServer, name: str, stack: AsyncExitStack) -> None:
    """Let the command line of the same user find the server until it stops. Calls are taken even if that fails."""
    try:
        path = server.publish(name)
    except OSError as error:
        log.warning("token_file_not_written", error=str(error))
        return
    stack.callback(server.withdraw, path)


def _absolute(file: str) -> str:
    return str(Path(file).absolute()) if file else ""


def host_and_port(host: str, port: int) -> str:
    """Return an address as text, with the brackets of IPv6 (RFC 3986 §3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# SIP and HTTP ------------------------------------------------------------------------------------------------------


async def _listening(setting: str, address: Address, opened: Awaitable[tuple[str, int]]) -> tuple[str, int]:
    """Return the host and port that a socket listens at. Raises `UserError` naming the setting."""
    try:
        return await opened
    except OSError as error:
        why = error.strerror or error
        raise UserError(f'{setting} = "{address}": cannot listen: {why}; choose another address') from None


def _file(name: str) -> Path | None:
    return Path(name) if name else None


def _from_anywhere(host: str) -> bool:
    return True


def _comes_from(networks: Sequence[IPv4Network | IPv6Network], host: str) -> bool:
    address = plain_address(host)
    return any(address in network for network in networks)
