"""What is wrong with a project, as data: where, what, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    file: str
    """Relative to the project folder, with forward slashes."""
    line: int
    """From 1."""
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The answer of `callagent check`."""

    errors: Sequence[Finding]
    warnings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        return not self.errors

    def as_json(self) -> dict[str, Any]:
        def rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
            return [{"file": each.file, "line": each.line, "message": each.message} for each in findings]

        return {"errors": rows(self.errors), "warnings": rows(self.warnings)}


@dataclass(slots=True)
class Findings:
    """Collects while a project is read; nothing is raised, so that one run tells everything."""

    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    _unreadable: set[str] = field(default_factory=set)

    def unreadable(self, file: str, line: int, message: str) -> None:
        """The error that makes a file's every other one a mere consequence."""
        self._unreadable.add(file)
        self.errors = [each for each in self.errors if each.file != file]
        self.errors.append(Finding(file, line, message))

    def error(self, file: str, line: int, message: str) -> None:
        if file in self._unreadable:
            return
        self.errors.append(Finding(file, line, message))

    def warning(self, file: str, line: int, message: str) -> None:
        self.warnings.append(Finding(file, line, message))

    def report(self) -> CheckReport:
        return CheckReport(tuple(sorted(set(self.errors))), tuple(sorted(set(self.warnings))))
