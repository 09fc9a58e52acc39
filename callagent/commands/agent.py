"""Commands on an agent project: `callagent init`, `check`, `chat`, `test`, `functions` and `models`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.commands.arguments import ENVIRONMENTS, add_command, add_config, add_project, config_of, log_to_stderr

if TYPE_CHECKING:
    from callagent.commands.arguments import Commands

KINDS = ("flow", "adk", "cx")
"""Project formats for which `callagent init` has a template."""
_TEMPLATES = Path(__file__).parents[1] / "templates"
_SCHEMA = "agent_config.schema.json"
_INIT_EXAMPLES = """\
  callagent init my_agent                a flow project
  callagent init my_agent --kind adk     agents in ADK's agent-config YAML, with a schema for editors
  callagent init my_agent --kind cx      an app as CX Agent Studio exports it"""


def add_init(commands: Commands) -> None:
    parser = add_command(commands, "init", "make a small agent project to begin with", _init, _INIT_EXAMPLES)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a folder that is empty or not there yet")
    parser.add_argument("--kind", choices=KINDS, default="flow", help="the format (default: flow)")


def _init(options: argparse.Namespace) -> int:
    from callagent.errors import UserError

    # A folder with files is refused, because somebody's project could be overwritten.
    folder: Path = options.folder
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"'{folder}' is not empty; name a new folder")
    if options.kind == "adk" and not folder.resolve().name.isidentifier():
        # Code of an agent tree names its own folder in imports.
        raise UserError(
            f"'{folder.resolve().name}' cannot be the name of a Python package, which an agent tree is; use letters, "
            "digits and underscores"
        )
    try:
        _copy(_TEMPLATES / options.kind, folder)
        if options.kind == "adk":
            _write_schema(folder)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be written: {error.strerror or error}") from None
    print(f"made a {options.kind} project in {folder}; try: callagent check {folder}")
    return 0


def _copy(template: Path, folder: Path) -> None:
    """Copy a template. Its Python is kept as `.py.txt`, so that no tool takes it for a part of this package."""
    for place in sorted(template.rglob("*")):
        if not place.is_file():
            continue
        target = folder / place.relative_to(template)
        target = target.with_name(target.name.removesuffix(".txt")) if target.name.endswith(".py.txt") else target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(place.read_bytes())


def _write_schema(folder: Path) -> None:
    """Write the JSON schema of the agents' YAML files, by which editors complete and check them."""
    import json

    from callagent.agents.adk import agent_config_schema

    text = json.dumps(agent_config_schema(), indent=2)
    (folder / _SCHEMA).write_text(f"{text}\n", encoding="utf-8")


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
    # The options stand for what a call would bring along: numbers, headers, language, time.
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
        help="rules, embedded, openai/MODEL or another provider's … (default: rules)",
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


def add_test(commands: Commands) -> None:
    parser = add_command(commands, "test", "run a project's test_suite/ with a simulated caller", _test, _TEST_EXAMPLES)
    add_project(parser)
    add_config(parser)
    parser.add_argument("--tag", action="append", metavar="TAG", help="only tests with this tag; repeatable")
    parser.add_argument("--name", action="append", metavar="NAME", help="only this test; repeatable")
    parser.add_argument("--caller-file", type=Path, metavar="FILE", help="what the caller says in each test (YAML)")
    parser.add_argument("--model", metavar="NAME", help="the agent's model (default: as configured)")
    parser.add_argument(
        "--simulator", metavar="NAME", help="the model that plays the caller and judges (default: the agent's)"
    )
    parser.add_argument("--env", choices=ENVIRONMENTS, default="sandbox", help="default: sandbox")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the results as JUnit XML")
    parser.add_argument("--json", action="store_true", help="one JSON object: every test with its conversation")


def _test(options: argparse.Namespace) -> int:
    from callagent.commands.project_tests import run_tests

    log_to_stderr()
    return run_tests(config_of(options), options)


def add_functions(commands: Commands) -> None:
    text = "run a project's function outside a call"
    parser = add_command(commands, "functions", text, _functions_execute, _FUNCTIONS_EXAMPLES)
    # There is one action so far; its name leaves room for others.
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    executing = actions.add_parser("execute", help="one function", description="Run one function and show its result.")
    executing.add_argument("name", metavar="NAME", help="the function; FLOW/NAME for a flow's")
    add_project(executing)
    add_config(executing)
    executing.add_argument("--args", metavar="JSON", help="its arguments as a JSON object")
    executing.add_argument("--flow", metavar="FLOW", help="the flow it belongs to")
    executing.add_argument("--state", metavar="JSON", help="what conv.state holds before, as a JSON object")
    executing.add_argument("--caller", metavar="NUMBER", help="conv.caller_number (default: withheld)")
    executing.add_argument("--variant", metavar="NAME", help="the project's variant (default: the project decides)")
    executing.add_argument("--env", choices=ENVIRONMENTS, default="sandbox", help="default: sandbox")
    executing.add_argument("--at", metavar="ISO8601", help="the time (default: now)")
    executing.add_argument("--model", metavar="NAME", help="the model that prompt_llm asks (default: as configured)")
    executing.set_defaults(run=_functions_execute)


def _functions_execute(options: argparse.Namespace) -> int:
    from callagent.commands.project_tests import execute_function

    log_to_stderr()
    return execute_function(config_of(options), options)


_MODELS_EXAMPLES = """\
  callagent models export-training agents/parcels --output training/
                        train.jsonl and held_out.jsonl from example queries and recorded calls"""


def add_models(commands: Commands) -> None:
    what = "rows for tuning FunctionGemma on a project's functions"
    parser = add_command(commands, "models", what, _export_training, _MODELS_EXAMPLES)
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
