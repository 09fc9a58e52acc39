"""`callagent calls`: the store."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.commands.arguments import add_command, add_config, config_of, count
from callagent.errors import UserError

if TYPE_CHECKING:
    from callagent.commands.arguments import Commands


_CALLS_EXAMPLES = """\
  callagent calls list
  callagent calls show 3f2a        a call by how its id begins
  callagent calls export > calls.jsonl"""


def add_calls(commands: Commands) -> None:
    parser = add_command(commands, "calls", "read the records of past calls", _calls_list, _CALLS_EXAMPLES)
    add_config(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the newest calls", description="The newest calls, newest first.")
    listing.add_argument("--limit", type=count, default=20, help="how many (default: 20)")
    listing.add_argument("--json", action="store_true", help="one JSON object a call")
    listing.set_defaults(run=_calls_list)
    showing = actions.add_parser("show", help="one call", description="One call: turns, functions, metrics.")
    showing.add_argument("id", help="the call's id, or how it begins")
    showing.add_argument("--json", action="store_true", help="the whole record as JSON")
    showing.set_defaults(run=_calls_show)
    exporting = actions.add_parser(
        "export", help="every record as JSON Lines, CSV or Parquet", description="Every record, a line each."
    )
    exporting.add_argument("--format", choices=("jsonl", "csv", "parquet"), default="jsonl", help="default: jsonl")
    exporting.add_argument("--caller", metavar="NUMBER", help="only the calls of this number")
    exporting.set_defaults(run=_calls_export)
    deleting = actions.add_parser(
        "delete", help="delete a caller's calls", description="Every ended call of a number, with its recording."
    )
    deleting.add_argument("number", help="the caller's number as `calls list` shows it")
    deleting.set_defaults(run=_calls_delete)
    for action in (listing, showing, exporting, deleting):
        # Without a default of its own an action leaves alone what stood before it.
        action.add_argument("--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="settings")


def _calls_list(options: argparse.Namespace) -> int:
    import json

    from callagent.records import format_calls, read_calls

    calls = read_calls(Path(config_of(options).records.path), limit=options.limit)
    print("\n".join(json.dumps(call) for call in calls) if options.json else format_calls(calls))
    return 0


def _calls_show(options: argparse.Namespace) -> int:
    import json

    from callagent.records import format_call, read_call

    path = Path(config_of(options).records.path)
    record = read_call(path, options.id)
    if record is None:
        raise UserError(f"no call '{options.id}' in {path}; `callagent calls list` names them")
    print(json.dumps(record, indent=2, ensure_ascii=False) if options.json else format_call(record))
    return 0


def _calls_export(options: argparse.Namespace) -> int:
    from callagent.records import export_records

    export_records(Path(config_of(options).records.path), options.format, sys.stdout, caller=options.caller)
    return 0


def _calls_delete(options: argparse.Namespace) -> int:
    from callagent.records import delete_calls_of

    records = config_of(options).records
    deleted = delete_calls_of(Path(records.path), options.number, outbox=bool(records.database.get_secret_value()))
    print(f"{deleted} calls deleted")
    return 0
