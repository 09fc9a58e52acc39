"""The command line. Every command imports what it needs when it runs: `--help` stays quick."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from callagent import __version__
from callagent.errors import CallagentError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from callagent.config import Config

    Command = Callable[[argparse.Namespace], int]

_EPILOG = """\
examples:
  callagent serve                                   answer calls on 127.0.0.1:5060 with the project of this folder
  callagent call sip:127.0.0.1:5060 --say "hello"   call it and hear what it says
  callagent chat -m "where is my parcel"            talk to the agent as text
  callagent check                                   find the mistakes in a project
  callagent calls show ID                           what happened in a call
"""

_SERVE_EXAMPLES = """\
  callagent serve                                     the project of this folder, on loopback
  callagent serve agents/parcels --sip 0.0.0.0:5060   another project, on the network (say who may call: sip.trunks)
  callagent serve --model openai/gpt-4.1-mini         with a language model (needs OPENAI_API_KEY)
  callagent serve --http off                          SIP only
SIGTERM lets running calls finish and takes no new ones; a second one ends them now."""
_CHECK_EXAMPLES = """\
  callagent check                  the project of this folder; exit status 1 when there are errors
  callagent check agents/parcels --json"""
_CHAT_EXAMPLES = """\
  callagent chat                                      type what the caller says; /restart, /exit
  callagent chat -m "where is my parcel" -m "84276"   two turns, then hang up
  callagent chat --json --input-file turns.txt        for programs
  callagent chat --model script:answers.yaml -m hello"""
_TEST_EXAMPLES = """\
  callagent test --model openai/gpt-4.1-mini           the model also plays the caller and judges
  callagent test --tag booking --junit results.xml
  callagent test --caller-file caller.yaml --model script:answers.yaml
a caller file:
  book a table: ["a table for four", "tomorrow at eight", "yes"]
  cancel:
    says: ["cancel my booking", "yes"]
    model: [{calls: [{name: cancel_booking}]}, {text: "Done."}]    a script for the agent's model
    judge: [{text: '{"pass": true, "reason": "said so"}'}]         and for the judge's"""
