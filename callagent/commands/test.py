"""`callagent test` and `functions`: an agent project's tests, and one of its functions."""

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
    from callagent.testing.command import run_tests

    log_to_stderr()
    return run_tests(config_of(options), options)


def add_functions(commands: Commands) -> None:
    text = "run a project's function outside a call"
    parser = add_command(commands, "functions", text, _functions_execute, _FUNCTIONS_EXAMPLES)
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
    from callagent.testing.command import execute_function

    log_to_stderr()
    return execute_function(config_of(options), options)
