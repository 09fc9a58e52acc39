"""`callagent init`: a small agent project to begin with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.commands.common import add_command

if TYPE_CHECKING:
    from callagent.commands.common import Commands

KINDS = ("flow", "adk", "cx")
_TEMPLATES = Path(__file__).parents[1] / "templates"
_SCHEMA = "agent_config.schema.json"
_EXAMPLES = """\
  callagent init my_agent                a flow project
  callagent init my_agent --kind adk     agents in ADK's agent-config YAML, with a schema for editors
  callagent init my_agent --kind cx      an app as CX Agent Studio exports it"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "init", "make a small agent project to begin with", _init, _EXAMPLES)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a folder that is empty or not there yet")
    parser.add_argument("--kind", choices=KINDS, default="flow", help="the format (default: flow)")


def _init(options: argparse.Namespace) -> int:
    from callagent.errors import UserError

    folder: Path = options.folder
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"'{folder}' is not empty; name a new folder")
    if options.kind == "adk" and not folder.resolve().name.isidentifier():
        raise UserError(f"'{folder.resolve().name}' is no name of a Python package, which an agent tree is")
    try:
        _copy(_TEMPLATES / options.kind, folder)
        if options.kind == "adk":
            _write_schema(folder)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be written: {error.strerror or error}") from None
    print(f"made a {options.kind} project in {folder}; try: callagent check {folder}")
    return 0


def _copy(template: Path, folder: Path) -> None:
    """Python is kept as `.py.txt`: it is the project's, nothing here imports it."""
    for place in sorted(template.rglob("*")):
        if not place.is_file():
            continue
        target = folder / place.relative_to(template)
        target = target.with_name(target.name.removesuffix(".txt")) if target.name.endswith(".py.txt") else target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(place.read_bytes())


def _write_schema(folder: Path) -> None:
    import json

    from callagent.agents.adk import agent_config_schema

    text = json.dumps(agent_config_schema(), indent=2)
    (folder / _SCHEMA).write_text(f"{text}\n", encoding="utf-8")