_FUNCTIONS_EXAMPLES = """\
  callagent functions execute look_up_parcel --args '{"number": "84276"}'
  callagent functions execute booking/size_given agents/ferry --args '{"size": 4}'"""
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
  - pause: 2
  - hang_up: true"""
_CALLS_EXAMPLES = """\
  callagent calls list
  callagent calls show 3f2a        a call by how its id begins
  callagent calls export > calls.jsonl"""
_BENCH_EXAMPLES = """\
  callagent bench calls --calls 50 --seconds 30
  callagent bench media --calls 100
  callagent bench conversation --trials 100 --json
  callagent bench speech --corpus recordings/
  callagent bench models --model openai/gpt-4.1-mini"""


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
    agent = (_add_serve, _add_check, _add_chat, _add_test, _add_functions)
    for add in (*agent, _add_call, _add_calls, _add_password, _add_bench):
        add(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, run: Command, examples: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds up to 86400")
    return seconds


def _log_to_stderr() -> None:
    """Standard output belongs to what the command prints."""
    from callagent import log

    log.configure("warning")


def _add_project(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "project", nargs="?", type=Path, default=Path(), help="folder of the agent project (default: .)"
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings (default: callagent.toml, if there is one)"
    )


def _config_of(options: argparse.Namespace) -> Config:
    from callagent.config import find_config, load_config

    return load_config(options.config or find_config(getattr(options, "project", Path())))


# serve ------------------------------------------------------------------------------------------------------------


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "serve", "answer calls", _serve, _SERVE_EXAMPLES)
    _add_project(parser)
    _add_config(parser)
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
    from callagent import server
    from callagent.config import override

    changes: dict[str, object] = {}
    for name in ("sip", "http"):
        if value := getattr(options, name):
            changes |= {f"{name}.enabled": False} if value == "off" else {f"{name}.listen": value}
    if options.model:
        changes["model.name"] = options.model
    if options.log_level:
        changes["log.level"] = options.log_level
    return server.run(override(_config_of(options), changes), options.project)


# check, chat ------------------------------------------------------------------------------------------------------


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "check", "find the mistakes in an agent project", _check, _CHECK_EXAMPLES)
    _add_project(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object: errors and warnings")


def _check(options: argparse.Namespace) -> int:
    from callagent.projects import check

    _log_to_stderr()
    return check(options.project, as_json=options.json)


def _add_chat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "chat", "talk to the agent as text", _chat, _CHAT_EXAMPLES)
    _add_project(parser)
    _add_config(parser)
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
        "--env", default="sandbox", metavar="NAME", help="sandbox, pre-release or live (default: sandbox)"
    )
    parser.add_argument("--at", metavar="ISO8601", help="the time the conversation takes place (default: now)")


def _chat(options: argparse.Namespace) -> int:
    from callagent.projects import chat

    _log_to_stderr()
    return chat(_config_of(options), options)


# test, functions --------------------------------------------------------------------------------------------------


def _add_test(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "test", "run a project's test_suite/ with a simulated caller", _test, _TEST_EXAMPLES)
    _add_project(parser)
    _add_config(parser)
    parser.add_argument("--tag", action="append", metavar="TAG", help="only tests with this tag; repeatable")
    parser.add_argument("--name", action="append", metavar="NAME", help="only this test; repeatable")
    parser.add_argument("--caller-file", type=Path, metavar="FILE", help="what the caller says in each test (YAML)")
    parser.add_argument("--model", metavar="NAME", help="the agent's model (default: as configured)")
    parser.add_argument(
        "--simulator", metavar="NAME", help="the model that plays the caller and judges (default: the agent's)"
    )
    parser.add_argument("--env", default="sandbox", metavar="NAME", help="sandbox, pre-release or live")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the results as JUnit XML")
    parser.add_argument("--json", action="store_true", help="one JSON object: every test with its conversation")


def _test(options: argparse.Namespace) -> int:
    from callagent.testing.command import run_tests

    _log_to_stderr()
    return run_tests(_config_of(options), options)


def _add_functions(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "run a project's function outside a call"
    parser = _command(commands, "functions", text, _functions_execute, _FUNCTIONS_EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    executing = actions.add_parser("execute", help="one function", description="Run one function and show its result.")
    executing.add_argument("name", metavar="NAME", help="the function; FLOW/NAME for a flow's")
    _add_project(executing)
    _add_config(executing)
    executing.add_argument("--args", metavar="JSON", help="its arguments as a JSON object")
    executing.add_argument("--flow", metavar="FLOW", help="the flow it belongs to")
    executing.add_argument("--state", metavar="JSON", help="what conv.state holds before, as a JSON object")
    executing.add_argument("--caller", metavar="NUMBER", help="conv.caller_number (default: withheld)")
    executing.add_argument("--variant", metavar="NAME", help="the project's variant (default: the project decides)")
    executing.add_argument("--env", default="sandbox", metavar="NAME", help="sandbox, pre-release or live")
    executing.add_argument("--at", metavar="ISO8601", help="the time (default: now)")
    executing.add_argument("--model", metavar="NAME", help="the model that prompt_llm asks (default: as configured)")
    executing.set_defaults(run=_functions_execute)


def _functions_execute(options: argparse.Namespace) -> int:
    from callagent.testing.command import execute_function

    _log_to_stderr()
    return execute_function(_config_of(options), options)


# call -------------------------------------------------------------------------------------------------------------


def _add_call(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "a test phone: call a SIP URI or a server's stream webhook, speak, listen"
    parser = _command(commands, "call", what, _call, _CALL_EXAMPLES)
    parser.add_argument("target", help="sip:USER@HOST:PORT, or the http(s) URL of a server's voice webhook")
    _add_config(parser)
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument(
        "--say", action="append", metavar="TEXT", help="speak, each after the agent has finished; repeatable"
    )
    lines.add_argument("--play", action="append", type=Path, metavar="WAV", help="play a file instead; repeatable")
    lines.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help="a YAML list of say, play, press, wait_for, interrupt, pause, hang_up",
    )
    parser.add_argument("--dtmf", metavar="DIGITS", help="keys to press after the first agent utterance")
    parser.add_argument("--record", type=Path, metavar="WAV", help="stereo: caller left, agent right")
    parser.add_argument("--caller", default="+15550100", metavar="NUMBER", help="who calls (default: +15550100)")
    parser.add_argument("--seconds", type=_seconds, default=120.0, help="hang up after so long (default: 120)")
    parser.add_argument("--json", action="store_true", help="one JSON object an event")


def _call(options: argparse.Namespace) -> int:
    from callagent.phone import run_phone

    _log_to_stderr()
    return run_phone(_config_of(options), options)


# calls ------------------------------------------------------------------------------------------------------------


def _add_calls(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "calls", "read the records of past calls", _calls_list, _CALLS_EXAMPLES)
    _add_config(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the newest calls", description="The newest calls, newest first.")
    listing.add_argument("--limit", type=_count, default=20, help="how many (default: 20)")
    listing.add_argument("--json", action="store_true", help="one JSON object a call")
    listing.set_defaults(run=_calls_list)
    showing = actions.add_parser("show", help="one call", description="One call: turns, functions, metrics.")
    showing.add_argument("id", help="the call's id, or how it begins")
    showing.add_argument("--json", action="store_true", help="the whole record as JSON")
    showing.set_defaults(run=_calls_show)
    exporting = actions.add_parser(
        "export", help="every record as JSON Lines or CSV", description="Every record, a line each."
    )
    exporting.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="default: jsonl")
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

    calls = read_calls(Path(_config_of(options).records.path), limit=options.limit)
    print("\n".join(json.dumps(call) for call in calls) if options.json else format_calls(calls))
    return 0


def _calls_show(options: argparse.Namespace) -> int:
    import json

    from callagent.records import format_call, read_call

    path = Path(_config_of(options).records.path)
    record = read_call(path, options.id)
    if record is None:
        raise UserError(f"no call '{options.id}' in {path}; `callagent calls list` names them")
    print(json.dumps(record, indent=2, ensure_ascii=False) if options.json else format_call(record))
    return 0


def _calls_export(options: argparse.Namespace) -> int:
    from callagent.records import export

    export(Path(_config_of(options).records.path), options.format, sys.stdout, caller=options.caller)
    return 0


def _calls_delete(options: argparse.Namespace) -> int:
    from callagent.records import delete_of_caller

    records = _config_of(options).records
    deleted = delete_of_caller(Path(records.path), options.number, outbox=bool(records.database.get_secret_value()))
    print(f"{deleted} calls deleted")
    return 0


# password ---------------------------------------------------------------------------------------------------------


def _add_password(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "hash a password for the setting users.password"
    _command(commands, "password", what, _password, "  callagent password     asks for it, prints its hash")


def _password(_: argparse.Namespace) -> int:
    from getpass import getpass

    from callagent.web.accounts import hash_password

    password = getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        raise UserError("an empty password lets everybody in; choose another")
    print(hash_password(password))
    return 0


# bench ------------------------------------------------------------------------------------------------------------


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "bench", "the performance figures of this machine", _bench_calls, _BENCH_EXAMPLES)
    benches = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    calls = benches.add_parser("calls", help="many calls at once: how evenly audio leaves, CPU and memory per call")
    calls.add_argument("--calls", type=_count, default=50, help="calls at once (default: 50)")
    calls.add_argument("--seconds", type=_seconds, default=30.0, help="how long each lasts (default: 30)")
    calls.add_argument(
        "--speech", choices=("script", "local"), default="script", help="what hears and speaks (default: script)"
    )
    calls.add_argument("--spin", action="store_true", help="one call's function spins at 100 %% CPU meanwhile")
    calls.add_argument("--json", action="store_true", help="one JSON object")
    calls.set_defaults(run=_bench_calls)
    media = benches.add_parser("media", help="what a call's media costs per frame, beside an echo in C")
    media.add_argument("--calls", type=_count, default=100, help="calls at once (default: 100)")
    media.add_argument("--seconds", type=_seconds, default=5.0, help="how long each of nine runs lasts (default: 5)")
    media.add_argument("--json", action="store_true", help="one JSON object")
    media.set_defaults(run=_bench_media)
    conversation = benches.add_parser("conversation", help="filler and barge-in reaction on the wire")
    conversation.add_argument("--trials", type=_count, default=100, help="questions asked (default: 100)")
    conversation.add_argument("--json", action="store_true", help="one JSON object")
    conversation.set_defaults(run=_bench_conversation)
    engine = benches.add_parser("engine", help="the flow engine's own time in a turn and for a function call")
    _add_project(engine)
    engine.add_argument("--turns", type=_count, default=500, help="turns and function calls (default: 500)")
    engine.add_argument("--json", action="store_true", help="one JSON object")
    engine.set_defaults(run=_bench_engine)
    _add_bench_speech(benches)
    _add_bench_models(benches)


def _add_bench_speech(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    speech = benches.add_parser("speech", help="word error rate of a recogniser on a folder of recordings")
    speech.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="DIR",
        help="8 kHz WAV files and manifest.csv with the columns file, text, category, kind",
    )
    speech.add_argument("--recognizer", default="local", metavar="NAME", help="which one (default: local)")
    speech.add_argument("--limit", type=_count, metavar="N", help="only the first N recordings")
    speech.add_argument("--details", type=Path, metavar="FILE", help="write what was heard of each, as JSON Lines")
    speech.add_argument("--json", action="store_true", help="one JSON object")
    speech.set_defaults(run=_bench_speech)


def _add_bench_models(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    models = benches.add_parser("models", help="a language model's speed, and whether it chooses the right function")
    _add_config(models)
    models.add_argument("--model", metavar="NAME", help="which one (default: as configured)")
    models.add_argument(
        "--utterances", type=Path, metavar="FILE", help="what callers say and which calls are expected (default: 60)"
    )
    models.add_argument("--limit", type=_count, metavar="N", help="only the first N utterances")
    models.add_argument("--details", type=Path, metavar="FILE", help="write every answer, as JSON Lines")
    models.add_argument("--json", action="store_true", help="one JSON object")
    models.set_defaults(run=_bench_models)


def _bench_calls(options: argparse.Namespace) -> int:
    from callagent.bench.calls import bench_calls

    return bench_calls(options)


def _bench_engine(options: argparse.Namespace) -> int:
    from callagent.bench.engine import bench_engine

    _log_to_stderr()
    return bench_engine(options)


def _bench_media(options: argparse.Namespace) -> int:
    from callagent.bench.media import bench_media

    return bench_media(options)


def _bench_conversation(options: argparse.Namespace) -> int:
    from callagent.bench.conversation import bench_conversation

    return bench_conversation(options)


def _bench_models(options: argparse.Namespace) -> int:
    from callagent.bench.models import bench_models

    _log_to_stderr()
    return bench_models(_config_of(options), options)


def _bench_speech(options: argparse.Namespace) -> int:
    from callagent.bench.speech import bench_speech

    return bench_speech(options)


if __name__ == "__main__":
    sys.exit(main())
