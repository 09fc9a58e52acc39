"""`callagent calls`, which reads the records of past calls, and `callagent call`, the test phone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.commands.arguments import add_command, add_config, config_of, log_to_stderr, parse_count, parse_seconds
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
    listing.add_argument("--limit", type=parse_count, default=20, help="how many (default: 20)")
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
        # `--config` may stand before or after the action. With SUPPRESS, its default after the action does not
        # overwrite a value that was given before.
        action.add_argument("--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="settings")


def _calls_list(options: argparse.Namespace) -> int:
    import json

    from callagent.records import format_calls, read_calls

    # The store may be read while a server writes to it: SQLite allows both.
    calls = read_calls(Path(config_of(options).records.path), limit=options.limit)
    print("\n".join(json.dumps(call) for call in calls) if options.json else format_calls(calls))
    return 0


def _calls_show(options: argparse.Namespace) -> int:
    import json

    from callagent.records import format_call, read_call

    path = Path(config_of(options).records.path)
    # The beginning of an identifier is accepted, because `calls list` shows only its first twelve characters.
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
    # If records are copied to PostgreSQL, the deletion goes into the outbox: the server then deletes them there, too.
    deleted = delete_calls_of(Path(records.path), options.number, outbox=bool(records.database.get_secret_value()))
    print(f"{deleted} calls deleted")
    return 0


_CALL_EXAMPLES = """\
  callagent call sip:agent@127.0.0.1:5060 --say "where is my parcel" --say "eight four two seven six"
  callagent call sip:agent@127.0.0.1 --dtmf 84276# --record call.wav
  callagent call sip:agent@127.0.0.1 --play caller.wav --json
  callagent call http://127.0.0.1:8080/twilio/voice --say hello     as a carrier (needs TWILIO_AUTH_TOKEN)
  callagent call sip:agent@127.0.0.1 --script caller.yaml
a script:
  - say: "where is my parcel"     when the agent has paused
  - press: "84276#"
  - wait_for: "arrives on"        a regular expression for what the agent says
  - interrupt: "stop please"      while the agent speaks
    after: 1.0
  - backchannel: "mm-hm"          while the agent speaks, who should go on
  - mumble: 1.5                   speech without words
  - stay_silent: 20               until the agent speaks again
  - noise: -35                    from here on, dB relative to full scale; `off` ends it
  - packet_loss: 5                from here on, per cent
  - wait: 2
  - hang_up: true"""


def add_call(commands: Commands) -> None:
    what = "a test phone: call a SIP URI or a server's stream webhook, speak, listen"
    parser = add_command(commands, "call", what, _call, _CALL_EXAMPLES)
    parser.add_argument("target", help="sip:USER@HOST:PORT, or the http(s) URL of a server's voice webhook")
    add_config(parser)
    # Only one of these may be given, because each is the whole list of what the phone says.
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument(
        "--say", action="append", metavar="TEXT", help="what to say after the agent has finished; repeatable"
    )
    lines.add_argument("--play", action="append", type=Path, metavar="WAV", help="play a file instead; repeatable")
    lines.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help="a YAML list of what the caller does, step by step, as below",
    )
    parser.add_argument("--dtmf", metavar="DIGITS", help="keys to press after the first agent utterance")
    parser.add_argument("--record", type=Path, metavar="WAV", help="stereo: caller left, agent right")
    parser.add_argument("--caller", default="+15550100", metavar="NUMBER", help="who calls (default: +15550100)")
    parser.add_argument("--seconds", type=parse_seconds, default=120.0, help="hang up after so long (default: 120)")
    parser.add_argument("--json", action="store_true", help="one JSON object an event")


def _call(options: argparse.Namespace) -> int:
    from callagent.phone import run_phone

    log_to_stderr()
    return run_phone(config_of(options), options)
