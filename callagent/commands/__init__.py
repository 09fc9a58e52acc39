"""The command line: a module for each group of commands.

A command imports what it needs when it runs, and not before: `callagent --help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from callagent import __version__
from callagent.commands import agent, bench, calls, server
from callagent.errors import CallagentError

if TYPE_CHECKING:
    from callagent.commands.arguments import Command

__all__ = ["main"]

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
    """Run one command and return the exit status. A `CallagentError` is one message and status 1, never a traceback."""
    # For wrong arguments the parser prints a message and ends the process with status 2, as Unix programs do.
    options = _parser().parse_args(arguments)
    command: Command = options.run
    try:
        return command(options)
    except CallagentError as error:
        # Its text says what is wrong and what to do; a traceback would hide it.
        print(f"callagent: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # A shell reports a program that SIGINT (signal 2) has ended by the status 128 + 2.
        return 130
    except BrokenPipeError:
        # The reader has enough, as in `callagent calls list | head`. Without standard error the interpreter cannot
        # complain of the output that it cannot flush.
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. Each `add_…` function adds a command, with its function as default `run`."""
    parser = argparse.ArgumentParser(
        prog="callagent",
        description="A self-hosted phone server for voice agents: SIP and carrier streams in, agent projects out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"callagent {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # In the order of the help: what a beginner needs comes first.
    for add in (
        *(agent.add_init, server.add_serve, agent.add_check, agent.add_chat, agent.add_test, agent.add_functions),
        *(
            calls.add_call,
            calls.add_calls,
            server.add_login_link,
            server.add_password,
            agent.add_models,
            bench.add_bench,
        ),
    ):
        add(commands)
    return parser
