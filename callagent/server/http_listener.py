"""Opens HTTP as the settings say: accounts, proxies, certificate, sockets, and the way in without accounts."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from callagent.carriers import open_carriers
from callagent.config import Config
from callagent.errors import UserError
from callagent.log import get_logger
from callagent.server.local_server import LocalServer
from callagent.server.sip_listener import warn_of_end
from callagent.session_api import SessionRoutes
from callagent.sip import TlsContexts, TlsSettings
from callagent.web import ServerHooks, make_app

if TYPE_CHECKING:
    from callagent.web import Access, Accounts, Dashboard

log = get_logger(__name__)

_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this machine reaches a server that listens on every address."""


async def open_http(config: Config, hooks: ServerHooks, dashboard: Dashboard, stack: AsyncExitStack) -> list[str]:
    """A line about the socket; without accounts another one with a link to log in by. Raises `UserError`."""
    from callagent.web import LINK_SECONDS

    access = access_of(config)
    host, port = await _listen(config, hooks, dashboard, access, stack)
    lines = [f"ready http {_text(host, port)}"]
    if access.local is not None:
        scheme = "https" if config.http.certificate else "http"
        url = f"{scheme}://{_text(_ANY_ADDRESS.get(host, host), port)}"
        server = LocalServer(url, access.local.token, _absolute(config.http.certificate))
        _publish(server, _text(config.http.listen.host, port), stack)
        link = f"{url}/login#{access.local.make_link(monotonic())}"
        lines.append(f"login {link} (once, within {LINK_SECONDS / 60:.0f} minutes; then: callagent login-link)")
    return lines


async def _listen(
    config: Config, hooks: ServerHooks, dashboard: Dashboard, access: Access, stack: AsyncExitStack
) -> tuple[str, int]:
    from aiohttp import web

    from callagent.web import IDLE_SECONDS, LINGER_SECONDS, HttpListener, counted_address

    http = config.http
    added = [*open_carriers(config, hooks), SessionRoutes(dashboard.projects, hooks)]
    app = make_app(hooks, added, dashboard, access)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS, lingering_time=LINGER_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    make_protocol = runner.server
    assert make_protocol is not None, "set up above"
    tls = TlsContexts(TlsSettings(Path(http.certificate), Path(http.key))) if http.certificate else None

    def counted(host: str) -> str | None:
        return None if access.is_proxy(host) else counted_address(host)

    listener = HttpListener(make_protocol, counted, http.connections_per_address, tls)
    stack.push_async_callback(listener.close)
    if tls is not None:
        _expect_certificate(tls, http.certificate)
        warn_of_end(Path(http.certificate))
    try:
        return await listener.listen(http.listen.host, http.listen.port)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f'http.listen = "{http.listen}": cannot listen: {why}; choose another address') from None


def _expect_certificate(tls: TlsContexts, certificate: str) -> None:
    try:
        tls.server()
    except OSError as error:
        why = error.strerror or error
        raise UserError(f'http.certificate = "{certificate}": it cannot be used with its key: {why}') from None


def access_of(config: Config) -> Access:
    """Who gets in. Without accounts it is the user who started the server. Raises `UserError`."""
    from callagent.web import Access, LocalLogin

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
    """Who may log in. Raises `UserError` for a password that is not hashed."""
    from callagent.web import Account, Accounts, Right

    made = []
    for user in config.users:
        password, token = user.password.get_secret_value(), user.token.get_secret_value()
        if password and not password.startswith("scrypt$"):
            raise UserError(f"password of user '{user.name}' is not hashed: put there what `callagent password` prints")
        made.append(Account(user.name, frozenset(Right(right) for right in user.rights), password, token))
    return Accounts(made)


def _publish(server: LocalServer, name: str, stack: AsyncExitStack) -> None:
    """Let the command line of the same user find the server until it stops. Calls are taken without that too."""
    try:
        path = server.publish(name)
    except OSError as error:
        log.warning("token_file_not_written", error=str(error))
        return
    stack.callback(server.withdraw, path)


def _absolute(file: str) -> str:
    return str(Path(file).absolute()) if file else ""


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
