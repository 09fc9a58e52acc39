"""`callagent models`: language models made fit for a project."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.commands.arguments import add_command, add_config, add_project, config_of, log_to_stderr

if TYPE_CHECKING:
    from callagent.commands.arguments import Commands


_EXAMPLES = """\
  callagent models export-training agents/parcels --output training/
                        train.jsonl and held_out.jsonl from example queries and recorded calls"""


def add(commands: Commands) -> None:
    what = "rows for tuning FunctionGemma on a project's functions"
    parser = add_command(commands, "models", what, _export_training, _EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    exporting = actions.add_parser(
        "export-training",
        help="write them as JSON Lines",
        description="Write a project's example queries and recorded calls as FunctionGemma training rows.",
    )
    add_project(exporting)
    add_config(exporting)
    exporting.add_argument(
        "--output", type=Path, default=Path("training"), metavar="DIR", help="where to (default: training)"
    )
    exporting.set_defaults(run=_export_training)


def _export_training(options: argparse.Namespace) -> int:
    from callagent.commands.export_training import export_training

    log_to_stderr()
    return export_training(config_of(options), options)
