"""`callagent serve`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from callagent.commands.common import (
    add_command,
    add_config,
    add_project,
    config_of,
)

if TYPE_CHECKING:
    from callagent.commands.common import Commands


_SERVE_EXAMPLES = """\
  callagent serve                                     the project of this folder, on loopback
  callagent serve agents/parcels --sip 0.0.0.0:5060   another project, on the network (say who may call: sip.trunks)
  callagent serve --model openai/gpt-4.1-mini         with a language model (needs OPENAI_API_KEY)
  callagent serve --http off                          SIP only
SIGTERM lets running calls finish and takes no new ones; a second one ends them now."""


def add(commands: Commands) -> None:
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
        help="rules, embedded, openai/MODEL, anthropic/MODEL, gemini/MODEL … (default: rules)",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")


def _serve(options: argparse.Namespace) -> int:
    from callagent.config import override
    from callagent.server import run

    changes: dict[str, object] = {}
    for name in ("sip", "http"):
        if value := getattr(options, name):
            changes |= {f"{name}.enabled": False} if value == "off" else {f"{name}.listen": value}
    if options.model:
        changes["model.name"] = options.model
    if options.log_level:
        changes["log.level"] = options.log_level
    return run(override(config_of(options), changes), options.project)
