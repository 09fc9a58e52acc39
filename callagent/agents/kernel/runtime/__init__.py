"""What the workers of every project format share: JSON views of values, error reports, imports of project code."""

from __future__ import annotations

from callagent.agents.kernel.runtime.importer import ModuleSpace
from callagent.agents.kernel.runtime.projection import TooLarge, project, project_or_note
from callagent.agents.kernel.runtime.tracebacks import error_message, error_report, import_report, remedy_of

__all__ = [
    "ModuleSpace",
    "TooLarge",
    "error_message",
    "error_report",
    "import_report",
    "project",
    "project_or_note",
    "remedy_of",
]
