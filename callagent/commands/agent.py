"""`callagent check` and `chat`: an agent project without a telephone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.commands.common import (
    ENVIRONMENTS,
    add_command,
    add_config,
    add_project,
    config_of,
    log_to_stderr,
)

if TYPE_CHECKING:
    from callagent.commands.common import Commands


_CHECK_EXAMPLES = """\
  callagent check                  the project of this folder; exit status 1 when there are errors
  callagent check agents/parcels --json"""

_CHAT_EXAMPLES = """\
  callagent chat                                      type what the caller says; /restart, /exit
  callagent chat -m "where is my parcel" -m "84276"   two turns, then hang up
  callagent chat --json --input-file turns.txt        for programs
  callagent chat --model script:answers.yaml -m hello"""


def add_check(commands: Commands) -> None:
    parser = add_command(commands, "check", "find the mistakes in an agent project", _check, _CHECK_EXAMPLES)
    add_project(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object: errors and warnings")


def _check(options: argparse.Namespace) -> int:
    from callagent.server import check

    log_to_stderr()
    return check(options.project, as_json=options.json)


def add_chat(commands: Commands) -> None:
    parser = add_command(commands, "chat", "talk to the agent as text", _chat, _CHAT_EXAMPLES)
    add_project(parser)
    add_config(parser)
    parser.add_argument(
        "-m", "--message", action="append", metavar="TEXT", help="what the caller says; '' is silence; repeatable"
    )
    parser.add_argument("--input-file", type=Path, metavar="FILE", help="one message a line")
    parser.add_argument("--json", action="store_true", help="one JSON object a turn, then the record")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="rules, embedded, openai/MODEL, anthropic/MODEL, gemini/MODEL … (default: rules)",
    )
    parser.add_argument("--caller", metavar="NUMBER", help="who calls (default: withheld)")
    parser.add_argument("--callee", metavar="NUMBER", help="the number called")
    parser.add_argument(
        "--sip-header", action="append", default=[], metavar="NAME=VALUE", help="of the call's INVITE; repeatable"
    )
    parser.add_argument("--variant", metavar="NAME", help="the project's variant (default: the project decides)")
    parser.add_argument("--lang", metavar="CODE", help="language such as en-US (default: the project's)")
    parser.add_argument("--channel", choices=("voice", "webchat"), default="voice", help="default: voice")
    parser.add_argument(
        "--env", choices=ENVIRONMENTS, default="sandbox", help="which settings of the project hold (default: sandbox)"
    )
    parser.add_argument("--at", metavar="ISO8601", help="the time the conversation takes place (default: now)")


def _chat(options: argparse.Namespace) -> int:
    from callagent.server import chat

    log_to_stderr()
    return chat(config_of(options), options)
