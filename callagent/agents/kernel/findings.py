"""Findings of a project check as data: file and line, the problem, the remedy."""

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
    rule: str = ""
    """Stable identifier of the kind of finding; empty: this project format has none."""

    def __str__(self) -> str:
        rule = f"[{self.rule}] " if self.rule else ""
        return f"{self.file}:{self.line}: {rule}{self.message}"

    def as_json(self) -> dict[str, Any]:
        rule = {"rule": self.rule} if self.rule else {}
        return {"file": self.file, "line": self.line, **rule, "message": self.message}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `callagent check`."""

    errors: Sequence[Finding]
    warnings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        return not self.errors

    def as_json(self) -> dict[str, Any]:
        return {
            "errors": [each.as_json() for each in self.errors],
            "warnings": [each.as_json() for each in self.warnings],
        }


@dataclass(slots=True)
class Findings:
    """Collects findings while a project is read. Nothing is raised, so that one run reports everything."""

    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    _unreadable: set[str] = field(default_factory=set)

    def unreadable(self, file: str, line: int, message: str) -> None:
        """Report that a file cannot be read; its other errors follow from that and are dropped."""
        self._unreadable.add(file)
        self.errors = [each for each in self.errors if each.file != file]
        self.errors.append(Finding(file, line, message))

    def error(self, file: str, line: int, message: str, rule: str = "") -> None:
        if file in self._unreadable:
            return
        self.errors.append(Finding(file, line, message, rule))

    def warning(self, file: str, line: int, message: str, rule: str = "") -> None:
        self.warnings.append(Finding(file, line, message, rule))

    def report(self) -> CheckReport:
        return CheckReport(tuple(sorted(set(self.errors))), tuple(sorted(set(self.warnings))))
