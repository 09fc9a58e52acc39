"""`callagent serve`, and the commands for the login to its dashboard: `login-link` and `password`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from callagent.commands.arguments import add_command, add_config, add_project, config_of
from callagent.errors import UserError

if TYPE_CHECKING:
    import ssl

    from callagent.commands.arguments import Commands
    from callagent.server import LocalServer

_SERVE_EXAMPLES = """\
  callagent serve                                     the project of this folder, on loopback
  callagent serve agents/parcels --sip 0.0.0.0:5060   another project, on the network (say who may call: sip.trunks)
  callagent serve --model openai/gpt-4.1-mini         with a language model (needs OPENAI_API_KEY)
  callagent serve --http off                          SIP only
SIGTERM lets running calls finish and takes no new ones; a second one ends them now."""


def add_serve(commands: Commands) -> None:
    parser = add_command(commands, "serve", "answer calls", _serve, _SERVE_EXAMPLES)
    add_project(parser)
    add_config(parser)
    parser.add_argument(
        "--sip", metavar="HOST:PORT", help="where SIP listens; 'off' for no SIP (default: 127.0.0.1:5060)"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="where HTTP listens; 'off' for no HTTP (default: 127.0.0.1:8080)"
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="rules, embedded, openai/MODEL or another provider's … (default: rules)",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")


def _serve(options: argparse.Namespace) -> int:
    from callagent.config import override
    from callagent.server import run

    # An option wins over the environment, which wins over the file.
    changes: dict[str, object] = {}
    for name in ("sip", "http"):
        if value := getattr(options, name):
            changes |= {f"{name}.enabled": False} if value == "off" else {f"{name}.listen": value}
    if options.model:
        changes["model.name"] = options.model
    if options.log_level:
        changes["log.level"] = options.log_level
    return run(override(config_of(options), changes), options.project)


_LINK_EXAMPLES = """\
  callagent login-link                            of the server that listens where the settings say
  callagent login-link --http 127.0.0.1:8090      of the one that says `ready http 127.0.0.1:8090`
A link works once, for ten minutes. A server with [[users]] has no links: log in by name and password."""
_ANSWER_SECONDS = 10.0
"""Time for the server to answer."""


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
    # The reason why no server is found decides what the user has to do.
    if server is None:
        if not _is_open(listen.host, listen.port):
            raise UserError(f"no server listens at {listen}: `callagent serve` starts one, --http names another place")
        if config.users:
            raise UserError(f"the server at {listen} has [[users]]: log in there by name and password")
        # The file with the token lies in the runtime folder of the user who started the server, readable to them alone.
        raise UserError(
            f"the server at {listen} was started by another user: run this command as that user; "
            "where it has [[users]], log in by name and password"
        )
    print(f"{server.url}/login#{_ask_for_link(server, listen)}")
    return 0


def _ask_for_link(server: LocalServer, listen: str) -> str:
    """Return the secret of a new login link. Raises `UserError`."""
    import json
    import urllib.error
    import urllib.request

    headers = {"Authorization": f"Bearer {server.token}"}
    request = urllib.request.Request(f"{server.url}/api/login-links", b"", headers, method="POST")
    # The token goes to this machine and to no proxy of the environment.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    try:
        if server.certificate:
            handlers.append(urllib.request.HTTPSHandler(context=_trust_only(server.certificate)))
        with urllib.request.build_opener(*handlers).open(request, timeout=_ANSWER_SECONDS) as answer:
            return str(json.load(answer)["link"])
    except urllib.error.HTTPError as error:
        with error:
            raise UserError(f"the server at {listen} refused: {error.code} {error.read(200).decode()}") from None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the server at {listen} does not answer: {error}; `callagent serve` starts one") from None


def _trust_only(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts one certificate, whatever host it is for, and no other.

    A private file of this user has told us the server's certificate, so no authority and no name has to vouch for it.
    """
    import ssl

    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    # A certificate that an authority has issued is trusted without the authority's own certificate.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _is_open(host: str, port: int) -> bool:
    """Return whether any program listens at this address."""
    import socket

    try:
        socket.create_connection((host, port), _ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def add_password(commands: Commands) -> None:
    what = "hash a password for the setting users.password"
    add_command(commands, "password", what, _password, "  callagent password     asks for it, prints its hash")


def _password(_: argparse.Namespace) -> int:
    from getpass import getpass

    from callagent.web import hash_password

    # Never as an argument, which every user of the machine can read in the list of processes.
    password = getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        raise UserError("an empty password lets everybody in; choose another")
    # Only the hash is printed: the settings never hold the password.
    print(hash_password(password))
    return 0
