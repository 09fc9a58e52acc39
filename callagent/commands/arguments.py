"""Arguments that several commands share, and the parsers of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callagent.config import Config

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Command = Callable[[argparse.Namespace], int]


ENVIRONMENTS = ("draft", "sandbox", "pre-release", "live")
"""The environments that a flow project may have settings for."""


def add_command(commands: Commands, name: str, text: str, run: Command, examples: str) -> argparse.ArgumentParser:
    """Add a command, with `text` as its line in the help and `run` as the function that carries it out."""
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"examples:\n{examples}",
        # The lines of the examples must not be filled like a paragraph.
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def parse_count(text: str) -> int:
    """Parse an argument that is a whole number of 1 or more."""
    # `isdigit` alone is also true for digits of other scripts, which `int` would accept, and for superscripts.
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse an argument that is a number of seconds, above 0 and up to a day."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0 and up to 86400")
    return seconds


def log_to_stderr() -> None:
    """Log warnings and errors only, to standard error: standard output belongs to what the command prints."""
    from callagent import log

    log.configure("warning")


def add_project(parser: argparse.ArgumentParser) -> None:
    """Add the argument `project`."""
    parser.add_argument(
        "project", nargs="?", type=Path, default=Path(), help="folder of the agent project (default: .)"
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option `--config`."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings (default: callagent.toml, if there is one)"
    )


def config_of(options: argparse.Namespace) -> Config:
    """Return the settings that a command is to use. Raises `ConfigError`."""
    from callagent.config import find_config, load_config

    return load_config(options.config or find_config(getattr(options, "project", Path())))
