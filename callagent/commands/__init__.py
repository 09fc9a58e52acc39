"""The command line: a module for each group of commands. A command imports what it needs when it runs."""

from __future__ import annotations

from callagent.commands.command_line import main

__all__ = ["main"]
