"""The command line. Every command imports what it needs when it runs: `--help` stays quick."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from callagent import __version__
from callagent.commands import agent, bench, call, calls, models, server
from callagent.errors import CallagentError

if TYPE_CHECKING:
    from callagent.commands.arguments import Command

_EPILOG = """\
examples:
  callagent serve                                   answer calls on 127.0.0.1:5060 with the project of this folder
  callagent call sip:127.0.0.1:5060 --say "hello"   call it and hear what it says
  callagent chat -m "where is my parcel"            talk to the agent as text
  callagent check                                   find the mistakes in a project
  callagent calls show ID                           what happened in a call
  callagent login-link                              a link that opens the dashboard of the running server
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status. A `CallagentError` is one message and status 1, never a traceback."""
    options = _parser().parse_args(arguments)
    command: Command = options.run
    try:
        return command(options)
    except CallagentError as error:
        print(f"callagent: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="callagent",
        description="A self-hosted phone server for voice agents: SIP and carrier streams in, agent projects out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"callagent {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    of_project = (
        agent.add_init,
        server.add_serve,
        agent.add_check,
        agent.add_chat,
        agent.add_test,
        agent.add_functions,
    )
    of_server = (call.add, calls.add_calls, server.add_login_link, server.add_password, models.add, bench.add)
    for add in (*of_project, *of_server):
        add(commands)
    return parser
