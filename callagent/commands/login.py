"""`callagent login-link` and `password`: who may open the dashboard."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from callagent.commands.common import add_command, add_config, config_of
from callagent.errors import UserError

if TYPE_CHECKING:
    import ssl

    from callagent.commands.common import Commands
    from callagent.server import LocalServer

_LINK_EXAMPLES = """\
  callagent login-link                            of the server that listens where the settings say
  callagent login-link --http 127.0.0.1:8090      of the one that says `ready http 127.0.0.1:8090`
A link works once, for ten minutes. A server with [[users]] has no links: log in by name and password."""
_SECONDS = 10.0


def add_login_link(commands: Commands) -> None:
    what = "print a one-time link that opens the dashboard of your running server"
    parser = add_command(commands, "login-link", what, _login_link, _LINK_EXAMPLES)
    add_config(parser)
    parser.add_argument("--http", metavar="HOST:PORT", help="where the server listens (default: the setting)")


def _login_link(options: argparse.Namespace) -> int:
    from callagent.config import override
    from callagent.server import find_server

    config = config_of(options)
    listen = (override(config, {"http.listen": options.http}) if options.http else config).http.listen
    server = find_server(listen)
    if server is None:
        if not _is_open(listen.host, listen.port):
            raise UserError(f"no server listens at {listen}: `callagent serve` starts one, --http names another place")
        if config.users:
            raise UserError(f"the server at {listen} has [[users]]: log in there by name and password")
        raise UserError(
            f"the server at {listen} was started by another user: run this command as that user; "
            "where it has [[users]], log in by name and password"
        )
    print(f"{server.url}/login#{_ask_for_link(server, listen)}")
    return 0


def _ask_for_link(server: LocalServer, listen: str) -> str:
    import json
    import urllib.error
    import urllib.request

    headers = {"Authorization": f"Bearer {server.token}"}
    request = urllib.request.Request(f"{server.url}/api/login-links", b"", headers, method="POST")
    # The token goes to this machine and to no proxy of the environment.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    try:
        if server.certificate:
            handlers.append(urllib.request.HTTPSHandler(context=_only(server.certificate)))
        with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS) as answer:
            return str(json.load(answer)["link"])
    except urllib.error.HTTPError as error:
        with error:
            raise UserError(f"the server at {listen} refused: {error.code} {error.read(200).decode()}") from None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the server at {listen} does not answer: {error}; `callagent serve` starts one") from None


def _only(certificate: str) -> ssl.SSLContext:
    """Trust in the server's own certificate, whatever it is issued for: the file has told us whose it is."""
    import ssl

    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _is_open(host: str, port: int) -> bool:
    import socket

    try:
        socket.create_connection((host, port), _SECONDS).close()
    except OSError:
        return False
    return True


def add_password(commands: Commands) -> None:
    what = "hash a password for the setting users.password"
    add_command(commands, "password", what, _password, "  callagent password     asks for it, prints its hash")


def _password(_: argparse.Namespace) -> int:
    from getpass import getpass

    from callagent.web import hash_password

    password = getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        raise UserError("an empty password lets everybody in; choose another")
    print(hash_password(password))
    return 0
